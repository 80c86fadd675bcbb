# SPDX-License-Identifier: Apache-2.0
"""A client on a network in memory, with the few steps that most tests begin with."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from network.fakes import FakeBroker, FakeNetwork, FakeUpdater

from penstock.config.keys import KEYS
from penstock.network import ClientRequest, InFlightRequest, NetworkClient, NetworkSettings
from penstock.network.backend import Authenticate
from penstock.network.resolver import DeferredBootstrap
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
from penstock.protocol.messages import FIND_COORDINATOR
from penstock.protocol.requests import Request, SchemaRequest
from penstock.types import Node


def network_settings(**changes: Any) -> NetworkSettings:
    """What a client has whose user sets nothing, with these changes."""
    defaults = {key.name: key.default for key in KEYS.values()}
    settings = NetworkSettings.from_options(
        defaults, client_id="penstock", max_in_flight=5, cluster_check=True
    )
    return dataclasses.replace(settings, **changes)


class Harness:
    """Brokers 0..n-1 at names b0:9092, b1:9092, ..., and a client that knows them."""

    def __init__(
        self,
        brokers: int = 1,
        bootstrap: DeferredBootstrap | None = None,
        authenticate: Authenticate | None = None,
        **settings: Any,
    ) -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.nodes = [Node(index, f"b{index}", 9092) for index in range(brokers)]
        self.brokers = [FakeBroker(self.network, node) for node in self.nodes]
        self.updater = FakeUpdater(list(self.nodes))
        self.client = NetworkClient(
            network_settings(**settings),
            self.network.backend()._replace(authenticate=authenticate),
            self.updater,
            self.clock,
            random.Random(7),
            bootstrap=bootstrap,
        )
        self.ended: list[InFlightRequest] = []

    @property
    def now(self) -> float:
        return self.clock.now()

    def poll(self, timeout: float = 0.0) -> list[InFlightRequest]:
        return self.client.poll(timeout, self.now)

    def poll_until(self, condition: Callable[[], object], timeout: float = 0.0, turns: int = 50) -> None:
        for _ in range(turns):
            if condition():
                return
            self.poll(timeout)
        raise AssertionError("it did not happen")

    def connect(self, node: Node | None = None) -> Node:
        """Make a connection and wait until it is ready."""
        target = node or self.nodes[0]
        self.client.ready(target, self.now)
        self.poll_until(lambda: self.client.is_ready(target, self.now))
        return target

    def disconnect(self, node: Node | None = None) -> None:
        """Close the connection to a node; its requests end in the next poll."""
        target = node or self.nodes[0]
        self.client._pool.close_connection(target.id, self.now, "a test wants it")

    def send(self, node: Node | None = None, request: Request | None = None, timeout: float = 30.0) -> None:
        """Send a request; how it ends is kept in `ended`."""
        target = node or self.nodes[0]
        self.client.send(ClientRequest(target, request or question(), timeout, self.ended.append), self.now)


def with_bootstrap(h: Harness) -> list[Node]:
    """Bootstrap nodes at the same addresses as the brokers."""
    h.updater.bootstrap = [Node(-1 - node.id, node.host, node.port) for node in h.nodes]
    return h.updater.bootstrap


def question() -> SchemaRequest:
    """A request that the fake broker keeps until the test answers it."""
    return SchemaRequest.of(FIND_COORDINATOR, {"key": "k", "key_type": 1}, max_version=3)


ANSWER = {"throttle_time_ms": 0, "error_code": 0, "node_id": 1, "host": "h", "port": 1}


def batch(size: int) -> bytearray:
    """Something that passes for a sealed batch of that many bytes."""
    records = bytearray(size)
    records[8:12] = (size - 12).to_bytes(4, "big")
    records[16] = 2
    return records


def produce(acks: int, *records: bytearray) -> ProduceRequest:
    batches = [PartitionBatch("t", bytes(16), index, one) for index, one in enumerate(records)]
    return ProduceRequest(acks, 1000, batches)
