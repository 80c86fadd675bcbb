# SPDX-License-Identifier: Apache-2.0
"""The fake cluster and Apache Kafka, asked the same: the answers must be the same, to the error code.

Each scenario is a function that talks raw requests and gives what it was told; it runs against both.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testing.apis.test_produce import NO_BATCH, SEQUENCES
from testing.wire import Producer, batch

from penstock.devbroker import DevCluster
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.framing import FrameReader, frame_request, parse_response_header
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.records.reader import read_batches
from penstock.testing import Code, FakeKafka

pytestmark = pytest.mark.broker

SECONDS = 30.0
PATIENCE = (
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    # For a moment a broker is named as coordinator before it has read the log that makes it one.
    Code.NOT_COORDINATOR,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.NOT_LEADER_OR_FOLLOWER,
)
# What the fake refuses and Kafka repairs, ignores or tells otherwise (see penstock.testing.batches); and null records,
# to which Kafka never answers.
STRICTER = {"unknown bit", "largest timestamp", "broker's time", "codec 6", "null"}


class Raw:
    """One connection, one request at a time, one topic and one transactional id of its own."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._sock = socket.create_connection((host, int(port)), SECONDS)
        self._next_id = 0
        self.topic = f"t-{uuid.uuid4().hex[:10]}"
        self.id = f"x-{uuid.uuid4().hex[:10]}"
        self.group = f"g-{uuid.uuid4().hex[:10]}"
        self.topic_id = b""
        assert self.make_topic(self.topic) == [0]
        for key_type, key in ((1, self.id), (0, self.group)):
            body = {"coordinator_keys": [key], "key_type": key_type}
            self.until_settled(lambda body=body: self.call(FIND_COORDINATOR, body)["coordinators"][0])

    def close(self) -> None:
        self._sock.close()

    def call(self, api: ApiSchema, body: dict[str, Any], version: int | None = None) -> dict[str, Any]:
        version = api.max_version if version is None else version
        self._next_id += 1
        frame = frame_request(api, version, self._next_id, "raw", encode_request_body(api, version, body))
        self._sock.sendall(b"".join(frame))
        reader = FrameReader(1 << 26)
        frames: list[Any] = []
        while not frames:
            data = self._sock.recv(1 << 16)
            assert data, "the connection was closed"
            frames = reader.feed(data)
        _, rest = parse_response_header(api, version, frames[0])
        return decode_response_body(api, version, rest)

    def until_settled(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Ask again while the answer is that it takes a moment."""
        deadline = time.monotonic() + SECONDS
        while (answer := ask())["error_code"] in PATIENCE:
            assert time.monotonic() < deadline
        return answer

    # ---- requests

    def make_topic(self, name: str, **configs: str) -> list[int]:
        """Make a topic, use it from now on, and wait until its leader knows of it."""
        self.topic = name
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        codes = self.create({"configs": rows})
        for partition in (0, 1):
            self.until_settled(lambda partition=partition: self.offset_at(-1, 0, partition))
        self.topic_id = self.call(METADATA, {"topics": [{"name": name}]})["topics"][0]["topic_id"]
        return codes

    def offset_at(self, timestamp: int, isolation: int = 0, partition: int = 0) -> dict[str, Any]:
        partitions = [{"partition_index": partition, "timestamp": timestamp}]
        body = {"isolation_level": isolation, "topics": [{"name": self.topic, "partitions": partitions}]}
        row: dict[str, Any] = self.call(LIST_OFFSETS, body)["topics"][0]["partitions"][0]
        return row

    def create(self, fields: dict[str, Any], *, validate_only: bool = False) -> list[int]:
        row = {"name": self.topic, "num_partitions": 2, "replication_factor": 1} | fields
        rows = self.call(CREATE_TOPICS, {"topics": [row], "validate_only": validate_only})["topics"]
        return [each["error_code"] for each in rows]

    def produce(
        self, data: bytes | None, version: int = 13, partition: int = 0, *, txn: bool = False
    ) -> tuple[int, int]:
        body = {
            "transactional_id": self.id if txn else None,
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": [
                {
                    "name": self.topic,
                    "topic_id": self.topic_id,
                    "partition_data": [{"index": partition, "records": data}],
                }
            ],
        }
        row = self.call(PRODUCE, body, version)["responses"][0]["partition_responses"][0]
        return row["error_code"], row["base_offset"]

    def init(self, version: int | None = None, **fields: Any) -> tuple[int, Producer]:
        body = {"transactional_id": self.id, "transaction_timeout_ms": 60_000} | fields
        answer = self.call(INIT_PRODUCER_ID, body, version)
        return answer["error_code"], Producer(answer["producer_id"], answer["producer_epoch"])

    def settled_init(self) -> Producer:
        deadline = time.monotonic() + SECONDS
        while (answer := self.init())[0] in PATIENCE:
            assert time.monotonic() < deadline
        assert answer[0] == 0
        return answer[1]

    def add(self, producer: Producer, partition: int = 0, version: int = 3) -> int:
        body = {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": producer.id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": self.topic, "partitions": [partition]}],
        }
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.call(ADD_PARTITIONS_TO_TXN, body, version)["results_by_topic_v3_and_below"]
            code: int = answer[0]["results_by_partition"][0]["partition_error_code"]
            if code not in PATIENCE:
                return code
            assert time.monotonic() < deadline

    def end(self, producer: Producer, commit: bool, version: int) -> tuple[int, int, int]:
        """The error, by how much the producer id changed, and by how much the epoch did."""
        body = {
            "transactional_id": self.id,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "committed": commit,
        }
        answer = self.until_settled(lambda: self.call(END_TXN, body, version))
        if answer["producer_id"] < 0:
            return answer["error_code"], 0, 0
        return (
            answer["error_code"],
            int(answer["producer_id"] != producer.id),
            answer["producer_epoch"] - producer.epoch,
        )

    def describe(self) -> dict[str, Any]:
        return self.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": [self.id]})["transaction_states"][0]

    def settled_state(self) -> str:
        deadline = time.monotonic() + SECONDS
        while (state := self.describe()["transaction_state"]).startswith("Prepare"):
            assert time.monotonic() < deadline
        return str(state)

    def read(self, *, committed: bool) -> list[Any]:
        """What the batches are, the aborted transactions, and the two ends of what can be read."""
        batches: list[Any] = []
        aborted: set[int] = set()
        offset = 0
        # A fetch ends with a segment of the log, so it takes several.
        while True:
            row = self.fetch(offset, committed=committed)
            found = list(read_batches(row["records"], allow_partial=True))
            if not found:
                return [batches, sorted(aborted), row["high_watermark"], row["last_stable_offset"]]
            aborted.update(each["first_offset"] for each in row["aborted_transactions"] or ())
            batches += [
                (
                    each.base_offset,
                    each.records_count,
                    each.is_control,
                    each.producer_epoch,
                    each.base_sequence,
                )
                for each in found
            ]
            offset = found[-1].last_offset + 1

    def fetch(self, offset: int, *, committed: bool) -> dict[str, Any]:
        body = {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "isolation_level": int(committed),
            "topics": [
                {
                    "topic": self.topic,
                    "topic_id": self.topic_id,
                    "partitions": [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}],
                }
            ],
        }
        row: dict[str, Any] = self.call(FETCH, body)["responses"][0]["partitions"][0]
        return row


Scenario = Callable[[Raw], Any]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(release="4.3") as running:
        yield running


@pytest.fixture
def same(dev_cluster: DevCluster, fake: FakeKafka) -> Iterator[Callable[[Scenario], None]]:
    """Give a function that runs a scenario against both, and compares."""
    connections: list[Raw] = []

    def run(scenario: Scenario) -> None:
        results = []
        for address in (dev_cluster.bootstrap_servers, fake.bootstrap_servers):
            connections.append(Raw(address.split(",")[0]))
            results.append(scenario(connections[-1]))
        real, ours = results
        assert ours == real, f"\nKafka {real}\nours  {ours}"

    yield run
    for connection in connections:
        connection.close()


Same = Callable[[Scenario], None]

# ------------------------------------------------------------------------------------------------ Produce


@pytest.mark.parametrize("name", [row[0] for row in NO_BATCH if row[0] not in STRICTER])
def test_what_is_no_batch(same: Same, name: str) -> None:
    data = next(row[1] for row in NO_BATCH if row[0] == name)
    same(lambda raw: [raw.produce(data), raw.produce(batch(2)), raw.read(committed=False)])


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(same: Same, name: str) -> None:
    def scenario(raw: Raw) -> Any:
        return [
            raw.produce(batch(count, producer, sequence))
            for (producer, sequence, count), _ in SEQUENCES[name]
        ]

    same(scenario)


def test_zstd_in_old_versions(same: Same) -> None:
    data = batch(compression="zstd")
    same(lambda raw: [raw.produce(data, version) for version in (6, 7, 13)])


def test_topic_settings(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        results = []
        for configs in (
            {"max_message_bytes": "200"},
            {"cleanup_policy": "compact"},
            {"message_timestamp_before_max_ms": "1000"},
        ):
            results.append(raw.make_topic(raw.topic + "x", **configs))
            results.append(raw.produce(batch([b"v" * 300])))
        return results

    same(scenario)


# ------------------------------------------------------------------------------------------------ transactions

V1, V2 = 3, 5
both = pytest.mark.parametrize("version", [V1, V2])


def begin(raw: Raw, version: int, producer: Producer | None = None, sequence: int = 0) -> Producer:
    """Write a record in a transaction, by the rules of the protocol."""
    producer = producer or raw.settled_init()
    if version == V1:
        assert raw.add(producer) == 0
    code, _ = write(raw, version, producer, sequence)
    assert code == 0
    return producer


def write(raw: Raw, version: int, producer: Producer, sequence: int = 0) -> tuple[int, int]:
    data = batch(1, producer, sequence, transactional=True)
    deadline = time.monotonic() + SECONDS
    while (answer := raw.produce(data, 11 if version == V1 else 13, txn=True))[0] in PATIENCE:
        assert time.monotonic() < deadline
    return answer


@both
@pytest.mark.parametrize("ends", ["CC", "CA", "AA", "AC", "CCC"])
def test_ends(same: Same, version: int, ends: str) -> None:
    def scenario(raw: Raw) -> Any:
        producer = begin(raw, version)
        answers = [raw.end(producer, end == "C", version) for end in ends]
        return answers, raw.settled_state(), raw.read(committed=True), raw.read(committed=False)

    same(scenario)


@both
def test_ends_of_nothing(same: Same, version: int) -> None:
    def scenario(raw: Raw) -> Any:
        producer = raw.settled_init()
        commit = raw.end(producer, True, version)
        abort = raw.end(producer, False, version)
        return commit, abort, raw.settled_state(), raw.read(committed=True)

    same(scenario)


@both
def test_fencing(same: Same, version: int) -> None:
    def scenario(raw: Raw) -> Any:
        producer = begin(raw, version)
        first, _ = raw.init()
        fresh_one = raw.settled_init()
        return (
            first,
            fresh_one.epoch,
            raw.end(producer, True, version),
            write(raw, version, producer, 1),
            raw.add(producer),
            raw.read(committed=True),
        )

    same(scenario)


@both
def test_next_transaction_and_the_old_end(same: Same, version: int) -> None:
    def scenario(raw: Raw) -> Any:
        producer = begin(raw, version)
        first = raw.end(producer, True, version)
        raw.settled_state()
        following = producer.bumped() if version == V2 else producer
        begin(raw, version, following, 0 if version == V2 else 1)
        return first, raw.end(producer, True, version), raw.settled_state(), raw.read(committed=True)

    same(scenario)


def test_mixed_versions(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        producer = begin(raw, V2)
        first = raw.end(producer, True, V1)
        raw.settled_state()
        second = raw.end(producer, False, V2)
        raw.settled_state()
        return first, second, raw.end(producer, True, V1)

    same(scenario)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_partition_that_was_not_added(same: Same, version: int) -> None:
    def scenario(raw: Raw) -> Any:
        producer = raw.settled_init()
        answer = raw.produce(batch(1, producer, transactional=True), version, txn=True)
        return answer, raw.describe()["transaction_state"]

    same(scenario)


def test_strangers(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        producer = raw.settled_init()
        stranger = Producer(producer.id + 1_000_000, 0)
        results: list[Any] = [raw.add(stranger), raw.end(stranger, True, V1), raw.end(stranger, True, V2)]
        results.append(raw.produce(batch(1, stranger, transactional=True), 13, txn=True)[0])
        results.append(raw.produce(batch(1, producer, transactional=True), 13)[0])
        begin(raw, V2, producer)
        results.append(raw.produce(batch(1, producer, 1), 13)[0])
        ahead = producer.bumped(3)
        return [*results, raw.add(ahead), raw.end(ahead, True, V1), raw.end(ahead, True, V2)]

    same(scenario)


def test_first_sequence_in_the_second_protocol(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        producer = raw.settled_init()
        return [write(raw, V2, producer, sequence) for sequence in (3, 0, 1, 1)]

    same(scenario)


def test_initialising(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        first = raw.settled_init()
        named = {"producer_id": first.id, "producer_epoch": first.epoch}
        results: list[Any] = [raw.init(**named)[1].epoch, raw.init(**named)[1].epoch]
        raw.settled_init()
        results += [raw.init(version, **named)[0] for version in (3, 4)]
        results += [raw.init(producer_id=first.id + 1_000_000, producer_epoch=1)[0]]
        results += [raw.init(**fields)[0] for fields in ({"producer_id": 5}, {"producer_epoch": 5})]
        results += [raw.init(transaction_timeout_ms=limit)[0] for limit in (0, -1, 900_001)]
        return [*results, raw.init(transactional_id="")[0], raw.init(transactional_id=None)[1].epoch]

    same(scenario)


def test_describing_and_listing(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        unknown = raw.describe()
        begin(raw, V2)
        described = raw.describe()
        (topic,) = described["topics"]
        rows = [
            raw.call(LIST_TRANSACTIONS, filters)
            for filters in (
                {"transactional_id_pattern": raw.id},
                {"transactional_id_pattern": raw.id[:-1]},
                {"transactional_id_pattern": "("},
                {"transactional_id_pattern": raw.id, "state_filters": ["Empty", "Nonsense"]},
            )
        ]
        listed = [
            (
                row["error_code"],
                [each["transaction_state"] for each in row["transaction_states"]],
                row["unknown_state_filters"],
            )
            for row in rows
        ]
        return (
            unknown["error_code"],
            described["transaction_state"],
            described["transaction_timeout_ms"],
            described["producer_epoch"],
            topic["partitions"],
            listed,
        )

    same(scenario)


# ------------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("added", [True, False])
def test_offsets_in_transactions(same: Same, version: int, added: bool) -> None:
    def scenario(raw: Raw) -> Any:
        producer = raw.settled_init()
        identity = {
            "transactional_id": raw.id,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "group_id": raw.group,
        }
        results: list[Any] = []
        if added:
            results.append(raw.call(ADD_OFFSETS_TO_TXN, identity)["error_code"])

        def commit(**fields: Any) -> list[int]:
            partitions = [
                {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"},
                {"partition_index": 1, "committed_offset": 8, "committed_metadata": "m" * 4097},
            ]
            body = identity | {"topics": [{"name": raw.topic, "partitions": partitions}]} | fields
            deadline = time.monotonic() + SECONDS
            while True:
                rows = raw.call(TXN_OFFSET_COMMIT, body, version)["topics"][0]["partitions"]
                codes = [row["error_code"] for row in rows]
                if not set(codes) & set(PATIENCE):
                    return codes
                assert time.monotonic() < deadline

        results += [commit(), commit(member_id="m", generation_id=1)]
        results.append(raw.end(producer, True, V2 if version == 5 else V1))
        raw.settled_state()
        wanted = {"group_id": raw.group, "topics": [{"name": raw.topic, "partition_indexes": [0, 1]}]}
        # Until the group's marker is applied, a reader that wants stability is told to come again.
        deadline = time.monotonic() + SECONDS
        while True:
            group = raw.call(OFFSET_FETCH, {"groups": [wanted], "require_stable": True})["groups"][0]
            rows = [(row["error_code"], row["committed_offset"]) for row in group["topics"][0]["partitions"]]
            if Code.UNSTABLE_OFFSET_COMMIT not in [code for code, _ in rows]:
                break
            assert time.monotonic() < deadline
        return [*results, rows]

    same(scenario)


# ------------------------------------------------------------------------------------------------ topics, offsets


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "a b"},
        {"name": ".."},
        {"name": "n", "num_partitions": 0},
        {"name": "n", "replication_factor": 4},
        {"name": "n", "assignments": [{"partition_index": 0, "broker_ids": [99]}]},
        {"name": "n", "configs": [{"name": "max.message.bytes", "value": "many"}]},
        {"name": "n", "configs": [{"name": "message.timestamp.type", "value": "Never"}]},
    ],
    ids=["exists", "name", "dots", "partitions", "replication", "both", "number", "choice"],
)
def test_refused_topics(same: Same, fields: dict[str, Any]) -> None:
    same(lambda raw: raw.create(fields, validate_only=True))


def test_metadata_of_what_is_not_there(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        by_name = [{"name": name} for name in ("a b", "..", f"missing-{raw.topic}")]
        by_id = [{"topic_id": b"\x07" * 16, "name": None}]
        answers = [
            raw.call(METADATA, {"topics": rows, "allow_auto_topic_creation": False})["topics"]
            for rows in (by_name, by_id)
        ]
        return [sorted((row["error_code"], row["name"] == "a b") for row in rows) for rows in answers]

    same(scenario)


def test_addresses_of_produce(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        results = [raw.produce(batch(), partition=9), raw.produce(batch(), 12, partition=9)]
        raw.topic_id, raw.topic = b"\x07" * 16, f"missing-{raw.topic}"
        return [*results, raw.produce(batch()), raw.produce(batch(), 12)]

    same(scenario)


def test_offsets(same: Same) -> None:
    def scenario(raw: Raw) -> Any:
        raw.produce(batch(3, timestamp=1000))
        raw.produce(batch(2, timestamp=2000))
        begin(raw, V2)

        rows = [
            raw.offset_at(timestamp, isolation)
            for timestamp in (-1, -2, 0, 1500, 2001)
            for isolation in (0, 1)
        ]
        return [(row["error_code"], row["offset"]) for row in rows]

    same(scenario)
