# SPDX-License-Identifier: Apache-2.0
"""What a reference stands for reaches the brokers, and nothing that Spark writes down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fix_spark import shell_environment

from penstock.testing import FakeKafka

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

VALUE = "not-for-the-log"
PROGRAM = """
import sys
from pyspark.sql import SparkSession

servers, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", "file://" + folder + "/log")
    .config("spark.log.level", "INFO")
    .getOrCreate()
)
options = {
    "topic": "orders",
    "delivery": "at-least-once",
    "kafka.bootstrap.servers": servers,
    "kafka.client.id": "me-${env:PENSTOCK_TEST_VALUE}",
}
spark.range(10).selectExpr("cast(id AS string) AS value").write.format("penstock").mode("append").options(
    **options
).save()
spark.range(10).selectExpr("cast(id AS string) AS value").write.json(folder + "/in")
query = (
    spark.readStream.schema("value STRING").json(folder + "/in").writeStream.format("penstock")
    .options(**options).option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
query.explain(True)
spark.stop()
"""


def test_a_reference_is_looked_up_by_the_tasks_alone(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    environment = shell_environment() | {"PENSTOCK_TEST_VALUE": VALUE, "PYSPARK_PYTHON": sys.executable}
    with FakeKafka(topics={"orders": 1}) as kafka:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(kafka.records("orders")) == 20
    assert VALUE not in done.stdout + done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in written)
    assert [path for path in written if VALUE.encode() in path.read_bytes()] == []
