# SPDX-License-Identifier: Apache-2.0
"""Metrics that the cluster asks its clients for (KIP-714). What pushes them is loaded when a broker takes them."""
