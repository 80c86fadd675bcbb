# SPDX-License-Identifier: Apache-2.0
"""The user's program: a process with a Spark session that runs one job for each line it reads, and says how it ended.

Run as `python -m spark.faults.server MASTER`. It is a process of its own so that its Java process can be killed. Rows
are lines of text files; each file is one task, and each number of files one micro-batch.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from spark.faults.rules import Marks

# Each file a task of its own: none is larger, and opening one costs as much as a whole task may hold.
TASK_BYTES = 64 * 1024

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # For a few hundred rows, compiling each query costs more than it gives.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.files.maxPartitionBytes": str(TASK_BYTES),
    "spark.sql.files.openCostInBytes": str(TASK_BYTES),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.sql.streaming.stopTimeout": "10s",
    # A task that was given up lives until a test has seen what it does; Spark kills its worker after two seconds.
    "spark.python.task.killTimeout": "300s",
    "spark.sql.streaming.pollingDelay": "10ms",
}


def session(master: str, more: dict[str, str]) -> SparkSession:
    """Start Spark, and return its session."""
    builder = SparkSession.builder.master(master).appName("faults")
    for name, value in (SETTINGS | more).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(lines: DataFrame) -> DataFrame:
    """A line names its row: the last word is its number, which decides the Kafka partition."""
    return lines.selectExpr(
        "value", "value as key", "cast(element_at(split(value, ' '), -1) as int) % 2 as partition"
    )


def run(spark: SparkSession, job: dict[str, Any]) -> None:
    """Run one job to its end."""
    options = job["options"]
    if job["kind"] == "batch":
        lines = spark.read.text(job["input"])
        writer = rows(lines).write.format("penstock").options(**options).mode("append")
        with cancelled_at(spark, job.get("stop_at")):
            writer.save()
        return
    lines = spark.readStream.option("maxFilesPerTrigger", job["files_per_batch"]).text(job["input"])
    query = (
        rows(lines)
        .writeStream.format(job.get("format", "penstock"))
        .options(**options)
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    if "stop_at" in job:
        Marks.of_this_process().wait(job["stop_at"])
        query.stop()
    else:
        query.awaitTermination()


@contextmanager
def cancelled_at(spark: SparkSession, mark: str | None) -> Iterator[None]:
    """Cancel what the block runs when the mark is there, as Ctrl-C does."""
    if mark is None:
        yield
        return
    marks = Marks.of_this_process()

    def cancel() -> None:
        marks.wait(mark)
        spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    yield
    canceller.join()


def main() -> None:
    spark = session(sys.argv[1], json.loads(sys.argv[2]))
    answer({"java": spark.sparkContext._gateway.proc.pid})
    for line in sys.stdin:
        try:
            run(spark, json.loads(line))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
        else:
            answer({"error": None})
    spark.stop()


def answer(row: dict[str, Any]) -> None:
    os.write(_ANSWERS, (json.dumps(row) + "\n").encode())


if __name__ == "__main__":
    # Java inherits standard output and may write to it; answers go where only this process writes.
    _ANSWERS = os.dup(1)
    os.dup2(2, 1)
    main()
