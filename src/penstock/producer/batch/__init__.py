# SPDX-License-Identifier: Apache-2.0
"""Batches, from the first record to the outcome: queues, memory, partitions, deliveries."""
