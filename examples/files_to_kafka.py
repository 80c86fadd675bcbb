# SPDX-License-Identifier: Apache-2.0
"""Streaming: every JSON file that appears in a folder to a topic, exactly once.

python examples/files_to_kafka.py [HOST:PORT [TOPIC [FOLDER]]]

The program writes the existing files and ends; without the trigger it would wait for more. A second run writes only new
files: the checkpoint next to the folder remembers the others, and is the identity of the sink.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

SAMPLE = '{"sensor": "a", "celsius": 20.5}\n{"sensor": "b", "celsius": 19.0}\n'


def main(servers: str = "localhost:9092", topic: str = "readings", folder: str = "") -> None:
    # Spark's workers would run the first python3 on the PATH, which may not have penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not folder:
        folder = str(Path(tempfile.mkdtemp(prefix="readings-")) / "in")
        Path(folder).mkdir()
        (Path(folder) / "first.json").write_text(SAMPLE, encoding="utf-8")
        print(f"no folder was named, so {folder} is made")
    spark = SparkSession.builder.master("local[2]").appName("files_to_kafka").getOrCreate()
    readings = spark.readStream.schema("sensor STRING, celsius DOUBLE").json(folder)
    records = readings.selectExpr("sensor AS key", "to_json(struct(*)) AS value")
    query = (
        records.writeStream.format("penstock")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", f"{folder}.checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"{sum(progress.numInputRows for progress in query.recentProgress)} new readings are in {topic}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
