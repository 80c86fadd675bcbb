# SPDX-License-Identifier: Apache-2.0
"""A Python worker's memory is bounded, whatever the size of its partition."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from fix_broker import MakeTopic
from fix_spark import Write

from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"),
]

MIB = 1 << 20
BUFFER_MEMORY = 32 * MIB
ROWS, ROW_BYTES = 1_000_000, 300


def peak_memory(spark: SparkSession) -> int:
    """The largest that any Python worker of a session has ever been, in bytes."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    peaks = [0]
    for process in jvm.children(recursive=True):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue  # it has just ended
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            peaks.append(int(found.group(1)) * 1024)
    return max(peaks)


def test_a_partition_larger_than_the_bound_passes_below_it(
    spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, write: Write
) -> None:
    name = topic(2, retention_bytes=64 * MIB, segment_bytes=16 * MIB)
    frame = spark.range(0, ROWS, 1, 1).selectExpr(
        f"CAST(rpad(CAST(id AS STRING), {ROW_BYTES}, 'x') AS BINARY) AS value"
    )
    write(frame, topic=name, kafka_buffer_memory=str(BUFFER_MEMORY))
    bound = BUFFER_MEMORY + 150 * MIB
    if find_spec("pandas") is not None:
        bound += (
            50 * MIB
        )  # Arrow brings it into Spark's workers wherever it is installed; nothing here needs it
    assert bound < ROWS * ROW_BYTES, "the partition must be larger than what may be in memory"
    assert 30 * MIB < peak_memory(spark) < bound
