# SPDX-License-Identifier: Apache-2.0
"""SASL: who the client is, in the words of the mechanism that the broker wants."""
