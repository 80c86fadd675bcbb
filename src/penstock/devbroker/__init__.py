# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka for development: fetched, configured, started and stopped, on this machine only."""

from __future__ import annotations

from penstock.devbroker.cluster import DevCluster
from penstock.devbroker.fetch import kafka_jars
from penstock.devbroker.machine import DevBrokerError
from penstock.devbroker.node import Node
from penstock.devbroker.settings import KAFKA_VERSION, cache_home

__all__ = ["KAFKA_VERSION", "DevBrokerError", "DevCluster", "Node", "cache_home", "kafka_jars"]
