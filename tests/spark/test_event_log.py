# SPDX-License-Identifier: Apache-2.0
"""What a reference stands for reaches the brokers, and nothing that Spark writes down.

A password in the clear is the counterpart: docs/security.md says where Spark shows it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from fix_spark import shell_environment

from penstock.testing import FakeKafka, FakeSecurity

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VALUE = "not-for-the-log"
SECRET = "of-alice-by-reference"
CLEAR = "of-carol-in-the-clear"
ENVIRONMENT = {
    "PENSTOCK_TEST_VALUE": VALUE,
    "PENSTOCK_TEST_SECRET": SECRET,
    "PENSTOCK_TEST_CLEAR": CLEAR,
}
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession

folder, secured = sys.argv[1], json.loads(sys.argv[2])
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


def write(name, **options):
    options = secured | options | {"topic": "orders", "kafka.client.id": "me-${env:PENSTOCK_TEST_VALUE}"}
    rows = spark.range(10).selectExpr("cast(id AS string) AS value")
    rows.write.format("penstock").mode("append").options(**options).save()
    rows.write.json(f"{folder}/in-{name}")
    query = (
        spark.readStream.schema("value STRING").json(f"{folder}/in-{name}").writeStream.format("penstock")
        .options(**options).option("checkpointLocation", f"{folder}/checkpoint-{name}")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    query.explain(True)


write("env", **{"kafka.sasl.username": "alice", "kafka.sasl.password": "${env:PENSTOCK_TEST_SECRET}"})
login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
jaas = f'{login} username="alice" password="${{file:{folder}/secret}}";'
write("file", **{"kafka.sasl.jaas.config": jaas})
write("clear", **{"kafka.sasl.username": "carol", "kafka.sasl.password": os.environ["PENSTOCK_TEST_CLEAR"]})
jaas = f'{login} username="carol" password="{os.environ["PENSTOCK_TEST_CLEAR"]}";'
write("jaas", **{"kafka.sasl.jaas.config": jaas})
spark.stop()
"""


class Traces(NamedTuple):
    """What Spark said, and the folder with all that it wrote."""

    said: str
    folder: Path

    def holding(self, value: str) -> list[str]:
        """The folders that have it."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        found = [path for path in files if value.encode() in path.read_bytes()]
        return sorted({path.relative_to(self.folder).parts[0] for path in found})


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "log").mkdir()
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    security = FakeSecurity(protocol="SASL_SSL", users={"alice": SECRET, "carol": CLEAR})
    with FakeKafka(topics={"orders": 1}, security=security) as kafka:
        options = kafka.client_options("SCRAM-SHA-256")
        secured = {
            f"kafka.{name}": value
            for name, value in options.items()
            if name not in ("sasl.username", "sasl.password")
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder), json.dumps(secured)],
            env=shell_environment() | ENVIRONMENT | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(kafka.records("orders")) == 80
    secret.unlink()
    return Traces(done.stdout + done.stderr, folder)


def test_what_a_reference_stands_for_is_nowhere(traces: Traces) -> None:
    assert VALUE not in traces.said
    assert SECRET not in traces.said
    assert traces.holding("SparkListenerSQLExecutionStart") == ["log"]
    assert traces.holding(VALUE) == traces.holding(SECRET) == []


def test_what_spark_shows_of_a_password_in_the_clear(traces: Traces) -> None:
    assert "given in the clear: kafka.sasl.password" in traces.said
    assert CLEAR not in traces.said
    assert traces.holding(CLEAR) == []
