# SPDX-License-Identifier: Apache-2.0
"""A client that writes raw requests to one broker and remembers every answer, for the suite that asks two of them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from testing.wire import Producer, batch

from penstock.protocol._framing_cy import FrameReader, frame_request, parse_response_header
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from penstock.protocol.schema import ApiSchema
from penstock.testing import Code

SECONDS = 60.0
V1, V2 = 3, 5  # versions of EndTxn that stand for the two protocols of transactions
CLOSED = {"connection": "closed"}

Body = dict[str, Any]

# What a broker that has just started, or is still at work on the request before, may say to any request. It is asked
# again, and only what it says in the end counts; a case that is about such an error says so with `expecting`.
PATIENCE = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        # For a moment a broker is named as coordinator before it has read the log that makes it one.
        Code.NOT_COORDINATOR,
        # How Produce tells versions before 12 that the coordinator is busy.
        Code.NOT_ENOUGH_REPLICAS,
        Code.CONCURRENT_TRANSACTIONS,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.UNKNOWN_TOPIC_ID,
    }
)


class Call(NamedTuple):
    """A request and its answer."""

    api: ApiSchema
    version: int
    request: Body
    answer: Body


@dataclass(frozen=True)
class Names:
    """What a case calls its things. Both clusters get the same names, so that answers may be compared with them."""

    topic: str
    transactional_id: str
    group: str
    now_ms: int


class Raw:
    """One connection, one request at a time.

    Attributes:
        calls: what was asked and answered, oldest first, without answers that were not final.
    """

    def __init__(self, address: str, names: Names) -> None:
        self._address = address
        self._sock = self._connect()
        self._next_id = 0
        self._expected: frozenset[int] = frozenset()
        self.calls: list[Call] = []
        self.names = names
        self.topic = names.topic
        self.id = names.transactional_id
        self.group = names.group
        self.topic_id = b""

    def close(self) -> None:
        self._sock.close()

    def _connect(self) -> socket.socket:
        host, port = self._address.split(":")
        return socket.create_connection((host, int(port)), SECONDS)

    # ---- asking

    @contextlib.contextmanager
    def expecting(self, *codes: Code) -> Iterator[None]:
        """Take these errors as final answers."""
        before, self._expected = self._expected, self._expected | set(codes)
        yield
        self._expected = before

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Forget the answers: what is asked is no part of the case."""
        count = len(self.calls)
        yield
        del self.calls[count:]

    def call(
        self,
        api: ApiSchema,
        body: Body,
        version: int | None = None,
        *,
        until: Callable[[Body], bool] = lambda _: True,
        only: Callable[[Body], Body] = lambda answer: answer,
    ) -> Body:
        """Ask until the answer is final.

        Args:
            until: whether an answer without an error is final.
            only: leaves out what belongs to others on a cluster that is shared.
        """
        version = api.max_version if version is None else version
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self._ask(api, version, body)
            if not error_codes(answer) & (PATIENCE - self._expected) and until(answer):
                break
            assert time.monotonic() < deadline, f"{api.name} v{version} is still answered {answer}"
            # Other cases wait for the same broker on a machine that may have little to spare.
            threading.Event().wait(0.005)
        answer = only(answer)
        self.calls.append(Call(api, version, body, answer))
        return answer

    def _ask(self, api: ApiSchema, version: int, body: Body) -> Body:
        self._next_id += 1
        frame = frame_request(api, version, self._next_id, "raw", encode_request_body(api, version, body))
        self._sock.sendall(b"".join(frame))
        return self._receive(api, version)

    def _receive(self, api: ApiSchema, version: int) -> Body:
        reader = FrameReader(1 << 26)
        frames: list[Any] = []
        while not frames:
            try:
                data = self._sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                self._sock.close()
                self._sock = self._connect()
                return CLOSED
            frames = reader.feed(data)
        _, rest = parse_response_header(api, version, frames[0])
        return decode_response_body(api, version, rest)

    def ask_version(self, api: ApiSchema, version: int, content: bytes) -> Body:
        """Ask in a version for which there is no schema, and read the answer as one of version 0."""
        self._next_id += 1
        header = b"".join(
            (
                api.key.to_bytes(2, "big"),
                version.to_bytes(2, "big"),
                self._next_id.to_bytes(4, "big"),
                b"\0\3raw\0",
            )
        )
        self._sock.sendall((len(header) + len(content)).to_bytes(4, "big") + header + content)
        answer = self._receive(api, 0)
        self.calls.append(Call(api, version, {}, answer))
        return answer

    # ---- topics

    def make_topic(self, suffix: str = "", **configs: str) -> None:
        """Make a topic and use it from now on. None of that is recorded."""
        name = self.names.topic + suffix
        self.make_topics([name], **configs)
        self.use_topic(name)

    def make_topics(self, names: Sequence[str], **configs: str) -> None:
        """Make topics of two partitions, and wait until their leader knows of them."""
        # Records with old timestamps would be deleted in the middle of a case.
        configs = {"retention_ms": "-1"} | configs
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topics = [
            {"name": name, "num_partitions": 2, "replication_factor": 1, "configs": rows} for name in names
        ]
        wanted = [{"partition_index": index, "timestamp": -1} for index in (0, 1)]
        with self.unrecorded():
            answer = self.call(CREATE_TOPICS, {"topics": topics})
            assert error_codes(answer) == set()
            self.call(LIST_OFFSETS, {"topics": [{"name": name, "partitions": wanted} for name in names]})

    def use_topic(self, name: str) -> None:
        """Turn to a topic that is there."""
        self.topic = name
        with self.unrecorded():
            self.topic_id = self.call(METADATA, {"topics": [{"name": name}]})["topics"][0]["topic_id"]

    def offset_at(
        self,
        timestamp: int,
        isolation: int = 0,
        partition: int = 0,
        version: int = 10,
        *,
        leader_epoch: int = -1,
    ) -> Body:
        rows = [
            {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": leader_epoch},
        ]
        body: Body = {"topics": [{"name": self.topic, "partitions": rows}]}
        if version >= 2:
            body["isolation_level"] = isolation
        row: Body = self.call(LIST_OFFSETS, body, version)["topics"][0]["partitions"][0]
        return row

    # ---- records

    def batch(self, *args: Any, **options: Any) -> bytes:
        """A batch of the case's time. With an older one, a marker of now would begin a new segment of the log."""
        return batch(*args, **({"timestamp": self.names.now_ms} | options))

    def produce(
        self,
        data: bytes | None,
        version: int = 13,
        partition: int = 0,
        *,
        txn: bool = False,
        acks: int = -1,
    ) -> int:
        """Produce to one partition; the error code."""
        body = {
            "transactional_id": self.id if txn else None,
            "acks": acks,
            "timeout_ms": 10_000,
            "topic_data": [
                {
                    "name": self.topic,
                    "topic_id": self.topic_id,
                    "partition_data": [{"index": partition, "records": data}],
                }
            ],
        }
        answer = self.call(PRODUCE, body, version)
        return -1 if answer is CLOSED else answer["responses"][0]["partition_responses"][0]["error_code"]

    def fetch(
        self,
        offset: int = 0,
        version: int = 17,
        *,
        committed: bool = False,
        partition: int = 0,
        leader_epoch: int = -1,
        **fields: Any,
    ) -> Body:
        row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        row |= {"current_leader_epoch": leader_epoch}
        body = {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "isolation_level": int(committed),
            "topics": [{"topic": self.topic, "topic_id": self.topic_id, "partitions": [row]}],
        }
        return self.call(FETCH, body | fields, version)

    def read(self) -> None:
        """Fetch the partition as both kinds of reader."""
        self.fetch(committed=True)
        self.fetch(committed=False)

    # ---- transactions

    def init(self, version: int | None = None, **fields: Any) -> Producer:
        body = {"transactional_id": self.id, "transaction_timeout_ms": 60_000} | fields
        answer = self.call(INIT_PRODUCER_ID, body, version)
        return Producer(answer["producer_id"], answer["producer_epoch"])

    def add(self, producer: Producer, *partitions: int, version: int = 3) -> None:
        body = {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": producer.id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": self.topic, "partitions": list(partitions or [0])}],
        }
        self.call(ADD_PARTITIONS_TO_TXN, body, version, only=_sorted_results)

    def write(self, protocol: int, producer: Producer, sequence: int = 0) -> int:
        """Produce a record of a transaction."""
        data = self.batch(1, producer, sequence, transactional=True)
        return self.produce(data, 11 if protocol == V1 else 13, txn=True)

    def begin(self, protocol: int, producer: Producer | None = None, sequence: int = 0) -> Producer:
        """Write a record in a transaction, by the rules of the protocol."""
        producer = producer or self.init()
        if protocol == V1:
            self.add(producer)
        assert self.write(protocol, producer, sequence) == 0
        return producer

    def end(self, producer: Producer, commit: bool, version: int) -> Body:
        body = {
            "transactional_id": self.id,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "committed": commit,
        }
        return self.call(END_TXN, body, version)

    def describe(self, *ids: str) -> Body:
        """Describe transactions, in a state that lasts."""
        return self.call(
            DESCRIBE_TRANSACTIONS,
            {"transactional_ids": list(ids or [self.id])},
            until=lambda answer: (
                not any(
                    row["transaction_state"].startswith("Prepare") for row in answer["transaction_states"]
                )
            ),
            only=_sorted_partitions,
        )


def _sorted_partitions(answer: Body) -> Body:
    """Kafka lists the partitions of a transaction in the order of a hash."""
    for row in answer["transaction_states"]:
        row["topics"].sort(key=lambda topic: topic["topic"])
        for topic in row["topics"]:
            topic["partitions"].sort()
    return answer


def _sorted_results(answer: Body) -> Body:
    """Kafka answers for partitions in the order of a hash."""
    for topic in answer["results_by_topic_v3_and_below"]:
        topic["results_by_partition"].sort(key=lambda row: row["partition_index"])
    return answer


def error_codes(answer: Any) -> set[int]:
    """Every error code in an answer."""
    if isinstance(answer, list):
        return set().union(*map(error_codes, answer))
    if not isinstance(answer, dict):
        return set()
    found = {value for key, value in answer.items() if key.endswith("error_code") and value}
    return found.union(*map(error_codes, answer.values()))
