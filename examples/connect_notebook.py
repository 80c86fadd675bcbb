# SPDX-License-Identifier: Apache-2.0
"""A notebook over Spark Connect, cell by cell: python examples/connect_notebook.py [HOST:PORT [TOPIC [sc://HOST:PORT]]]

The notebook is a thin client: it needs no Java and no Spark. The server writes to Kafka, so penstock must be installed
there, and the server must be able to reach the broker's address. Without the address of a server, one is started here.
Needs the extra `connect`: pip install '.[connect]'.
"""

# %% Addresses and session
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

servers, topic, remote = [*sys.argv[1:], *["localhost:9092", "sensors", "local[2]"][len(sys.argv) - 1 :]]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the workers of a server that is started here
spark = SparkSession.builder.remote(remote).getOrCreate()

# %% Some rows, and a look at them
readings = spark.range(1000).select(
    (sf.col("id") % 7).alias("sensor"), (20 + sf.sin(sf.col("id"))).alias("celsius")
)
readings.show(3)

# %% As records: a key, and a value in JSON
records = readings.select(
    sf.col("sensor").cast("string").alias("key"), sf.to_json(sf.struct("sensor", "celsius")).alias("value")
)

# %% To Kafka. With a runId, a second run of the cell writes nothing twice.
(
    records.write.format("penstock")
    .mode("append")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", topic)
    .option("runId", "notebook of sensors")
    .save()
)
print(f"{readings.count()} readings are in {topic}")

# %% Done
spark.stop()
