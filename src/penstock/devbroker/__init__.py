# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka for development: fetched, configured, started and stopped, on this machine only."""

from __future__ import annotations

from penstock.devbroker.cluster import DevCluster
from penstock.devbroker.machine import DevBrokerError
from penstock.devbroker.node import Node
from penstock.devbroker.releases.fetch import kafka_jars
from penstock.devbroker.releases.release import RELEASES
from penstock.devbroker.settings import KAFKA_VERSION, cache_home

__all__ = ["KAFKA_VERSION", "RELEASES", "DevBrokerError", "DevCluster", "Node", "cache_home", "kafka_jars"]
