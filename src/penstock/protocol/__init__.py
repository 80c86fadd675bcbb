# SPDX-License-Identifier: Apache-2.0
"""The Kafka wire protocol, without any I/O: messages as data, one encoder and decoder, framing, version choice."""
