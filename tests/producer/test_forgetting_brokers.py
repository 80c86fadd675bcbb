# SPDX-License-Identifier: Apache-2.0
"""Brokers that are not used any more are forgotten everywhere, and can be used again."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from typing import Any

import pytest
from network.fakes import FakeBroker, Received, api_versions_body
from producer.fakes_sender import Rig, produce_body
from producer.fakes_txn import ClusterRig

from penstock.network import _client_cy, handshake, states
from penstock.network.failures import FailureReporter
from penstock.network.old_brokers import OldBrokers
from penstock.network.states import REMEMBERED
from penstock.producer import assembly
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.io.converting import Conversions
from penstock.protocol.messages import API_VERSIONS, METADATA, PRODUCE
from penstock.types import Node

NODES = "producer-node-metrics"
FAST: dict[str, Any] = {
    "metadata_max_age_ms": 1000, "metadata_max_idle_ms": 10_000_000, "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 50, "retry_backoff_ms": 50, "retry_backoff_max_ms": 50,
    "partitioner_availability_timeout_ms": 1000,  # so that the progress of brokers is noted
}  # fmt: skip


class BrokersThatCome(Rig):
    """Broker 0 stays, and leads partition 0; another one, always new, leads partition 1 of topic t."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        made: dict[type, Any] = {}

        def kept(kind: type) -> Any:
            def make(*args: Any) -> Any:
                made[kind] = kind(*args)
                return made[kind]

            return make

        # Compiled objects do not show these.
        monkeypatch.setattr(_client_cy, "FailureReporter", kept(FailureReporter))
        monkeypatch.setattr(handshake, "OldBrokers", kept(OldBrokers))
        monkeypatch.setattr(assembly, "Conversions", kept(Conversions))
        super().__init__(**FAST | options)
        self.reporter: FailureReporter = made[FailureReporter]
        self.old_brokers: OldBrokers = made[OldBrokers]
        self.conversions: Conversions = made[Conversions]
        self.states = self.parts.client._pool.states
        self.acknowledge_all()
        self.know("t", leaders=[0, 0])

    def new_broker(self, node: Node, *, ordinary: bool = True) -> FakeBroker:
        broker = FakeBroker(self.network, node, ["10.1.0.1"])
        broker.rules[METADATA.key] = self.cluster.metadata_body
        broker.rules[PRODUCE.key] = produce_body
        if not ordinary and node.id % 4 == 1:
            broker.rules[API_VERSIONS.key] = _close
        elif not ordinary and node.id % 4 == 2:
            broker.rules[API_VERSIONS.key] = lambda _: api_versions_body(Produce=(0, 2))
        elif not ordinary and node.id % 4 == 3:
            self.network.listeners.pop(("10.1.0.1", node.port))
        return broker

    def name(self, *nodes: Node, leader: int = 0) -> None:
        """Let the cluster have broker 0 and these, and let the producer learn it."""
        self.cluster.nodes[:] = [self.nodes[0], *nodes]
        self.cluster.move("t", 1, leader)
        self.run_until(lambda: self.snapshot.partition("t", 1).leader_id == leader)

    def use(self, node: Node) -> Delivery:
        """Name a broker, and send it a record."""
        self.name(node, leader=node.id)
        delivery = self.send("t", b"v", partition=1)
        self.run_for(0.2)
        return delivery

    def visit(self, node: Node, *, ordinary: bool = True) -> None:
        """Let a broker come, get a record, and go; what the test itself keeps of it is dropped."""
        broker = self.new_broker(node, ordinary=ordinary)
        self.use(node)
        for peer in broker.peers:
            peer.close()
        self.network.names.pop(node.host, None)
        self.network.listeners.pop(("10.1.0.1", node.port), None)
        for notes in (
            self.network.attempts,
            self.network.endpoints,
            self.network.lookups,
            self.network.transports,
        ):
            notes.clear()  # type: ignore[attr-defined]
        self.brokers[0].seen.clear()

    def memory(self) -> int:
        """Bytes that are traced when no broker but 0 is remembered; what is told in the log has a bound of its own."""
        self.name()
        self.run_for(10)
        self.parts.accumulator.owner.events._causes.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def sizes(self) -> dict[str, int]:
        """How much is kept of brokers, part by part."""
        self.parts.client_metrics.catch_up(self.clock.now())
        drainer = self.parts.sender._drainer
        return {
            "states": len(self.states._nodes),
            "counters": len(self.parts.client.metrics.nodes),
            "errors": len(self.reporter._last),
            "warnings": len(self.reporter._warned),
            "evidence": len(self.old_brokers._evidence),
            "named": len(self.parts.client_metrics._nodes),
            "metrics": len(self.parts.registry.snapshot(self.clock.now()).get(NODES, ())),
            "sums": sum(group == NODES for group, _ in self.parts.registry._sums),
            "met": len(self.conversions._met),
            "progress": len(drainer.load._progress),
        }


def _close(request: Received) -> None:
    request.peer.close()


def test_a_thousand_short_lived_brokers_cost_what_a_few_do(monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, "penstock")
    monkeypatch.setattr(states, "REMEMBERED", 5.0)  # so that few are remembered at a time
    rig = BrokersThatCome(monkeypatch)
    largest: dict[str, int] = {}
    rates = 0
    before = 0
    try:
        for number in range(1, 1001):
            rig.visit(Node(number, f"c{number}", 1000 + number), ordinary=False)
            if number % 20 == 0:
                for name, size in rig.sizes().items():
                    largest[name] = max(largest.get(name, 0), size)
                rates = max(rates, len(rig.parts.client_metrics._counted))
            if number == 600:
                tracemalloc.start()
            if number == 750:
                before = rig.memory()
        grown = rig.memory() - before
    finally:
        tracemalloc.stop()
    assert all(size > 3 for size in largest.values()), largest  # else this test shows nothing
    assert max(largest.values()) <= 40, largest
    assert rates < 20
    assert grown < 50_000, f"{grown} bytes for 250 brokers"
    assert rig.parts.accumulator.incomplete_records() < 10  # the others have found their leader


def test_a_broker_is_remembered_for_five_minutes(monkeypatch):
    rig = BrokersThatCome(monkeypatch)
    for number, ordinary in ((4, True), (1, False), (2, False), (3, False)):
        rig.visit(Node(number, f"c{number}", 1000 + number), ordinary=ordinary)
    rig.name()
    rig.run_for(REMEMBERED - 10)
    assert {1, 2, 3, 4} <= rig.states._nodes.keys()
    assert len(rig.sizes()) == 10
    rig.run_for(90)
    assert rig.sizes() == {
        "states": 2,  # with the bootstrap server
        "counters": 2,
        "errors": 0,
        "warnings": 0,
        "evidence": 0,
        "named": 1,
        "metrics": 1,
        "sums": 1,
        "met": 0,
        "progress": 1,
    }


def test_a_broker_that_is_named_or_connected_stays(monkeypatch):
    rig = BrokersThatCome(monkeypatch, connections_max_idle_ms=-1)
    named, connected = Node(4, "c4", 1004), Node(8, "c8", 1008)
    for node in (named, connected):
        rig.new_broker(node)
        assert rig.use(node).done()
    rig.name(named)
    requests = rig.metrics(NODES)["node-8"]["request-total"]
    rig.parts.client._pool.close_connection(named.id, rig.clock.now(), "a test wants it")
    rig.run_for(3 * REMEMBERED)
    assert {named.id, connected.id} <= rig.states._nodes.keys()
    assert rig.metrics(NODES)["node-8"]["request-total"] == requests > 0
    assert rig.metrics(NODES)["node-4"]["request-total"] > 0
    rig.parts.client._pool.close_connection(connected.id, rig.clock.now(), "a test wants it")
    rig.run_for(REMEMBERED - 10)
    assert connected.id in rig.states
    rig.run_for(90)
    assert connected.id not in rig.states
    assert set(rig.metrics(NODES)) == {"node-0", "node-4"}


def test_a_broker_that_comes_back_begins_anew_and_works(monkeypatch, caplog):
    rig = BrokersThatCome(monkeypatch)
    node = Node(5, "c5", 1005)
    for _ in range(2):
        caplog.clear()
        rig.visit(node, ordinary=False)  # it closes every connection
        rig.name()
        assert "broker 5" in caplog.text
        assert rig.states.get(5).failed_attempts
        rig.run_for(REMEMBERED + 90)
        assert 5 not in rig.states
        rig.new_broker(node)
        assert rig.use(node).result(0).partition == 1
        assert rig.metrics(NODES)["node-5"]["request-total"] == 1 + 1  # ApiVersions, Produce
        rig.name()
        rig.parts.client._pool.close_connection(5, rig.clock.now(), "a test wants it")
        rig.run_for(REMEMBERED + 90)
        assert "node-5" not in rig.metrics(NODES)


def test_metrics_of_a_broker_that_comes_back_before_anybody_looks_begin_anew(monkeypatch):
    rig = BrokersThatCome(monkeypatch)
    counters = rig.parts.client.metrics
    counters.node(7)
    before = rig.metrics(NODES)["node-7"]
    assert before["request-total"] == 0
    counters.keep_nodes({0, -1})
    again = counters.node(7)
    for number in range(1, 4):
        again.request_max = number
        assert rig.metrics(NODES)["node-7"]["request-size-max"] == number
    assert len(rig.parts.client_metrics._nodes) == 1


def test_the_backoff_of_a_broker_that_is_named_is_kept(monkeypatch):
    """A dead leader is tried no more often than it would be if nothing was ever forgotten."""
    backoff = {"reconnect_backoff_ms": 1000, "reconnect_backoff_max_ms": 200_000}
    monkeypatch.setattr(states, "REMEMBERED", 1.0)
    rig = BrokersThatCome(monkeypatch, delivery_timeout_ms=10_000_000, **backoff)
    node = Node(3, "c3", 1003)
    rig.new_broker(node, ordinary=False)  # it cannot be reached
    rig.use(node)
    rig.run_for(1500)
    assert rig.states.get(3).failed_attempts == len([at for at in rig.network.endpoints if at == "c3:1003"])
    assert 8 <= rig.states.get(3).failed_attempts <= 20
    rig.name()  # nor is it forgotten before its backoff is over
    left = rig.states.backoff_left(node, rig.clock.now())
    assert left > 10
    rig.run_for(left - 5)
    assert 3 in rig.states
    rig.run_for(10)
    assert 3 not in rig.states


def test_a_transaction_goes_on_after_its_coordinator_was_forgotten():
    """One that the metadata does not name is no different: it is asked again, over a new connection."""
    rig = ClusterRig(topics={"t": 1}, transactional_id="x", connections_max_idle_ms=5000)
    rig.init()
    for number in range(3):
        rig.begin()
        rig.deliver(rig.send("t", b"%d" % number))
        rig.commit()
        rig.run_for(20)
        known = rig.parts.client._pool.states
        assert known.maybe_forget((), rig.clock.now() + 2 * REMEMBERED * (number + 1))
        assert not [node for node in known.nodes() if node.id >= 0]
    assert rig.values() == [b"0", b"1", b"2"]
