# SPDX-License-Identifier: Apache-2.0
"""Batch: a CSV file to a topic, exactly once: python examples/csv_to_kafka.py [HOST:PORT [TOPIC [FILE]]]

The run has a name, `runId`: a second run for the same file writes nothing twice.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

SAMPLE = "id,customer,amount\n1,ada,9.50\n2,grace,12.00\n3,ada,3.25\n"


def main(servers: str = "localhost:9092", topic: str = "orders", file: str = "") -> None:
    # Spark's workers would run the first python3 on the PATH, which may not have penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        if not file:
            file = str(Path(folder) / "orders.csv")
            Path(file).write_text(SAMPLE, encoding="utf-8")
        spark = SparkSession.builder.master("local[2]").appName("csv_to_kafka").getOrCreate()
        orders = spark.read.csv(file, header=True, schema="id INT, customer STRING, amount DECIMAL(10, 2)")
        records = orders.selectExpr("customer AS key", "to_json(struct(*)) AS value")
        (
            records.write.format("penstock")
            .mode("append")  # Spark wants a mode for every data source that is written in Python
            .option("kafka.bootstrap.servers", servers)
            .option("topic", topic)
            .option("runId", f"orders of {Path(file).name}")
            .save()
        )
        print(f"{orders.count()} orders are in {topic}")
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
