# SPDX-License-Identifier: Apache-2.0
"""Batch: a job for spark-submit on a cluster whose workers have no penstock of their own.

spark-submit --master spark://HOST:7077 ... examples/on_a_cluster.py [HOST:PORT [TOPIC]]

docs/spark.md, "On a cluster", has the arguments in place of the dots.
"""

import sys

from pyspark.sql import SparkSession


def main(servers: str = "localhost:9092", topic: str = "cluster") -> None:
    spark = SparkSession.builder.appName("on_a_cluster").getOrCreate()
    (
        spark.range(1000)
        .repartition(4)
        .selectExpr("cast(id AS string) AS key", "concat('row ', id) AS value")
        .write.format("penstock")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .mode("append")
        .save()
    )
    print(f"1000 rows are in {topic}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
