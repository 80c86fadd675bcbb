# SPDX-License-Identifier: Apache-2.0
"""Releases of Apache Kafka: their jars, how they are fetched, and how a broker of each is configured and asked."""
