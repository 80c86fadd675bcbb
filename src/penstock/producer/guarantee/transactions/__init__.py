# SPDX-License-Identifier: Apache-2.0
"""Transactions: states, calls, and requests to the coordinator."""
