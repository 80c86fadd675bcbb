# SPDX-License-Identifier: Apache-2.0
"""A sink of Spark's Declarative Pipelines (Spark 4.1 or later); a file for the command `spark-pipelines run`.

spark-pipelines runs what a small YAML file names. In the folder of this file:

    name: readings
    storage: file:///tmp/readings-storage
    libraries:
      - glob:
          include: declarative_sink.py

Spark keeps the checkpoint below the storage; it is the sink's identity. Broker and topic come from the environment:

    SERVERS=localhost:9092 TOPIC=readings spark-pipelines run --spec readings.yml
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

dp.create_sink(
    "kafka",
    "penstock",
    {
        "kafka.bootstrap.servers": os.environ.get("SERVERS", "localhost:9092"),
        "topic": os.environ.get("TOPIC", "readings"),
    },
)


@dp.append_flow(target="kafka", name="readings")
def readings() -> DataFrame:
    spark = SparkSession.active()
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    return numbers.selectExpr("CAST(value % 10 AS STRING) AS key", "to_json(struct(value)) AS value")
