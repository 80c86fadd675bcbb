# SPDX-License-Identifier: Apache-2.0
"""The page on pipelines says what the code does: its example works, its tables have every key, its codes are ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.cli import main as cli
from penstock.cli import run
from penstock.spark import pipeline_check
from penstock.spark.pipeline_check import load_pipeline

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "pipeline.md").read_text(encoding="utf-8")


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


def test_the_example_is_a_definition(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "orders.toml"
    path.write_text(example, encoding="utf-8")
    pipeline = load_pipeline(path)
    assert pipeline.sink.options["kafka.bootstrap.servers"] == "localhost:9092"
    assert len(pipeline.steps) == 2


def test_exit_codes_are_those_of_the_command() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(code) for code in codes] == [
        0,
        cli.EXIT_FAILED,
        run.EXIT_BAD_DEFINITION,
        run.EXIT_EXPECTATION,
        cli.EXIT_INTERRUPTED,
    ]
