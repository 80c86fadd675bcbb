# SPDX-License-Identifier: Apache-2.0
"""bootstrap.resolve.timeout.ms: a producer that is made before its DNS knows the brokers."""

from __future__ import annotations

import math
import random
import socket
import threading
import traceback
from typing import Any

import pytest
from network.fakes import FakeBroker, FakeNetwork, Received

from penstock._ticket import Ticket
from penstock.config.config import ProducerConfig
from penstock.errors import BootstrapError
from penstock.producer.assembly import assemble
from penstock.producer.producer import Producer
from penstock.protocol.messages import API_VERSIONS, METADATA
from penstock.types import Node

NODE = Node(0, "b0", 9092)


def metadata_answer(request: Received) -> dict[str, Any]:
    partition = {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": 0,
        "replica_nodes": [0],
        "isr_nodes": [0],
    }
    topics = [
        {"error_code": 0, "name": topic["name"], "topic_id": bytes(15) + b"\1", "partitions": [partition]}
        for topic in request.body["topics"] or ()
    ]
    brokers = [{"node_id": NODE.id, "host": NODE.host, "port": NODE.port}]
    return {"brokers": brokers, "cluster_id": "the-cluster", "topics": topics}


class Stage:
    """A producer without its thread, and a broker at b0:9092 whose name the DNS may not know yet."""

    def __init__(self, resolve_timeout_ms: int = 1000, **options: Any) -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.broker = FakeBroker(self.network, NODE)
        self.broker.rules[METADATA.key] = metadata_answer
        self.known_ips = self.network.names.pop("b0")
        config = ProducerConfig.from_user(
            None,
            {"bootstrap_servers": "b0:9092", "bootstrap_resolve_timeout_ms": resolve_timeout_ms} | options,
        )
        self.parts = assemble(config, self.clock, self.network.backend(), random.Random(3))

    def publish_name(self) -> None:
        self.network.names["b0"] = self.known_ips

    def wait_for(self, topic: str) -> Ticket[Any]:
        return self.parts.metadata.await_topic(topic, None, self.clock.now())

    def run_for(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        self.network.after(seconds, self.network.wakeup)
        while self.clock.now() < until:
            self.parts.sender.run_once(self.clock.now())


@pytest.fixture
def unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


def test_without_a_budget_the_constructor_fails(unknown_names: None) -> None:
    """Requirement 6."""
    with pytest.raises(BootstrapError, match="b0:9092: Name or service not known"):
        Producer(bootstrap_servers="b0:9092")


def test_a_failed_constructor_leaves_nothing_open() -> None:
    network = FakeNetwork()
    config = ProducerConfig.from_user(None, {"bootstrap_servers": "gone:1"})
    with pytest.raises(BootstrapError):
        assemble(config, network.clock, network.backend(), random.Random(1))
    assert network.closed


def test_a_name_that_appears_within_the_budget_is_found_and_used() -> None:
    """Requirement 6."""
    stage = Stage(resolve_timeout_ms=5000)
    ticket = stage.wait_for("t")
    stage.run_for(2)
    assert not ticket.done
    assert not stage.network.attempts
    stage.publish_name()
    stage.run_for(1)
    assert ticket.result.partition_count("t") == 1
    assert stage.parts.metadata.cluster_id() == "the-cluster"


def test_the_name_is_looked_up_at_the_pace_of_the_retry_backoff() -> None:
    stage = Stage(resolve_timeout_ms=5000, retry_backoff_ms=100)
    stage.run_for(1.05)
    assert 10 <= len(stage.network.lookups) <= 11


def test_once_the_budget_is_over_every_call_fails_for_ever() -> None:
    """Requirement 6."""
    stage = Stage(resolve_timeout_ms=1000)
    waiting = stage.wait_for("t")
    stage.run_for(0.9)
    assert not waiting.done
    stage.run_for(0.2)
    stage.publish_name()  # too late
    for _ in range(3):
        for topic in ("t", "another"):
            with pytest.raises(BootstrapError, match=r"1000 ms.*b0:9092: Name or service not known"):
                _ = stage.wait_for(topic).result
        stage.run_for(400)
    with pytest.raises(BootstrapError, match="b0:9092: Name or service not known"):
        _ = waiting.result
    assert not stage.network.attempts


def test_an_error_that_is_raised_for_ever_does_not_gather_tracebacks() -> None:
    stage = Stage(resolve_timeout_ms=100)
    stage.run_for(0.2)
    depths = set()
    for _ in range(5):
        with pytest.raises(BootstrapError) as caught:
            _ = stage.wait_for("t").result
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1


def test_a_time_out_before_the_end_of_the_budget_names_the_cause() -> None:
    stage = Stage(resolve_timeout_ms=60_000)
    metadata = stage.parts.metadata
    assert "have not been resolved yet" in str(metadata.explain_timeout("t", None, 10))
    stage.run_for(1)
    error = metadata.explain_timeout("t", None, 1000)
    assert "b0:9092: Name or service not known" in str(error)
    assert isinstance(error.__cause__, BootstrapError)
    stage.publish_name()
    stage.run_for(1)
    assert "Name or service not known" not in str(metadata.explain_timeout("t", None, 2000))


def test_a_name_service_that_hangs_does_not_hold_up_the_turns() -> None:
    stage = Stage(resolve_timeout_ms=1000)
    stage.network.aside_delay = math.inf
    ticket = stage.wait_for("t")
    stage.run_for(1.1)
    assert not stage.network.lookups  # on the I/O thread nothing is looked up
    with pytest.raises(BootstrapError, match="gave no answer"):
        _ = ticket.result


def test_a_rebootstrap_goes_back_to_the_servers_found_later() -> None:
    stage = Stage(resolve_timeout_ms=5000, metadata_recovery_rebootstrap_trigger_ms=1000)
    stage.run_for(2)  # longer than the trigger: the search does not count
    stage.publish_name()
    stage.run_for(1)
    stage.parts.metadata.rebootstrap(stage.clock.now())
    assert [(node.id, node.host) for node in stage.parts.metadata.nodes()] == [(-1, "b0")]


@pytest.mark.parametrize(("enabled", "version"), [(True, 5), (False, 4)])
def test_the_cluster_check_is_sent_when_it_is_wanted(enabled: bool, version: int) -> None:
    stage = Stage(metadata_cluster_check_enable=enabled)
    stage.publish_name()
    stage.wait_for("t")
    stage.run_for(0.5)
    client, now = stage.parts.client, stage.clock.now()
    client.ready(NODE, now)
    stage.run_for(0.5)
    asked = [request for request in stage.broker.seen if request.api is API_VERSIONS]
    assert [request.version for request in asked] == [4, version]
    if enabled:
        assert (asked[1].body["cluster_id"], asked[1].body["node_id"]) == ("the-cluster", 0)


# ---- with threads


class StuckNames:
    """A name service that answers when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = threading.Event()
        self.release = threading.Event()
        self.threads: set[str] = set()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)

    def _resolve(self, host: str, port: int, *, flags: int = 0, **_: object) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            return self._real(host, port, flags=flags)
        self.threads.add(threading.current_thread().name)
        self.asked.set()
        self.release.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_neither_making_nor_closing_a_producer_waits_for_the_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    names = StuckNames(monkeypatch)
    try:
        producer = Producer(bootstrap_servers="broker:9092", bootstrap_resolve_timeout_ms=60_000)
        assert names.asked.wait(60)
        producer.close()
        assert not producer._core.thread.is_alive()
        assert not names.release.is_set()
        assert names.threads == {"penstock-aside"}
    finally:
        names.release.set()


def test_a_waiting_sender_is_woken_with_the_error(unknown_names: None) -> None:
    """Requirement 6."""
    with Producer(
        bootstrap_servers="broker:9092", bootstrap_resolve_timeout_ms=50, retry_backoff_ms=10
    ) as producer:
        for _ in range(2):
            with pytest.raises(BootstrapError, match="broker:9092: Name or service not known"):
                producer.send("t", b"v")
            with pytest.raises(BootstrapError):
                producer.partitions_for("t")
