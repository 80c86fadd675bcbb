# SPDX-License-Identifier: Apache-2.0
"""The program that is measured: one Spark session, and a job for every line on its standard input.

It is run by the environment with Spark, and imports neither Penstock nor anything of the other benchmarks. The first
argument is JSON: the session's settings, and the sink. When the session stands it prints a line, and after that one for
each job. At the end of its input it stops.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWER = "@answer "  # Spark may print lines of its own
TASKS = 4
_VALUE = "00" * 100  # hexadecimal: 100 bytes


def main() -> None:
    """Make the session, do the jobs."""
    told = json.loads(sys.argv[1])
    spark = make_session(told["settings"])
    _answer({"spark": spark.version})
    for line in sys.stdin:
        _answer(run_job(spark, told["sink"], json.loads(line)))
    spark.stop()


def make_session(settings: dict[str, str]) -> SparkSession:
    """A session with these settings."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def make_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Keys of 7 digits, as a string, and values of 100 bytes. Making them costs a twentieth of sending them."""
    return spark.range(0, rows, 1, TASKS).selectExpr(
        "cast(1000000 + id % 9000000 as string) as key", f"X'{_VALUE}' as value"
    )


def run_job(spark: SparkSession, sink: dict[str, Any], job: dict[str, Any]) -> dict[str, float]:
    """Write so many rows, and say how long that took."""
    if sink["format"] == "bench-counting":
        from bench.spark.counting_sink import CountingSource

        spark.dataSource.register(CountingSource)
    options = {**sink["options"], **job["options"]}
    writer = make_rows(spark, job["rows"]).write.format(sink["format"]).mode("append").options(**options)
    started = time.perf_counter()
    writer.save()
    return {"seconds": time.perf_counter() - started}


def _answer(found: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
