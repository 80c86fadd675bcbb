# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need a real Apache Kafka: a cluster, topics, and ways to read back what was written.

What was written is read back with Kafka's own tools or with librdkafka, so that a mistake in this package cannot hide
itself.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Protocol

import pytest

from penstock.control import ControlClient, list_transactions
from penstock.control.steps import CoordinatorOf
from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM
from penstock.error_codes import ErrorCode
from penstock.protocol.messages import OFFSET_FETCH
from penstock.protocol.requests import CoordinatorKind, SchemaRequest

if TYPE_CHECKING:
    from confluent_kafka import Message

_CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_DUMP = "org.apache.kafka.tools.DumpLogSegments"
_IDLE_MS = 90_000  # a new broker that is busy takes its time for the first group
_READ_SECONDS = 60.0
# Tests write old records, which a broker would delete as soon as it looks.
_KEEP_ALL = {"retention.ms": -1}


class MakeTopic(Protocol):
    """Creates a topic and returns its name; ``min_insync_replicas=2`` stands for ``min.insync.replicas=2``."""

    def __call__(self, partitions: int = 1, **config: object) -> str: ...


@dataclass(frozen=True)
class ConsumedRecord:
    """A record as Kafka's console consumer shows it, to the byte."""

    partition: int
    offset: int
    timestamp_type: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Consume(Protocol):
    """Reads a topic from the beginning; with ``count``, waits until that many records are there.

    Without it, that is as many as librdkafka finds up to the end. Records come sorted by partition and offset.
    """

    def __call__(
        self, topic: str, *, count: int | None = None, isolation_level: str = "read_uncommitted"
    ) -> list[ConsumedRecord]: ...


@dataclass(frozen=True)
class LoggedRecord:
    """One record of a batch in a log file; sizes are -1 for null."""

    offset: int
    timestamp_ms: int
    key_size: int
    value_size: int
    sequence: int


@dataclass(frozen=True)
class LoggedBatch:
    """One batch in a log file as Kafka's log dump shows it; ``fields`` has everything that it printed."""

    base_offset: int
    count: int
    codec: str
    magic: int
    is_valid: bool
    is_transactional: bool
    is_control: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    fields: Mapping[str, str]
    records: list[LoggedRecord] = field(default_factory=list)


class DumpLog(Protocol):
    """Reads the batches of a partition from the log files of a broker."""

    def __call__(
        self, topic: str, partition: int = 0, *, node_id: int | None = None
    ) -> list[LoggedBatch]: ...


@pytest.fixture(scope="session")
def dev_cluster() -> Iterator[DevCluster]:
    """One broker for the whole run. Tests that stop, kill or pause brokers start a cluster of their own."""
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(dev_cluster: DevCluster) -> MakeTopic:
    """Give a function that makes topics with names of their own in ``dev_cluster``."""

    def make_topic(partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        dev_cluster.create_topic(name, partitions, config=_KEEP_ALL | dotted)
        return name

    return make_topic


@pytest.fixture
def consume(dev_cluster: DevCluster) -> Consume:
    """Give a function that reads a topic of ``dev_cluster`` with Kafka's console consumer."""

    def consume_topic(
        topic: str, *, count: int | None = None, isolation_level: str = "read_uncommitted"
    ) -> list[ConsumedRecord]:
        return consume_from(dev_cluster, topic, count=count, isolation_level=isolation_level)

    return consume_topic


@pytest.fixture
def dump_log(dev_cluster: DevCluster) -> DumpLog:
    """Give a function that reads the log files of ``dev_cluster``."""

    def dump_partition(topic: str, partition: int = 0, *, node_id: int | None = None) -> list[LoggedBatch]:
        return dump_log_of(dev_cluster, topic, partition, node_id=node_id)

    return dump_partition


def end_offsets(cluster: DevCluster, topic: str) -> dict[int, int]:
    """Return the offset after the last record of each partition."""
    from confluent_kafka import Consumer, TopicPartition

    # Without this, an open transaction would hide what was written after it.
    isolation = {"isolation.level": "read_uncommitted"}
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ends", **isolation})
    try:
        partitions = reader.list_topics(topic, timeout=_READ_SECONDS).topics[topic].partitions
        return {
            number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_READ_SECONDS)[1]
            for number in sorted(partitions)
        }
    finally:
        reader.close()


def await_markers(servers: str) -> None:
    """Wait until what was decided can be seen: a commit is answered before its markers are in the partitions."""
    deadline = time.monotonic() + _READ_SECONDS
    while any(
        listing.state in ("PrepareCommit", "PrepareAbort")
        for listing in list_transactions({"bootstrap.servers": servers}, timeout=_READ_SECONDS)
    ):
        assert time.monotonic() < deadline, "markers of a transaction are still missing"


def read_to_the_end(servers: str, topic: str, isolation_level: str = "read_committed") -> list[Message]:
    """All records of a topic, read by librdkafka.

    Of those that are committed up to where the last open transaction begins, so that it never waits for one to end.
    """
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    if isolation_level == "read_committed":
        await_markers(servers)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads-back",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=_READ_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        missing = set(partitions)
        while missing:
            message = consumer.poll(_READ_SECONDS)
            assert message is not None, f"nothing came of partitions {missing} of {topic}"
            if message.error() is None:
                found.append(message)
            elif message.error().name() == "_PARTITION_EOF":
                missing.discard(message.partition())
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
    return found


def committed_position(cluster: DevCluster, group: str, topic: str, partition: int) -> int:
    """The offset up to which a group has committed a partition; -1 if it has not.

    The end of a transaction is acknowledged before the group's coordinator has its marker: until then it does not know.
    """
    topics = [{"name": topic, "partition_indexes": [partition]}]
    body = {"groups": [{"group_id": group, "topics": topics}], "require_stable": True}
    deadline = time.monotonic() + _READ_SECONDS
    with ControlClient({"bootstrap.servers": cluster.bootstrap_servers}) as client:
        while True:
            answer = client.request(
                CoordinatorOf(group, CoordinatorKind.GROUP), SchemaRequest.of(OFFSET_FETCH, body, 8, 9)
            )
            (found,) = answer["groups"][0]["topics"][0]["partitions"]
            if found["error_code"] != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                break
            assert time.monotonic() < deadline, "the transaction did not end"
            time.sleep(0.02)
    assert found["error_code"] == ErrorCode.NONE
    position: int = found["committed_offset"]
    return position


def consume_from(
    cluster: DevCluster, topic: str, *, count: int | None = None, isolation_level: str = "read_uncommitted"
) -> list[ConsumedRecord]:
    """Read a topic of any cluster; see ``Consume``."""
    if count is None:
        count = len(read_to_the_end(cluster.bootstrap_servers, topic, isolation_level))
    if count == 0:
        return []
    # Separators that no data holds, so that any bytes can stand between them.
    marks = RecordMarks.fresh()
    args = [
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--isolation-level", isolation_level),
        *("--timeout-ms", str(_IDLE_MS), "--max-messages", str(count)),
        *marks.options(),
    ]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            cluster.tool_command(_CONSOLE_CONSUMER, *args, jvm=QUICK_JVM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        )
        assert process.stdout is not None
        try:
            records = _read_all(process.stdout, marks)
            errors.seek(0)
            _check_consumer(process.wait(), errors.read().decode(errors="replace"), len(records), count)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


@dataclass(frozen=True)
class RecordMarks:
    """What stands between fields, between headers, between records, and for null in a consumer's output."""

    fields: bytes
    headers: bytes
    records: bytes
    null: bytes

    @classmethod
    def fresh(cls) -> RecordMarks:
        stem = secrets.token_hex(8)
        return cls(*(f"<{stem}-{letter}>".encode() for letter in "fhrn"))

    def options(self) -> list[str]:
        shown = dict.fromkeys(("timestamp", "partition", "offset", "headers", "key", "value"), "true")
        properties = {
            **{f"print.{name}": value for name, value in shown.items()},
            "key.separator": self.fields.decode(),
            "headers.separator": self.headers.decode(),
            "line.separator": self.records.decode(),
            "null.literal": self.null.decode(),
        }
        return [
            word for name, value in properties.items() for word in ("--formatter-property", f"{name}={value}")
        ]

    def parse(self, text: bytes) -> ConsumedRecord:
        timestamp, partition, offset, headers, key, value = text.split(self.fields)
        timestamp_type, _, timestamp_ms = timestamp.decode().partition(":")
        return ConsumedRecord(
            partition=int(partition.removeprefix(b"Partition:")),
            offset=int(offset.removeprefix(b"Offset:")),
            timestamp_type=timestamp_type,
            timestamp_ms=int(timestamp_ms or -1),
            key=self._bytes(key),
            value=self._bytes(value),
            headers=() if headers == b"NO_HEADERS" else tuple(map(self._header, headers.split(self.headers))),
        )

    def _header(self, text: bytes) -> tuple[str, bytes | None]:
        # The tool writes "key:value"; a key with a colon in it cannot be told apart.
        name, _, value = text.partition(b":")
        return name.decode(), self._bytes(value)

    def _bytes(self, text: bytes) -> bytes | None:
        return None if text == self.null else text


def _check_consumer(exit_code: int, errors: str, found: int, wanted: int) -> None:
    """Fail unless the consumer ended because it had all."""
    assert exit_code == 0 or "TimeoutException" in errors, errors
    assert found == wanted, f"{found} records instead of {wanted}\n{errors}"


def _read_all(stream: IO[bytes], marks: RecordMarks) -> list[ConsumedRecord]:
    """The records of a stream that ends."""
    *whole, _ = stream.read().split(marks.records)
    return [marks.parse(text) for text in whole]


def dump_log_of(
    cluster: DevCluster, topic: str, partition: int = 0, *, node_id: int | None = None
) -> list[LoggedBatch]:
    """Read the log files of a partition, at ``node_id`` or at any node that has it."""
    folders = [path for node, path in cluster.log_dirs().items() if node_id in (None, node)]
    names = [name for path in folders for name in sorted((path / f"{topic}-{partition}").glob("*.log"))]
    assert names, f"no node holds {topic}-{partition}"
    held = [name for name in names if name.parent == names[0].parent]
    done = cluster.run_tool(_DUMP, "--deep-iteration", "--files", ",".join(map(str, held)), jvm=QUICK_JVM)
    assert done.returncode == 0, done.stderr
    return parse_dump(done.stdout)


def parse_dump(text: str) -> list[LoggedBatch]:
    """Read what the log dump printed."""
    batches: list[LoggedBatch] = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+): (\S+)", line))
        if line.startswith("baseOffset:"):
            batches.append(_logged_batch(fields))
        elif line.startswith("| offset:"):
            batches[-1].records.append(_logged_record(fields))
    return batches


def _logged_batch(fields: Mapping[str, str]) -> LoggedBatch:
    return LoggedBatch(
        base_offset=int(fields["baseOffset"]),
        count=int(fields["count"]),
        codec=fields["compresscodec"],
        magic=int(fields["magic"]),
        is_valid=fields["isvalid"] == "true",
        is_transactional=fields["isTransactional"] == "true",
        is_control=fields["isControl"] == "true",
        producer_id=int(fields["producerId"]),
        producer_epoch=int(fields["producerEpoch"]),
        base_sequence=int(fields["baseSequence"]),
        fields=fields,
    )


def _logged_record(fields: Mapping[str, str]) -> LoggedRecord:
    return LoggedRecord(
        offset=int(fields["offset"]),
        timestamp_ms=int(fields.get("CreateTime", fields.get("LogAppendTime", "-1"))),
        key_size=int(fields["keySize"]),
        value_size=int(fields["valueSize"]),
        sequence=int(fields["sequence"]),
    )
