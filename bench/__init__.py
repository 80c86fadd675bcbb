# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: Penstock and other producers in turns on one real Apache Kafka; `python -m bench` runs them.

A result is a ratio measured in one run. Rates by themselves depend on the machine and on what else it does.
"""
