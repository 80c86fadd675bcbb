# SPDX-License-Identifier: Apache-2.0
"""The Spark sink and a pipeline, exactly once, as a user with few rights, over SASL_SSL.

The password stands in a file that driver and tasks read by themselves: Spark never sees it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fix_security import BOB, BOBS_WAY, SecuredKafka
from fix_spark import shell_environment

from penstock.devbroker.security import USERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT = 300.0
PIPELINE = """\
source.sql = "SELECT id FROM range(100)"
[sink]
topic = "{topic}"
[sink.options]
decisionTopic = "{log}"
{options}
[spark.settings]
spark.ui.enabled = false
"""


@pytest.fixture
def options(secured: SecuredKafka, tmp_path: Path) -> dict[str, str]:
    """Bob's options, as Spark's users write them."""
    secret = tmp_path / "password"
    secret.write_text(USERS[BOB])
    options = secured.options(BOBS_WAY, BOB)
    options["sasl.jaas.config"] = options["sasl.jaas.config"].replace(USERS[BOB], f"${{file:{secret}}}")
    return {f"kafka.{name}": value for name, value in options.items()}


def grant_all(secured: SecuredKafka, topic: str) -> str:
    """The rights that the page asks for; the name of the decision topic."""
    log = f"log-{topic}"
    secured.grant("TOPIC", topic, "WRITE")
    secured.grant("TOPIC", log, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")
    secured.grant("TRANSACTIONAL_ID", "ps.", "WRITE", "DESCRIBE", prefixed=True)
    return log


def test_a_batch_is_written_exactly_once(
    spark: SparkSession, secured: SecuredKafka, options: dict[str, str]
) -> None:
    name = secured.topic()
    log = grant_all(secured, name)
    frame = spark.range(100).repartition(2).selectExpr("CAST(id AS STRING) AS value")
    write = frame.write.format("penstock").mode("append").options(**options)
    for _ in range(2):  # the same run again writes nothing
        write.option("topic", name).option("decisionTopic", log).option("runId", name).save()
    assert secured.read(name, 100, BOBS_WAY) == sorted(b"%d" % number for number in range(100))


def test_a_streaming_query_is_written_exactly_once(
    spark: SparkSession, secured: SecuredKafka, options: dict[str, str], tmp_path: Path
) -> None:
    name = secured.topic()
    log = grant_all(secured, name)
    folder = tmp_path / "in"
    folder.mkdir()
    source = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).json(str(folder))
    write = source.writeStream.format("penstock").options(**options).trigger(availableNow=True)
    write = (
        write.option("topic", name)
        .option("decisionTopic", log)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    for number in range(3):
        (folder / f"{number}.json").write_text(
            "".join(f'{{"value": "{number}-{row}"}}\n' for row in range(10))
        )
    write.start().awaitTermination(LIMIT)
    # As after a driver that died between the sink's commit and Spark's own note of it: the batch comes again.
    for path in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        path.unlink()
    query = write.start()
    query.awaitTermination(LIMIT)
    assert query.exception() is None
    expected = sorted(b"%d-%d" % (number, row) for number in range(3) for row in range(10))
    assert secured.read(name, 30, BOBS_WAY) == expected
    seen = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "password"]
    assert [path for path in seen if USERS[BOB].encode() in path.read_bytes()] == []


def test_without_the_right_to_the_log_nothing_is_written(
    spark: SparkSession, secured: SecuredKafka, options: dict[str, str]
) -> None:
    name = secured.topic()
    secured.grant("TOPIC", name, "WRITE")
    write = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("penstock").mode("append")
    with pytest.raises(Exception, match=r"penstock\.errors\.SinkAuthorizationError") as caught:
        write.options(**options).option("topic", name).option("decisionTopic", f"no-{name}").save()
    said = str(caught.value)
    assert f"no-{name}" in said
    assert "Create" in said
    assert USERS[BOB] not in said
    assert secured.read(name, 0) == []


def test_a_wrong_password_is_told_by_the_driver(
    spark: SparkSession, secured: SecuredKafka, options: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("not-it-at-all")
    write = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("penstock").mode("append")
    with pytest.raises(Exception, match=r"penstock\.errors\.AuthenticationError") as caught:
        write.options(**options).option("topic", secured.topic()).save()
    said = str(caught.value)
    assert "Failed to initialize Python data source writer" in said, "it must fail before a task starts"
    assert "as bob failed" in said
    assert "kafka.sasl." in said
    assert "not-it-at-all" not in said


def test_a_pipeline(secured: SecuredKafka, options: dict[str, str], tmp_path: Path) -> None:
    name = secured.topic()
    log = grant_all(secured, name)
    # Two kinds of references meet here: `$${` is for Penstock, and not for the definition.
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
    definition = tmp_path / "orders.toml"
    definition.write_text(PIPELINE.format(topic=name, log=log, options=lines))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", str(definition)],
        env=shell_environment(), capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert USERS[BOB] not in done.stdout + done.stderr
    found = [json.loads(value)["id"] for value in secured.read(name, 100, BOBS_WAY)]
    assert sorted(found) == list(range(100))
