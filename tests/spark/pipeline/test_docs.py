# SPDX-License-Identifier: Apache-2.0
"""The page on pipelines says what the code does: its example works, its tables have every key, its codes are ours."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli import main as cli
from penstock.cli import run
from penstock.spark.pipeline import check as pipeline_check
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.dry_run import dry_run
from penstock.spark.pipeline.sink import check_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")


def keys_of(title: str) -> list[str]:
    """The keys in the first table below a heading."""
    section = PAGE.split(f"### `{title}`\n", 1)[1].split("\n### ")[0].split("\n| encoding |")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("title", "keys"),
    [
        ("[pipeline]", ("name",)),
        ("[source]", pipeline_check._SOURCE_KEYS),
        ("[[steps]]", ("name", "sql", "python")),
        ("[[expectations]]", ("name", "condition", "action")),
        ("[sink]", pipeline_check._SINK_KEYS),
        ("[spark]", ("master", "remote", "settings")),
    ],
)
def test_every_key_is_described(title: str, keys: tuple[str, ...]) -> None:
    assert sorted(keys_of(title)) == sorted(keys)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


EXAMPLE, FROM_KAFKA, MORE, MALFORMED = blocks("toml")


def paste(folder: Path, definition: str) -> Path:
    """Do what the page says: the definition and its step in files, and the orders in a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "orders.toml"
    path.write_text(definition, encoding="utf-8")
    (step,) = [block for block in blocks("python") if "def with_region" in block]
    (folder / "regions.py").write_text(step, encoding="utf-8")
    (script,) = [block for block in blocks("sh") if "mkdir incoming" in block]
    orders = [line for line in script.splitlines() if not line.startswith("penstock")]
    subprocess.run(["sh", "-ec", "\n".join(orders)], cwd=folder, check=True, timeout=300)
    return path


def test_the_example_is_a_definition(tmp_path: Path) -> None:
    pipeline = load_pipeline(paste(tmp_path, EXAMPLE))
    assert pipeline.sink.options["kafka.bootstrap.servers"] == "localhost:9092"
    check_sink(pipeline, on_driver=True, from_here=False)
    assert [step.python for step in pipeline.steps] == [None], "who pastes it has no module of ours"
    assert (tmp_path / pipeline.source.options["path"]).is_dir()
    assert load_pipeline(paste(tmp_path / "x", EXAMPLE + MORE)).steps[-1].python == "regions:with_region"


def test_from_kafka_to_kafka_is_a_definition(tmp_path: Path) -> None:
    pipeline = load_pipeline(paste(tmp_path, FROM_KAFKA))
    check_sink(pipeline, on_driver=True, from_here=False)
    assert {*pipeline.source.options} > {"kafka.isolation.level", "subscribe"}


def test_the_error_that_is_shown_has_the_line_of_the_example() -> None:
    (number,) = re.findall(
        r"^penstock run: orders\.toml:(\d+): \[\[expectations\]\] 1, condition", PAGE, re.MULTILINE
    )
    assert EXAMPLE.splitlines()[int(number) - 1].startswith("condition = ")


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_the_example_works_as_pasted(spark: SparkSession, tmp_path: Path) -> None:
    path = paste(tmp_path, EXAMPLE + MORE)
    # The Spark of the tests was not started in this folder.
    lines = list(dry_run(load_pipeline(path, {"folder": str(tmp_path / "incoming")}), spark))
    assert "Sample, 2 records as they would be sent" in lines
    assert any('"id":1' in line and '"gross":30.3' in line for line in lines)
    assert any(line.split() == ["region", "int"] for line in lines)


@pytest.mark.spark
@pytest.mark.slow
def test_a_malformed_row_meets_the_expectation_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"id": 1, "amount": 2}\n{"id": 2, "am\n', encoding="utf-8")
    path = paste(tmp_path, MALFORMED.replace('"incoming"', f'"{tmp_path}/*.json"'))
    lines = [
        line for line in dry_run(load_pipeline(path), spark) if '"id"' in line or "_corrupt_record" in line
    ]
    assert any('{"id":1,"amount":2.00}' in line for line in lines)
    assert any('{"_corrupt_record":' in line for line in lines)


def test_exit_codes_are_those_of_the_command() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(code) for code in codes] == [
        0,
        cli.EXIT_FAILED,
        run.EXIT_BAD_DEFINITION,
        run.EXIT_EXPECTATION,
        cli.EXIT_INTERRUPTED,
    ]
