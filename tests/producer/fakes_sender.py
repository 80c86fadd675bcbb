# SPDX-License-Identifier: Apache-2.0
"""A whole producer without its thread, on a network in memory, in virtual time; and a small broker on real sockets.

`Rig` has the real sender, network client and metadata, and scripted brokers at the other end; `ScriptedTopics` is what
these know. A test sends, takes turns, and answers the produce requests that wait. `LoopbackBroker` does the same job
for tests that need the real Producer, with its thread: it listens at 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pytest
from network.fakes import (
    FakeBroker,
    FakeNetwork,
    Peer,
    Received,
    api_versions_body,
    parse_request,
    response_frame,
)
from watchable import watchable_parts

from penstock._events import working_for
from penstock._ticket import Ticket
from penstock.config.config import ProducerConfig
from penstock.producer.assembly import assemble
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.steps import TimeIsUp
from penstock.protocol.messages import API_VERSIONS, METADATA, PRODUCE
from penstock.records.reader import Record, read_batches
from penstock.types import Node, ProducerRecord, TopicPartition

QUIET = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100}  # without jitter
SHORT = {"delivery_timeout_ms": 1000, "request_timeout_ms": 1000}


@dataclass
class ScriptedTopic:
    """A topic as the cluster tells of it: the leader and the leader epoch of each partition."""

    topic_id: bytes
    leaders: list[int]
    epochs: list[int]
    error_code: int = 0


@dataclass
class ScriptedTopics:
    """What metadata answers say."""

    nodes: list[Node]
    topics: dict[str, ScriptedTopic] = field(default_factory=dict)

    def add_topic(
        self, name: str, partitions: int = 1, *, leaders: list[int] | None = None, error_code: int = 0
    ) -> ScriptedTopic:
        leaders = leaders or [self.nodes[index % len(self.nodes)].id for index in range(partitions)]
        topic_id = (len(self.topics) + 1).to_bytes(16, "big")
        self.topics[name] = ScriptedTopic(topic_id, leaders, [0] * len(leaders), error_code)
        return self.topics[name]

    def move(self, name: str, partition: int, leader: int) -> None:
        topic = self.topics[name]
        topic.leaders[partition] = leader
        topic.epochs[partition] += 1

    def name_of(self, topic: dict[str, Any]) -> str:
        """The name of a topic in a produce request, which may have its id only."""
        if topic.get("name"):
            return str(topic["name"])
        wanted = bytes(topic["topic_id"])
        return next(name for name, known in self.topics.items() if known.topic_id == wanted)

    def metadata_body(self, request: Received) -> dict[str, Any]:
        asked = [topic["name"] for topic in request.body["topics"] or ()]
        return {
            "brokers": [{"node_id": node.id, "host": node.host, "port": node.port} for node in self.nodes],
            "cluster_id": "c",
            "controller_id": self.nodes[0].id,
            "topics": [self._topic_row(name) for name in asked],
        }

    def _topic_row(self, name: str) -> dict[str, Any]:
        topic = self.topics.get(name)
        if topic is None or topic.error_code:
            return {"error_code": 3 if topic is None else topic.error_code, "name": name, "partitions": []}
        rows = [
            {
                "error_code": 0 if leader >= 0 else 5,
                "partition_index": index,
                "leader_id": leader,
                "leader_epoch": topic.epochs[index],
                "replica_nodes": [max(leader, 0)],
                "isr_nodes": [max(leader, 0)],
            }
            for index, leader in enumerate(topic.leaders)
        ]
        return {"error_code": 0, "name": name, "topic_id": topic.topic_id, "partitions": rows}


class Produced(NamedTuple):
    """One batch of a produce request, as the broker read it."""

    topic: str
    partition: int
    records: list[Record]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


def produced(cluster: ScriptedTopics, request: Received) -> list[Produced]:
    """The batches of a produce request."""
    found = []
    for topic in request.body["topic_data"]:
        for row in topic["partition_data"]:
            (batch,) = read_batches(row["records"])
            found.append(Produced(cluster.name_of(topic), row["index"], batch.records()))
    return found


def produce_body(
    request: Received, throttle_ms: int = 0, nodes: tuple[Node, ...] = (), **fields: Any
) -> dict[str, Any]:
    """An answer that says the same of every partition of a produce request; no fields: acknowledged at offset 0."""
    topics = []
    for topic in request.body["topic_data"]:
        rows = [
            {
                "index": row["index"],
                "error_code": 0,
                "base_offset": 0,
                "log_append_time_ms": -1,
                "log_start_offset": 0,
            }
            | fields
            for row in topic["partition_data"]
        ]
        who = {"topic_id": topic["topic_id"]} if request.version >= 13 else {"name": topic["name"]}
        topics.append(who | {"partition_responses": rows})
    body: dict[str, Any] = {"responses": topics, "throttle_time_ms": throttle_ms}
    if nodes:
        body["node_endpoints"] = [
            {"node_id": node.id, "host": node.host, "port": node.port} for node in nodes
        ]
    return body


class Rig:
    """Brokers 0..n-1 at names b0:9092, b1:9092, ..., and a producer without a thread that knows b0.

    Options are the producer's, in snake case; None is one that is not set. Produce requests wait for the test to answer
    them, unless `acknowledge_all` was called.
    """

    def __init__(self, brokers: int = 1, **options: Any) -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.nodes = [Node(index, f"b{index}", 9092) for index in range(brokers)]
        self.cluster = ScriptedTopics(list(self.nodes))
        self.brokers = [FakeBroker(self.network, node) for node in self.nodes]
        for broker in self.brokers:
            broker.rules[METADATA.key] = self.cluster.metadata_body
        options = {
            "bootstrap_servers": "b0:9092",
            "linger_ms": 0,
            "client_id": "rig",
            "enable_idempotence": False,
        } | options
        options = {name: value for name, value in options.items() if value is not None}
        self.config = ProducerConfig.from_user(None, options)
        with watchable_parts():
            self.parts = assemble(self.config, self.clock, self.network.backend(), random.Random(11))

    # ---- the producer's side

    def break_requests(self, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> None:
        """Let no produce request be made."""
        # What only a request asks of the gate. Compiled code makes the request itself in C.
        gate = self.parts.send_path.gate
        monkeypatch.setattr(type(gate), "max_produce_version", property(lambda _: fail()))

    def break_counting(self, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> None:
        """Let nothing be counted of a topic, neither what is sent nor what fails."""
        self.parts.sender_metrics.keep_topics(())
        monkeypatch.setattr(self.parts.registry, "rate_total", fail)

    def watch_waits(self, monkeypatch: pytest.MonkeyPatch, look: Callable[[float], float]) -> None:
        """Be told how long the network client is about to wait, and say how long it waits."""
        poll = self.network.poll
        monkeypatch.setattr(self.network, "poll", lambda timeout: poll(look(timeout)))

    def steps(self, record: ProducerRecord, on_delivery: Any = None) -> Any:
        path = self.parts.send_path
        return path.steps(path.call_of(record, on_delivery))

    def later(self, record: ProducerRecord, on_delivery: Any = None) -> Any:
        path = self.parts.send_path
        return path.later(path.call_of(record, on_delivery))

    def send(self, topic: str, value: Any = None, key: Any = None, **more: Any) -> Delivery:
        """Send as Producer.send does, but taking turns instead of waiting."""
        on_delivery = more.pop("on_delivery", None)
        headers, partition, timestamp = more.get("headers"), more.get("partition"), more.get("timestamp_ms")
        entry = self.parts.entry_path
        try_fast = entry.try_send if entry.behind is None else entry.try_adding
        delivery = try_fast(topic, value, key, headers, partition, timestamp, on_delivery)
        if delivery is not None:
            return delivery
        path = self.parts.send_path
        call = path.call(topic, value, key, headers, partition, timestamp, on_delivery)
        delivery = path.attempt(call) if path.is_ready() else None
        return delivery or self.drive(path.steps(call))

    def drive(self, steps: Any) -> Any:
        """Run steps to their end; waiting is taking turns, for max.block.ms at most."""
        started = self.clock.now()
        try:
            item = next(steps)
            while True:
                if isinstance(item, Ticket):
                    item = self._wait_for(item, steps, started)
                else:
                    item = next(steps)
        except StopIteration as stop:
            return stop.value

    def _wait_for(self, ticket: Ticket[Any], steps: Any, started: float) -> Any:
        budget = self.config.max_block_ms / 1000
        self.network.after(max(0.0, started + budget - self.clock.now()), self.network.wakeup)
        while not ticket.done and self.clock.now() < started + budget:
            self.turn()
        try:
            if not ticket.done:
                raise TimeIsUp(round(1000 * (self.clock.now() - started)))
            result = ticket.result
        except Exception as error:
            return steps.throw(error)
        return steps.send(result)

    def turn(self) -> None:
        with working_for(self.parts.accumulator.owner.events):  # as the I/O thread does
            self.parts.sender.run_once(self.clock.now())

    def settle(self, turns: int = 12) -> None:
        """Take turns without letting time pass."""
        for _ in range(turns):
            self.network.wakeup()
            self.turn()

    def run_for(self, seconds: float) -> None:
        """Take turns until that much time has passed."""
        until = self.clock.now() + seconds
        self.network.after(seconds, self.network.wakeup)
        while self.clock.now() < until:
            self.turn()
        self.settle(3)

    def run_until(self, condition: Callable[[], object], turns: int = 200) -> None:
        for _ in range(turns):
            if condition():
                return
            self.turn()
        raise AssertionError("it did not happen")

    def run_to_end(self) -> None:
        """Run the sender as its thread does, until it is closed."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                self.parts.io_thread.run()
            except BaseException as error:
                raised.append(error)

        # Not on this thread, which would count as an I/O thread from then on.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    @property
    def available_memory(self) -> int:
        return self.parts.accumulator.pool.available()

    @property
    def snapshot(self) -> Any:
        return self.parts.metadata.snapshot

    def metrics(self, group: str = "producer-metrics") -> dict[str, Any]:
        now = self.clock.now()
        self.parts.client_metrics.catch_up(now)
        return self.parts.registry.snapshot(now)[group]

    # ---- the brokers' side

    def know(self, topic: str, partitions: int = 1, **more: Any) -> None:
        """Make a topic, and let the producer learn of it."""
        self.cluster.add_topic(topic, partitions, **more)
        self.drive(self.parts.send_path.await_topic(topic, None))

    def waiting(self, broker: int = 0) -> list[Received]:
        """Produce requests without an answer."""
        return [request for request in self.brokers[broker].waiting if request.api is PRODUCE]

    def await_request(self, broker: int = 0, count: int = 1) -> Received:
        """Take turns until so many produce requests wait; the last of them."""
        self.run_until(lambda: len(self.waiting(broker)) >= count)
        return self.waiting(broker)[count - 1]

    def read(self, request: Received) -> list[Produced]:
        return produced(self.cluster, request)

    def answer(self, request: Received | None = None, broker: int = 0, **fields: Any) -> None:
        """Answer a produce request, the oldest by default, and let the sender see it."""
        chosen = request or self.waiting(broker)[0]
        self.brokers[broker].answer(chosen, produce_body(chosen, **fields))
        self.settle(2)

    def acknowledge_all(self) -> None:
        """Let every broker acknowledge at once, with rising offsets."""
        offsets: dict[TopicPartition, int] = {}
        for broker in self.brokers:
            broker.rules[PRODUCE.key] = lambda request: acknowledge(self.cluster, request, offsets)

    def seen(self, api: Any, broker: int = 0) -> list[Received]:
        return [request for request in self.brokers[broker].seen if request.api is api]

    def break_connection(self, broker: int = 0) -> None:
        peer: Peer = self.brokers[broker].peers[-1]
        self.brokers[broker].waiting.clear()
        peer.reset()
        self.settle(2)


def acknowledge(
    cluster: ScriptedTopics, request: Received, offsets: dict[TopicPartition, int]
) -> dict[str, Any] | None:
    """Acknowledge every batch at the end of its partition, as a broker does."""
    body = produce_body(request)
    sizes = {(batch.topic, batch.partition): len(batch.records) for batch in produced(cluster, request)}
    for asked, topic in zip(request.body["topic_data"], body["responses"], strict=True):
        for row in topic["partition_responses"]:
            where = TopicPartition(cluster.name_of(asked), row["index"])
            row["base_offset"] = offsets.get(where, 0)
            offsets[where] = row["base_offset"] + sizes[where]
    return None if request.body["acks"] == 0 else body


class LoopbackBroker:
    """A broker of one node on a real socket. Thread-safe enough for tests: one lock around its state.

    Attributes:
        hold: produce requests wait until `release` is called.
        telling: metadata requests wait while this is not set.
        error_code: what produce requests are answered with.
        log: every batch that came, in order.
    """

    def __init__(self, **topics: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.cluster = ScriptedTopics([Node(0, "127.0.0.1", self.port)])
        for name, partitions in topics.items():
            self.cluster.add_topic(name, partitions)
        self.hold = False
        self.error_code = 0
        self.log: list[Produced] = []
        self.arrived = threading.Event()  # a produce request came
        self.telling = threading.Event()
        self.telling.set()
        self._offsets: dict[TopicPartition, int] = {}
        self._held: list[tuple[socket.socket, Received]] = []
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def values(self, topic: str = "t") -> list[bytes | None]:
        with self._lock:
            return [value for batch in self.log if batch.topic == topic for value in batch.values]

    def release(self) -> None:
        """Answer what was held, and hold nothing more; what comes meanwhile is held, too, and answered in its turn."""
        while True:
            with self._lock:
                if not self._held:
                    self.hold = False
                    return
                connection, request = self._held.pop(0)
            self._answer_produce(connection, request)

    def close(self) -> None:
        self.telling.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(60)  # it accepts no further connection
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            for request in read_requests(connection):
                if request.api is API_VERSIONS:
                    body: dict[str, Any] | None = api_versions_body()
                elif request.api is METADATA:
                    self.telling.wait()
                    body = self.cluster.metadata_body(request)
                else:
                    self._on_produce(connection, request)
                    continue
                self._reply(connection, request, body)

    def _on_produce(self, connection: socket.socket, request: Received) -> None:
        with self._lock:
            self.log += produced(self.cluster, request)
            hold = self.hold
            if hold:
                self._held.append((connection, request))
        self.arrived.set()
        if not hold:
            self._answer_produce(connection, request)

    def _answer_produce(self, connection: socket.socket, request: Received) -> None:
        with self._lock:
            if self.error_code:
                body: dict[str, Any] | None = produce_body(request, error_code=self.error_code)
            else:
                body = acknowledge(self.cluster, request, self._offsets)
        self._reply(connection, request, body)

    def _reply(self, connection: socket.socket, request: Received, body: dict[str, Any] | None) -> None:
        if body is not None:
            with contextlib.suppress(OSError):  # the client is gone
                connection.sendall(response_frame(request, body))


def read_requests(connection: socket.socket) -> Iterator[Received]:
    """The requests of a connection, until it ends."""
    with contextlib.suppress(OSError):
        while size := _read_exactly(connection, 4):
            yield parse_request(None, _read_exactly(connection, struct.unpack(">i", size)[0]))  # type: ignore[arg-type]


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)
