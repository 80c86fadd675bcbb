# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need a real Spark: one session for the whole run, and ways to write and to read back.

What was written is read back by a consumer that is not ours, and that sees what is committed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import quick_java

from penstock.control import list_transactions
from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession

SOURCES = Path(__file__).resolve().parent.parent / "src"
_READ_SECONDS = 60.0


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark in this process, with two cores; a task may fail three times, as on a cluster."""
    from pyspark.sql import SparkSession

    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_LOCAL_IP")}
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or else workers are whatever python3 is on the PATH
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCES), *filter(None, [before["PYTHONPATH"]])])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()
        _end_gateway()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def shell_environment() -> dict[str, str]:
    """As in a shell where the package is installed; no Spark of the tests is in it."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    more = {"PYTHONPATH": str(SOURCES), "SPARK_LOCAL_IP": "127.0.0.1"}
    return mine | more | {quick_java.SPARK_VARIABLE: os.environ[quick_java.SPARK_VARIABLE]}


def _end_gateway() -> None:
    """End the JVM that pyspark started, so that nothing is left running, and no socket open."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway = SparkContext._gateway, None
    SparkContext._jvm = None
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)


@dataclass(frozen=True)
class ReadRecord:
    """A record as an independent consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def await_markers(servers: str) -> None:
    """Wait until what was decided can be seen: a commit is answered before its markers are in the partitions."""
    deadline = time.monotonic() + _READ_SECONDS
    while any(
        listing.state in ("PrepareCommit", "PrepareAbort")
        for listing in list_transactions({"bootstrap.servers": servers}, timeout=_READ_SECONDS)
    ):
        assert time.monotonic() < deadline, "markers of a transaction are still missing"


def read_committed(servers: str, topic: str) -> list[ReadRecord]:
    """All records of a topic that are committed, sorted by partition and offset.

    Reads up to where the last open transaction begins, so that it never waits for one to end.
    """
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    await_markers(servers)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads-back",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=_READ_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[ReadRecord] = []
        missing = set(partitions)
        while missing:
            message = consumer.poll(_READ_SECONDS)
            assert message is not None, f"nothing came of partitions {missing} of {topic}"
            if message.error() is None:
                found.append(_read_record(message))
            elif message.error().name() == "_PARTITION_EOF":
                missing.discard(message.partition())
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _read_record(message: Message) -> ReadRecord:
    return ReadRecord(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
    )


Write = Callable[..., None]
ReadBack = Callable[[str], list[ReadRecord]]


@pytest.fixture
def write(dev_cluster: DevCluster) -> Write:
    """Give a function that writes a DataFrame to ``dev_cluster``; keywords are options, `_` stands for a dot."""

    def write_frame(frame: DataFrame, **options: str) -> None:
        dotted = {name.replace("_", "."): value for name, value in options.items()}
        dotted.setdefault("kafka.bootstrap.servers", dev_cluster.bootstrap_servers)
        frame.write.format("penstock").mode("append").options(**dotted).save()

    return write_frame


@pytest.fixture
def read_back(dev_cluster: DevCluster) -> ReadBack:
    """Give a function that reads what is committed in a topic of ``dev_cluster``."""
    return lambda topic: read_committed(dev_cluster.bootstrap_servers, topic)
