# SPDX-License-Identifier: Apache-2.0
"""Values of the environment, and what is named like a secret, show nowhere: dry run, report, errors, views, reprs."""

from __future__ import annotations

import io
import traceback
from pathlib import Path
from typing import Any

import pytest

from penstock._json_fields import Fields
from penstock.cli.main import main
from penstock.cli.run import summary_lines
from penstock.errors import ConfigError, PipelineDefinitionError, PipelineError
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.dry_run import _record_lines, _schema_lines, describe_pipeline, shown
from penstock.spark.pipeline.failure import (
    CUT_MARK,
    EXPECTATION_MARK,
    LONGEST_ROW,
    pipeline_failure,
    spark_words,
)
from penstock.spark.pipeline.model import Pipeline
from penstock.spark.pipeline.report import render_report
from penstock.spark.pipeline.sink import check_sink
from penstock.spark.pipeline.source import checked
from penstock.spark.pipeline.stats import BatchCounts, RunStats
from penstock.spark.pipeline.view import LineView, draw

ENVIRONMENT = {
    "DB_PASSWORD": "hunter2",
    "AZ_KEY": "az-account-key==",
    "PIN": "42x",
    "STAGE": "production",
    "PEM": "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\n-----END KEY-----",
}
LITERAL = "plain-literal-secret"
# The values, the lines of one, and what one is where it touches letters.
NEVER = [*ENVIRONMENT.values(), LITERAL, "MIIEpAIBAAKCAQEA", "a42xb"]

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders-${env:STAGE}"},
    "source": {
        "format": "jdbc",
        "options": {
            "url": "jdbc:postgresql://db/x?user=u&password=${env:DB_PASSWORD}&n=a${env:PIN}b",
            "fs.azure.account.key.acc": "${env:AZ_KEY}",
            "credentials": "${env:DB_PASSWORD}",
            "note": "${env:PEM}",
            "accessToken": LITERAL,
            "dbtable": f"(SELECT * FROM t WHERE x = '{LITERAL}')",
        },
    },
    "steps": [{"sql": "SELECT aes_encrypt(a, '${env:AZ_KEY}') AS a, '${env:PIN}' AS b FROM input"}],
    "expectations": [
        {"name": "of ${env:STAGE}", "condition": "pin = '${env:PIN}'", "action": "dead-letter"},
    ],
    "sink": {
        "topic": "orders-${env:STAGE}",
        "key": "sha2('${env:DB_PASSWORD}', 256)",
        "dead_letter_topic": "dead-${env:STAGE}",
        "headers": {"api-key": f"'{LITERAL}'", "x": "'${env:AZ_KEY}'"},
        "options": {
            "kafka.bootstrap.servers": "nowhere:1",
            "kafka.sasl.jaas.config": 'required username="u" password="${env:DB_PASSWORD}";',
        },
    },
    "spark": {"settings": {"spark.hadoop.fs.s3a.secret.key": LITERAL}},
}


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return load_pipeline(DEFINITION)


@pytest.fixture
def stats(pipeline: Pipeline) -> RunStats:
    stats = RunStats(pipeline=pipeline, started=100.0)
    stats.add_batch(0, 1.0, 1.0, BatchCounts(10, {"rows": 9, "dead": 1, "dropped": 1, "failed_0": 2}))
    stats.add_sink_line(
        Fields(
            {
                "batchId": 0,
                "bytes": 10,
                "partitions": {"orders-production": {"0": {"rows": 9, "endOffset": 9}}},
            }
        )
    )
    stats.finished, stats.outcome = 101.0, "done"
    return stats


def check(text: str) -> None:
    shown = [secret for secret in NEVER if secret in text]
    assert shown == [], text


def test_the_values_reach_spark_unchanged(pipeline: Pipeline) -> None:
    assert pipeline.source.options["url"] == "jdbc:postgresql://db/x?user=u&password=hunter2&n=a42xb"
    assert pipeline.sink.record.topic.name == "orders-production"


def test_a_dry_run_shows_names_instead_of_values(pipeline: Pipeline) -> None:
    lines = list(describe_pipeline(pipeline))
    check("\n".join(lines))
    assert "Pipeline orders-${env:STAGE}" in lines
    assert "  url = jdbc:postgresql://db/x?user=u&password=${env:DB_PASSWORD}&n=a${env:PIN}b" in lines
    assert "  credentials = (hidden)" in lines
    assert "  header     x: '${env:AZ_KEY}'" in lines
    assert "  header     api-key: (hidden)" in lines
    assert any("topic orders-${env:STAGE}" in line for line in lines)


def test_a_sample_shows_none(pipeline: Pipeline) -> None:
    for value in NEVER:
        check(shown(f'{{"a":"{value}"}}'.encode(), pipeline.hide))


def test_names_of_columns_and_headers_show_none(pipeline: Pipeline) -> None:
    """Spark calls a column without a name by its expression: SELECT concat(a, '${env:DB_PASSWORD}')."""
    types = pytest.importorskip("pyspark.sql.types")
    inner = types.StructType().add("hunter2", types.StringType())
    schema = types.StructType().add("concat(a, hunter2)", types.StringType()).add("s", inner)
    lines = list(_schema_lines(schema, pipeline.hide))
    check("\n".join(lines))
    assert lines[0] == "  concat(a, ${env:DB_PASSWORD})  string"
    record = {"value": b"v", "headers": [{"key": "hunter2", "value": b"x"}]}
    check("\n".join(_record_lines(1, record, "t", pipeline.definition.hide)))


def test_report_views_and_summary_show_none(stats: RunStats) -> None:
    stats.error = "orders: connection to jdbc:x?password=hunter2 refused"
    check(render_report(stats))
    out = io.StringIO()
    view = LineView(out)
    view.start(stats)
    view.update(stats, 101.0, "")
    check(out.getvalue())
    check("\n".join(summary_lines(stats)))
    rich = pytest.importorskip("rich.console")
    console = rich.Console(file=(drawn := io.StringIO()), width=200)
    console.print(draw(stats, 101.0, "waiting"))
    check(drawn.getvalue())


def spark_error() -> RuntimeError:
    return RuntimeError(
        "[PARSE_SYNTAX_ERROR] near 'hunter2' in a42xb\n== SQL ==\n"
        f"SELECT '{ENVIRONMENT['PEM']}', '{LITERAL}', 'az-account-key=='"
    )


def test_errors_of_spark_show_none_and_neither_do_their_causes(pipeline: Pipeline) -> None:
    check(str(pipeline_failure(spark_error(), pipeline.title, pipeline.hide)))

    def make() -> Any:
        raise spark_error()

    with pytest.raises(PipelineDefinitionError) as caught:
        checked(pipeline.definition, ("source", "format"), make)
    check("".join(traceback.format_exception(caught.value)))
    assert "near '${env:DB_PASSWORD}' in a${env:PIN}b" in str(caught.value)

    def make_from_another() -> Any:
        noted = RuntimeError("not that one")
        noted.add_note("tried with hunter2")
        try:
            raise spark_error() from noted
        except RuntimeError as error:
            raise ValueError("no rows") from error

    with pytest.raises(PipelineDefinitionError) as caught:
        checked(pipeline.definition, ("source", "format"), make_from_another)
    check("".join(traceback.format_exception(caught.value)))
    lost = pipeline_failure(ConnectionError("password=hunter2"), pipeline.title, pipeline.hide)
    check(str(lost))


@pytest.mark.parametrize("before", range(180, 210))
def test_a_row_that_is_cut_shows_no_part_of_one(pipeline: Pipeline, before: int) -> None:
    row = (before * "y" + "hunter2" + 300 * "z")[: LONGEST_ROW + pipeline.definition.hide.longest]
    cut = CUT_MARK.format(pipeline.definition.hide.longest)
    error = RuntimeError(f"x {EXPECTATION_MARK} n | {row}{cut} [end]")
    for said in (str(pipeline_failure(error, "p", pipeline.hide)), spark_words(error, pipeline.hide)):
        assert "hu" not in said
        assert len(said) < LONGEST_ROW + 80


def test_errors_of_the_definition_show_none(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, Any] = {
        **DEFINITION,
        "sink": {**DEFINITION["sink"], "topic": "not a topic ${env:DB_PASSWORD}"},
    }
    with pytest.raises(PipelineDefinitionError) as caught:
        load_pipeline(wrong)
    check(str(caught.value))
    assert "not a topic ${env:DB_PASSWORD}" in str(caught.value)

    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError("cannot reach hunter2:9092")

    options = {**DEFINITION["sink"]["options"], "kafka.acks": "${env:DB_PASSWORD}"}
    del options["kafka.sasl.jaas.config"]
    with pytest.raises(PipelineDefinitionError) as caught:
        check_sink(
            load_pipeline({**DEFINITION, "sink": {**DEFINITION["sink"], "options": options}}),
            on_driver=True,
            from_here=False,
        )
    check("".join(traceback.format_exception(caught.value)))
    assert "acks='${env:DB_PASSWORD}' is not allowed" in str(caught.value)

    monkeypatch.setattr("penstock.spark.pipeline.sink._parsed", lambda _, on_driver: None)
    monkeypatch.setattr("penstock.spark.pipeline.sink.check_cluster", refuse)
    with pytest.raises(PipelineError) as failed:
        check_sink(pipeline, on_driver=True)
    check("".join(traceback.format_exception(failed.value)))


def test_nothing_of_a_pipeline_shows_itself(pipeline: Pipeline, stats: RunStats) -> None:
    parts = (
        pipeline,
        pipeline.source,
        pipeline.sink,
        pipeline.sink.record,
        pipeline.spark,
        pipeline.definition,
    )
    for part in (*parts, *pipeline.steps, *pipeline.expectations, stats):
        check(repr(part))


def test_a_variable_that_is_named_like_a_secret_is_one() -> None:
    definition = {
        "source": {"sql": "SELECT '${password}' AS a, '${day}' AS b"},
        "sink": {"topic": "t", "options": {"kafka.bootstrap.servers": "h:1"}},
    }
    pipeline = load_pipeline(definition, {"password": "hunter2", "day": "2026-01-31"})
    lines = list(describe_pipeline(pipeline))
    assert "Source       SELECT '${password}' AS a, '2026-01-31' AS b (batch)" in lines


def test_the_command_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    file = tmp_path / "orders.toml"
    file.write_text(
        '[source]\nsql = "SELECT 1"\n[sink]\ntopic = "t"\ntrigger = "${env:DB_PASSWORD}"\n', encoding="utf-8"
    )
    assert main(["run", str(file), "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
