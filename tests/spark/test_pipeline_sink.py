# SPDX-License-Identifier: Apache-2.0
"""A wrong option or address of a pipeline is found before Spark is started, in the words of the definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.errors import PipelineDefinitionError, PipelineError
from penstock.spark import cluster_check, pipeline_session, run_pipeline
from penstock.spark.pipeline_check import load_pipeline
from penstock.spark.pipeline_sink import check_sink, sink_options
from penstock.testing import FakeKafka

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


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.spark import pipeline_sink

    monkeypatch.setattr(
        pipeline_sink, "check_cluster", lambda options: cluster_check.check_cluster(options, patience=0.3)
    )


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("kafka.lingre.ms = 5", "unknown option 'kafka.lingre.ms'; did you mean 'kafka.linger.ms'?"),
        ('transactionTimeout = "soon"', "transactionTimeout must be a time with its unit"),
        ('kafka.acks = "some"', "an option kafka.* of this write is wrong"),
        ("onRestoredCheckpoint = 'rewrite'", "onRestoredCheckpoint is for streaming queries"),
    ],
)
def test_a_wrong_option_is_refused_with_its_line(tmp_path: Path, option: str, said: str) -> None:
    path = written(tmp_path, f"{DEFINITION}{option}\n")
    with pytest.raises(PipelineDefinitionError) as caught:
        run_pipeline(path)
    assert "p.toml:6: " in str(caught.value)
    assert said in str(caught.value)


def test_an_option_that_is_missing_beside_another_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"{DEFINITION}onBadRow = 'dead-letter'\n")
    with pytest.raises(
        PipelineDefinitionError, match="onBadRow=dead-letter needs the option deadLetterTopic"
    ):
        run_pipeline(path)


def test_the_command_refuses_a_wrong_option_of_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{DEFINITION}kafka.lingre.ms = 5\n")
    assert main(["run", str(path), "--dry-run"]) == 2
    assert "p.toml:6: [sink] options.kafka.lingre.ms: unknown option" in capsys.readouterr().err


@pytest.mark.slow
def test_a_wrong_address_fails_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    with pytest.raises(PipelineError, match=r"^p: the driver cannot reach Kafka at 127\.0\.0\.1:1 within"):
        run_pipeline(written(tmp_path, DEFINITION))


def test_an_address_is_not_tried_from_here_where_the_driver_is_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, f'{DEFINITION}[spark]\nremote = "sc://somewhere:15002"\n')
    with pytest.raises(AssertionError, match="Spark was started"):
        run_pipeline(path)


def test_spark_is_started_when_all_is_well(tmp_path: Path) -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        path = written(tmp_path, DEFINITION.replace("127.0.0.1:1", kafka.bootstrap_servers))
        with pytest.raises(AssertionError, match="Spark was started"):
            run_pipeline(path)


def test_a_streaming_query_is_known_by_its_checkpoint(tmp_path: Path) -> None:
    pipeline = load_pipeline(written(tmp_path, STREAM))
    check_sink(pipeline, from_here=False)
    assert sink_options(pipeline, "orders", Path("f")) == {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "delivery": "exactly-once",
        "topic": "orders",
        "checkpointLocation": pipeline.sink.checkpoint,
        "progressFile": "f",
    }
