# SPDX-License-Identifier: Apache-2.0
"""A producer and brokers of Kafka 0.11 to 2.3: which versions it uses, and that they understand each other.

The broker's bytes are written, and the producer's are read, by hand and not with this package's tables: these releases
know no flexible versions, and a mistake in a table must not hide behind the same mistake on the other side.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest
from network.fakes import Received
from producer.fakes_sender import Rig
from producer.fakes_txn import GateRig

from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_BY_KEY,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.records.reader import read_batches

PRODUCER_ID = 4000
# The highest version of each API, as the releases list them. All begin at 0.
RELEASES: dict[str, dict[str, int]] = {
    "0.11.0": dict(zip(
        ("Produce", "Metadata", "ApiVersions", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn",
         "TxnOffsetCommit", "FindCoordinator"),
        (3, 4, 1, 0, 0, 0, 0, 0, 1), strict=True,
    )),
}  # fmt: skip
for _release, _versions in {
    "1.0": (5, 5, 1, 0, 0, 0, 0, 0, 1),
    "1.1": (5, 5, 1, 0, 0, 0, 0, 0, 1),
    "2.0": (6, 6, 2, 1, 1, 1, 1, 1, 2),
    "2.1": (7, 7, 2, 1, 1, 1, 1, 2, 2),
    "2.2": (7, 7, 2, 1, 1, 1, 1, 2, 2),
    "2.3": (7, 8, 2, 1, 1, 1, 1, 2, 2),
}.items():
    RELEASES[_release] = dict(zip(RELEASES["0.11.0"], _versions, strict=True))


class Bytes:
    """Reads a request body, number by number."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        return value

    def text(self) -> str | None:
        size = self.take("h")
        return None if size < 0 else self.raw(size).decode()

    def raw(self, size: int) -> bytes:
        assert self.at + size <= len(self.data)
        self.at += size
        return self.data[self.at - size : self.at]

    def check_end(self) -> None:
        assert self.at == len(self.data), "bytes that such a broker does not know"


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


class Written(NamedTuple):
    """What a Produce request asks for."""

    transactional_id: str | None
    acks: int
    topic: str | None
    partition: int
    batch: Any


class OldCluster(Rig):
    """One broker of an old release, which leads topic t.

    Args:
        release: which one.
        hints: whether it tells, when it refuses a version of ApiVersions, which ones there are.
    """

    def __init__(self, release: str, *, hints: bool = False, **options: Any) -> None:
        super().__init__(1, **({"enable_idempotence": True} | options))
        self.highest = RELEASES[release]
        self.hints = hints
        self.written: list[Written] = []
        self.throttle_ms = 0
        self.refusals = 0  # Produce requests that are answered with NOT_LEADER_OR_FOLLOWER
        (broker,) = self.brokers
        broker.rules[API_VERSIONS.key] = self._api_versions
        broker.rules[METADATA.key] = self._metadata
        broker.rules[INIT_PRODUCER_ID.key] = self._init_producer_id
        broker.rules[PRODUCE.key] = self._produce

    def versions(self, api: Any) -> set[int]:
        return {request.version for request in self.seen(api)}

    def _api_versions(self, request: Received) -> bytes:
        highest = self.highest["ApiVersions"]
        if request.version > highest:  # always in the form of version 0
            return (
                struct.pack(">hi", 35, 1) + struct.pack(">hhh", 18, 0, highest)
                if self.hints
                else struct.pack(">hi", 35, 0)
            )
        keys = {api.name: api.key for api in API_BY_KEY.values()}
        rows = b"".join(struct.pack(">hhh", keys[name], 0, high) for name, high in self.highest.items())
        answer = struct.pack(">hi", 0, len(self.highest)) + rows
        return answer + struct.pack(">i", 0) if request.version >= 1 else answer

    def _metadata(self, request: Received) -> bytes:
        version = request.version
        assert 4 <= version <= self.highest["Metadata"]
        asked = Bytes(request.raw_body)
        topics = [asked.text() for _ in range(max(0, asked.take("i")))]
        asked.take("b")  # whether it may be made
        if version >= 8:
            asked.raw(2)
        asked.check_end()
        (node,) = self.nodes
        answer = struct.pack(">i", 0) + struct.pack(">ii", 1, node.id) + text(node.host)
        answer += (
            struct.pack(">i", node.port) + text(None) + text("c") + struct.pack(">ii", node.id, len(topics))
        )
        for topic in topics:
            answer += struct.pack(">h", 0) + text(topic) + struct.pack(">bi", 0, 1)
            answer += struct.pack(">hii", 0, 0, node.id)
            answer += struct.pack(">i", 5) if version >= 7 else b""  # the leader's epoch
            answer += struct.pack(">iiii", 1, node.id, 1, node.id)
            answer += struct.pack(">i", 0) if version >= 5 else b""
            answer += struct.pack(">i", 0) if version >= 8 else b""
        return answer + (struct.pack(">i", 0) if version >= 8 else b"")

    def _init_producer_id(self, request: Received) -> bytes:
        asked = Bytes(request.raw_body)
        assert (asked.text(), asked.take("i")) == (None, 2**31 - 1)
        asked.check_end()
        return struct.pack(">ihqh", 0, 0, PRODUCER_ID, 0)

    def _produce(self, request: Received) -> bytes | None:
        asked = Bytes(request.raw_body)
        transactional_id, acks = asked.text(), asked.take("h")
        assert asked.take("i") == self.config.request_timeout_ms
        assert asked.take("i") == 1
        topic = asked.text()
        assert asked.take("i") == 1
        partition = asked.take("i")
        (batch,) = read_batches(asked.raw(asked.take("i")))
        asked.check_end()
        code = 6 if self.refusals else 0
        self.refusals = max(0, self.refusals - 1)
        offset = sum(len(one.batch.records()) for one in self.written)
        if not code:
            self.written.append(Written(transactional_id, acks, topic, partition, batch))
        if acks == 0:
            return None
        answer = struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, partition)
        answer += struct.pack(">hqq", code, -1 if code else offset, -1)
        answer += struct.pack(">q", 0) if request.version >= 5 else b""
        return answer + struct.pack(">i", self.throttle_ms)


def deliver(rig: OldCluster, value: bytes, **more: Any) -> Any:
    delivery = rig.send("t", value, **more)
    rig.run_until(delivery.done)
    return delivery.result(0)


@pytest.mark.parametrize("hints", [False, True], ids=["without hint", "with hint"])
@pytest.mark.parametrize("release", RELEASES)
def test_records_are_written_with_the_versions_that_the_broker_has(release: str, hints: bool) -> None:
    rig = OldCluster(release, hints=hints)
    first = deliver(rig, b"a", key=b"k", headers=[("h", b"1")], timestamp_ms=77)
    second = deliver(rig, b"b")
    assert (first.offset, first.timestamp, second.offset) == (0, 77, 1)
    highest = rig.highest
    assert rig.versions(PRODUCE) == {highest["Produce"]}
    assert rig.versions(METADATA) == {highest["Metadata"]}
    assert rig.versions(INIT_PRODUCER_ID) == {highest["InitProducerId"]}
    asked = [request.version for request in rig.seen(API_VERSIONS)]
    assert asked[:2] == [4, highest["ApiVersions"] if hints else 0]
    written = rig.written[0]
    assert written[:4] == (None, -1, "t", 0)
    (record,) = written.batch.records()
    assert (record.key, record.value, record.timestamp) == (b"k", b"a", 77)
    assert [tuple(header) for header in record.headers] == [("h", b"1")]
    assert (written.batch.magic, written.batch.producer_id, written.batch.base_sequence) == (
        2,
        PRODUCER_ID,
        0,
    )
    assert rig.written[1].batch.base_sequence == 1


@pytest.mark.parametrize("release", RELEASES)
def test_a_refused_batch_is_sent_again_with_its_number(release: str) -> None:
    """The answers of these releases name no new leader: the producer asks for it."""
    rig = OldCluster(release, retry_backoff_ms=10, retry_backoff_max_ms=10)
    deliver(rig, b"before")
    rig.refusals = 2
    questions = len(rig.seen(METADATA))
    assert deliver(rig, b"a").offset == 1
    assert [one.batch.base_sequence for one in rig.written] == [0, 1]
    assert len(rig.seen(METADATA)) > questions


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_producer_without_idempotence_asks_for_no_identity(release: str, acks: str) -> None:
    rig = OldCluster(release, enable_idempotence=False, acks=acks)
    assert deliver(rig, b"a").offset == (-1 if acks == "0" else 0)
    assert not rig.seen(INIT_PRODUCER_ID)
    rig.settle()
    assert rig.written[0].acks == {"0": 0, "1": 1, "all": -1}[acks]
    assert rig.written[0].batch.producer_id == -1


@pytest.mark.parametrize("release", RELEASES)
def test_a_broker_that_has_waited_itself_is_not_waited_for(release: str) -> None:
    """Before 2.0 (Produce 6) a throttled answer comes late; from there on it is the client that waits."""
    rig = OldCluster(release)
    rig.throttle_ms = 500
    deliver(rig, b"a")
    started = rig.clock.now()
    deliver(rig, b"b")
    waits = rig.highest["Produce"] >= 6
    assert rig.clock.now() - started == pytest.approx(0.5 if waits else 0.0, abs=0.01)


@pytest.mark.parametrize("release", RELEASES)
def test_transactions_use_the_versions_that_the_broker_has(release: str) -> None:
    highest = RELEASES[release]
    rig = GateRig.transactional(protocol=None, versions={name: (0, high) for name, high in highest.items()})
    rig.begin()
    delivery = rig.send("t", b"a", partition=0)
    rig.await_request()
    rig.answer(base_offset=3)
    rig.deliver(delivery)
    rig.send_offsets({("in", 0): 7})
    rig.commit()
    rig.begin()
    rig.abort()
    assert delivery.result(0).offset == 3
    used: dict[str, set[int]] = {}
    for request in rig.log:
        used.setdefault(request.api.name, set()).add(request.version)
    for api in (
        FIND_COORDINATOR,
        INIT_PRODUCER_ID,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        TXN_OFFSET_COMMIT,
        END_TXN,
    ):
        assert used[api.name] == {highest[api.name]}, api.name
    assert {request.version for request in rig.seen(PRODUCE)} == {highest["Produce"]}
