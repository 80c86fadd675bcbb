# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need a real Spark: one session for the whole run, and ways to write and to read back.

What was written is read back by a consumer that is not ours, and that sees what is committed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import quick_java
from fix_broker import read_to_the_end

from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession

SOURCES = Path(__file__).resolve().parent.parent / "src"


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


def read_committed(servers: str, topic: str) -> list[ReadRecord]:
    """All records of a topic that are committed, sorted by partition and offset."""
    found = [_read_record(message) for message in read_to_the_end(servers, topic)]
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
