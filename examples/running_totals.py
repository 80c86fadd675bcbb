# SPDX-License-Identifier: Apache-2.0
"""Streaming: every change of a running total to a topic, exactly once, with foreachBatch.

python examples/running_totals.py [HOST:PORT [TOPIC [FOLDER]]]

Spark does not write to a Python data source in the output mode update. With foreachBatch a function writes each
micro-batch as a batch job, with any output mode. The name of the run makes it exactly once: a repeated micro-batch has
the same number, and is not written again.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

SAMPLE = '{"sensor": "a", "litres": 2}\n{"sensor": "b", "litres": 5}\n{"sensor": "a", "litres": 1}\n'


def write(servers: str, topic: str, sink: str, totals: DataFrame, batch: int) -> None:
    (
        totals.selectExpr("sensor AS key", "to_json(struct(*)) AS value")
        .write.format("penstock")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        # A new checkpoint counts its batches from 0 again, so it needs another sink.
        .option("sinkId", sink)
        .option("runId", f"batch-{batch}")
        .mode("append")
        .save()
    )


def write_changes(spark: SparkSession, servers: str, topic: str, folder: str) -> int:
    readings = spark.readStream.schema("sensor STRING, litres BIGINT").json(folder)
    totals = readings.groupBy("sensor").agg(sf.sum("litres").alias("litres"))
    checkpoint = f"{folder}.checkpoint"
    query = (
        totals.writeStream.outputMode("update")
        .foreachBatch(partial(write, servers, topic, checkpoint))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def main(servers: str = "localhost:9092", topic: str = "totals", folder: str = "") -> None:
    # Spark's workers would run the first python3 on the PATH, which may not have penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not folder:
        folder = str(Path(tempfile.mkdtemp(prefix="meters-")) / "in")
        Path(folder).mkdir()
        (Path(folder) / "first.json").write_text(SAMPLE, encoding="utf-8")
        print(f"no folder was named, so {folder} is made")
    spark = SparkSession.builder.master("local[2]").appName("running_totals").getOrCreate()
    print(
        f"{write_changes(spark, servers, topic, folder)} new readings, and the totals they changed are in {topic}"
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
