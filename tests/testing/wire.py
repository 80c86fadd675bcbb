# SPDX-License-Identifier: Apache-2.0
"""A client of the fake cluster that writes and reads raw requests, in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.protocol._framing_cy import FrameReader, frame_request, parse_response_header
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    PRODUCE,
)
from penstock.protocol.schema import ApiSchema
from penstock.records._batch_cy import BatchWriter
from penstock.records.compression import codec
from penstock.records.format import HEADER_SIZE, TRANSACTIONAL_BIT
from penstock.testing import ClusterSettings, FakeCluster, Session

NOW_MS = 1_700_000_000_000
FIRST_PROTOCOL = 1  # levels of transaction.version
SECOND_PROTOCOL = 2


class Producer(NamedTuple):
    """Producer id and epoch."""

    id: int
    epoch: int

    def bumped(self, by: int = 1) -> Producer:
        return Producer(self.id, self.epoch + by)


def make_cluster(brokers: int = 1, topics: dict[str, int] | None = None, **options: Any) -> FakeCluster:
    settings = ClusterSettings(**options.pop("settings", {}))
    cluster = FakeCluster(brokers, settings=settings, clock=lambda: NOW_MS / 1000, **options)
    for name, partitions in (topics or {"t": 1}).items():
        cluster.create_topic(name, partitions)
    return cluster


def batch(
    values: int | Sequence[bytes | None] = 1,
    producer: Producer | None = None,
    sequence: int = 0,
    *,
    transactional: bool = False,
    key: bytes | None = None,
    timestamp: int = NOW_MS,
    compression: str = "none",
) -> bytes:
    """A batch as a client writes it; a number of values makes as many."""
    rows = [b"v%d" % index for index in range(values)] if isinstance(values, int) else values
    size = 1000 + sum(50 + len(value or b"") for value in rows)
    writer = BatchWriter(bytearray(size), size)
    for value in rows:
        assert writer.append(timestamp, key, value, ()) > 0
    chosen = codec(compression)
    compressed = bytearray(HEADER_SIZE) + chosen.compress(writer.raw_records()) if chosen.id else None
    attributes = chosen.id | (TRANSACTIONAL_BIT if transactional else 0)
    ids = (-1, -1, -1) if producer is None else (*producer, sequence)
    return bytes(writer.seal(attributes, *ids, compressed=compressed))


class Wire:
    """One connection to each broker that is asked."""

    def __init__(self, cluster: FakeCluster, now: float = 100.0) -> None:
        self.cluster = cluster
        self.now = now
        self._sessions: dict[int, Session] = {}
        self._sent: dict[int, tuple[ApiSchema, int]] = {}
        self._ids = itertools.count(1)

    def session(self, broker: int = 0) -> Session:
        known = self._sessions.get(broker)
        if known is None or known.closed:
            known = self._sessions[broker] = self.cluster.session(broker)
        return known

    def send(self, api: ApiSchema, body: dict[str, Any], version: int | None = None, broker: int = 0) -> int:
        """Write a request; its correlation id. Without a version, the highest of the release."""
        if version is None:
            version = min(api.max_version, self.cluster.release.ranges[api.key][1])
        correlation_id = next(self._ids)
        self._sent[correlation_id] = (api, version)
        frame = frame_request(api, version, correlation_id, "wire", encode_request_body(api, version, body))
        self.session(broker).feed(b"".join(frame), self.now)
        return correlation_id

    def answers(self, broker: int = 0) -> dict[int, dict[str, Any]]:
        """What has been answered by now, in order, by correlation id."""
        found = {}
        for data in self._sessions[broker].output(self.now):
            (frame,) = FrameReader(1 << 30).feed(data)
            correlation_id = int.from_bytes(frame[:4], "big")
            api, version = self._sent.pop(correlation_id)
            _, body = parse_response_header(api, version, frame)
            found[correlation_id] = decode_response_body(api, version, body)
        return found

    def call(
        self, api: ApiSchema, body: dict[str, Any], version: int | None = None, broker: int = 0
    ) -> dict[str, Any]:
        """Write a request and read its answer, which must be there at once."""
        correlation_id = self.send(api, body, version, broker)
        return self.answers(broker)[correlation_id]

    # ---- shorter forms

    def produce(
        self,
        records: bytes | None,
        *,
        topic: str = "t",
        partition: int = 0,
        version: int | None = None,
        broker: int = 0,
        **options: Any,
    ) -> dict[str, Any]:
        """Produce to one partition; its row of the answer."""
        body = produce_body(self.cluster, records, topic, partition, **options)
        answer = self.call(PRODUCE, body, version, broker)
        return answer["responses"][0]["partition_responses"][0]

    def init(self, transactional_id: str | None = "x", timeout_ms: int = 60_000, **fields: Any) -> Producer:
        answer = self.call(
            INIT_PRODUCER_ID,
            {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms} | fields,
        )
        assert answer["error_code"] == 0, answer
        return Producer(answer["producer_id"], answer["producer_epoch"])

    def add(self, producer: Producer, partition: int = 0, topic: str = "t", version: int = 3) -> int:
        answer = self.call(
            ADD_PARTITIONS_TO_TXN,
            {
                "v3_and_below_transactional_id": "x",
                "v3_and_below_producer_id": producer.id,
                "v3_and_below_producer_epoch": producer.epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
            },
            version,
        )
        return answer["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"]

    def end(self, producer: Producer, commit: bool, version: int) -> tuple[int, Producer]:
        answer = self.call(
            END_TXN,
            {
                "transactional_id": "x",
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "committed": commit,
            },
            version,
        )
        return answer["error_code"], Producer(answer["producer_id"], answer["producer_epoch"])

    def describe(self, transactional_id: str = "x") -> dict[str, Any]:
        answer = self.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": [transactional_id]})
        return answer["transaction_states"][0]

    def fetch(
        self, offset: int = 0, *, committed: bool = True, version: int = 12, **options: Any
    ) -> dict[str, Any]:
        answer = self.call(FETCH, fetch_body(self.cluster, offset, committed=committed, **options), version)
        return answer["responses"][0]["partitions"][0]


def produce_body(
    cluster: FakeCluster,
    records: bytes | None,
    topic: str = "t",
    partition: int = 0,
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int = 1000,
) -> dict[str, Any]:
    known = cluster.topics.by_name(topic)
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [
            {
                "name": topic,
                "topic_id": known.topic_id if known else b"\x01" * 16,
                "partition_data": [{"index": partition, "records": records}],
            }
        ],
    }


def fetch_body(
    cluster: FakeCluster,
    offset: int,
    *,
    committed: bool = True,
    topic: str = "t",
    partition: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    known = cluster.topics.by_name(topic)
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    row |= {"current_leader_epoch": fields.pop("leader_epoch", -1)}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "isolation_level": int(committed),
        "topics": [
            {"topic": topic, "topic_id": known.topic_id if known else b"\x01" * 16, "partitions": [row]}
        ],
    } | fields
