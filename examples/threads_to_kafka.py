# SPDX-License-Identifier: Apache-2.0
"""Batch: several tables to their topics at the same time, from threads of one driver, exactly once.

python examples/threads_to_kafka.py [HOST:PORT [TOPIC]]

Spark runs the jobs of several threads at the same time, so a small table need not wait for a large one. Each thread
activates the session before it writes. Each write has its own `sinkId`, so that each can be repeated separately: a
second run of the program with the same run names writes nothing twice.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession

from penstock.spark import activate_session

RUN = "2026-11-14"  # for example the day; a scheduler that repeats the job uses the same name again


def write(rows: DataFrame, servers: str, topic: str) -> str:
    activate_session(rows.sparkSession)  # otherwise Spark does not find the format in this thread
    (
        rows.write.format("penstock")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("sinkId", f"daily-{topic}")
        .option("runId", RUN)
        .mode("append")
        .save()
    )
    return topic


def write_all(spark: SparkSession, servers: str, prefix: str) -> None:
    tables = {
        f"{prefix}-{name}": spark.range(count).selectExpr("cast(id AS string) AS key", f"'{name}' AS value")
        for name, count in (("orders", 1000), ("customers", 100), ("prices", 10))
    }
    with ThreadPoolExecutor(len(tables)) as threads:
        writes = [threads.submit(write, rows, servers, topic) for topic, rows in tables.items()]
        for each in writes:
            print(f"written: {each.result()}")  # raises what the write raised


def main(servers: str = "localhost:9092", prefix: str = "daily") -> None:
    # Spark's workers would run the first python3 on the PATH, which may not have penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("threads_to_kafka").getOrCreate()
    write_all(spark, servers, prefix)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
