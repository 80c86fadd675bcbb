# SPDX-License-Identifier: Apache-2.0
"""Spark: the data source `penstock`, which writes DataFrames to Kafka exactly once."""
