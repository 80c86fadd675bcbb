# SPDX-License-Identifier: Apache-2.0
"""A wrong option or address of a pipeline is found before Spark is started, in the words of the definition."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.cli.main import main
from penstock.errors import PipelineDefinitionError, PipelineError
from penstock.spark import cluster_check, run_pipeline
from penstock.spark.options import parse_options
from penstock.spark.pipeline import session as pipeline_session
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.sink import check_sink, sink_options
from penstock.testing import FakeKafka
from penstock.testing.settings import ClusterSettings

DEFINITION = """\
source.sql = "SELECT 1 AS id"
[sink]
topic = "orders"
[sink.options]
kafka.bootstrap.servers = "127.0.0.1:1"
"""
STREAM = DEFINITION.replace("[sink]", '[sink]\ncheckpoint = "c"').replace(
    'source.sql = "SELECT 1 AS id"', 'source = { format = "rate", streaming = true }'
)


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Spark would be an error here; and what other tests found out about brokers is not known."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(pipeline_session, "_open_session", refuse)
    monkeypatch.setattr(cluster_check, "_seen", {})
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def written(folder: Path, text: str) -> Path:
    path = folder / "p.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(monkeypatch: pytest.MonkeyPatch, path: Path, told: str) -> None:
    """A driver with little patience tells this; one with more, where that was over before a broker had answered."""
    from penstock.spark.pipeline import sink as pipeline_sink

    for patience in (0.3, 30.0):
        check = partial(cluster_check.check_cluster, patience=patience)
        monkeypatch.setattr(pipeline_sink, "check_cluster", check)
        with pytest.raises(PipelineError) as caught:
            run_pipeline(path)
        if re.search(told, str(caught.value)):
            return
    raise AssertionError(caught.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("kafka.lingre.ms = 5", "unknown option 'kafka.lingre.ms'; did you mean 'kafka.linger.ms'?"),
        ('transactionTimeout = "soon"', "transactionTimeout must be a time with its unit"),
        ("kafka.linger_ms = 'x'", "[sink] options.kafka.linger_ms: an option kafka.* of this write is wrong"),
        ('kafka.acks = "some"', "an option kafka.* of this write is wrong"),
        (
            'kafka.acks = "1"',
            "delivery=exactly-once needs idempotence, but acks is 1, not all: leave that option out",
        ),
        ('transactionTimeout = "1 minute"', "must be at least twice recoveryTime"),
        ("onRestoredCheckpoint = 'rewrite'", "onRestoredCheckpoint is for streaming queries"),
        ('recoveryTime = "10 minutes"', "must be at least twice recoveryTime"),
        ('onLost = "repair"', "[sink] options.onLost: onLost says what a repeated run does"),
        (
            "kafka.enable_idempotence = false",
            "needs idempotence, but enable.idempotence is false: leave that",
        ),
        ("kafka.partitioner.rack.aware = true", "partitioner.rack.aware=true needs client.rack"),
        ("kafka.max.in.flight.requests.per.connection = 9", "is not possible with idempotence"),
    ],
)
def test_a_wrong_option_is_refused_with_its_line(tmp_path: Path, option: str, said: str) -> None:
    path = written(tmp_path, f"{DEFINITION}{option}\n")
    with pytest.raises(PipelineDefinitionError) as caught:
        run_pipeline(path)
    assert "p.toml:6: " in str(caught.value)
    assert said in str(caught.value)


def test_a_wrong_option_is_refused_before_a_given_session_is_asked(tmp_path: Path) -> None:
    path = written(tmp_path, f"{DEFINITION}kafka.lingre.ms = 5\n")
    with pytest.raises(PipelineDefinitionError, match=r"p\.toml:6: .*kafka\.lingre\.ms"):
        run_pipeline(path, cast("Any", object()))


def test_an_option_that_is_missing_beside_another_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"{DEFINITION}onBadRow = 'dead-letter'\n")
    with pytest.raises(
        PipelineDefinitionError, match="onBadRow=dead-letter needs the option deadLetterTopic"
    ):
        run_pipeline(path)
    with pytest.raises(PipelineDefinitionError, match=r"p\.toml:6: \[sink\] options\.onBadRow"):
        run_pipeline(path)


def test_the_command_refuses_a_wrong_option_of_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{DEFINITION}kafka.lingre.ms = 5\n")
    assert main(["run", str(path), "--dry-run"]) == 2
    assert "p.toml:6: [sink] options.kafka.lingre.ms: unknown option" in capsys.readouterr().err


@pytest.mark.slow
def test_a_wrong_address_fails_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = r"p\.toml:5: \[sink\] options\.kafka\.bootstrap\.servers: the driver cannot reach Kafka at 127"
    refused(monkeypatch, written(tmp_path, DEFINITION), told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "line", "key"), [("orders-dead", 3, "topic"), ("orders", 4, "dead_letter_topic")]
)
def test_a_topic_that_is_not_there_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, line: int, key: str
) -> None:
    text = DEFINITION.replace('topic = "orders"', 'topic = "orders"\ndead_letter_topic = "orders-dead"')
    with FakeKafka(topics={there: 1}, settings=ClusterSettings(auto_create_topics=False)) as kafka:
        path = written(tmp_path, text.replace("127.0.0.1:1", kafka.bootstrap_servers))
        refused(monkeypatch, path, rf"p\.toml:{line}: \[sink\] {key}: topic '.*' .* does not exist")


@pytest.mark.slow
def test_a_topic_that_may_not_be_written_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        path = written(tmp_path, DEFINITION.replace("127.0.0.1:1", kafka.bootstrap_servers))
        with kafka.locked() as cluster:
            cluster.denied_topics.add("orders")
        refused(monkeypatch, path, r"p\.toml:3: \[sink\] topic: this client may not write")


def test_dead_letters_need_a_topic_of_their_own(tmp_path: Path) -> None:
    text = DEFINITION.replace('topic = "orders"', 'topic = "orders"\ndead_letter_topic = "orders"')
    with pytest.raises(
        PipelineDefinitionError, match=r"p\.toml:4: \[sink\] dead_letter_topic: is the topic itself"
    ):
        run_pipeline(written(tmp_path, text))


def test_an_address_is_not_tried_from_here_where_the_driver_is_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, f'{DEFINITION}[spark]\nremote = "sc://somewhere:15002"\n')
    with pytest.raises(AssertionError, match="Spark was started"):
        run_pipeline(path)


SECURED = (
    DEFINITION
    + """\
kafka.security.protocol = "SASL_PLAINTEXT"
kafka.sasl.mechanism = "PLAIN"
kafka.sasl.username = "alice"
kafka.sasl.password = "${env:PENSTOCK_NOT_HERE}"
"""
)


def test_a_secret_is_looked_up_where_the_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        PipelineDefinitionError, match=r"p\.toml:9: .*the environment variable PENSTOCK_NOT_HERE"
    ):
        run_pipeline(written(tmp_path, SECURED))
    with pytest.raises(AssertionError, match="Spark was started"):
        run_pipeline(written(tmp_path, f'{SECURED}[spark]\nremote = "sc://somewhere:15002"\n'))
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere:15002")
    with pytest.raises(AssertionError, match="Spark was started"):
        run_pipeline(written(tmp_path, SECURED))


def test_spark_is_started_when_all_is_well(tmp_path: Path) -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        path = written(tmp_path, DEFINITION.replace("127.0.0.1:1", kafka.bootstrap_servers))
        with pytest.raises(AssertionError, match="Spark was started"):
            run_pipeline(path)


def test_a_batch_job_is_known_by_its_pipeline(tmp_path: Path) -> None:
    pipeline = load_pipeline(written(tmp_path, DEFINITION))
    assert parse_options(sink_options(pipeline, "t", None), streaming=False).sink_settings().sink_id == "p"


def test_a_streaming_query_is_known_by_its_checkpoint(tmp_path: Path) -> None:
    pipeline = load_pipeline(written(tmp_path, STREAM))
    check_sink(pipeline, on_driver=True, from_here=False)
    assert sink_options(pipeline, "orders", Path("f")) == {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "delivery": "exactly-once",
        "topic": "orders",
        "checkpointLocation": pipeline.sink.checkpoint,
        "progressFile": "f",
    }
