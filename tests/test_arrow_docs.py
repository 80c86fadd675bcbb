# SPDX-License-Identifier: Apache-2.0
"""What the page on tables shows works."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BufferExhaustedError
from penstock.producer.send.columns import WINDOW_ROWS
from penstock.testing import FakeKafka, MockProducer
from penstock.types import RowErrors

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "arrow.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ADDRESS = "localhost:9092"
TOPICS = {"orders": 3, "readings": 1, "events": 2, "stock": 1}


@pytest.mark.parametrize("number", [n for n, example in enumerate(EXAMPLES) if ADDRESS in example])
def test_examples_deliver(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeKafka(topics=TOPICS) as kafka:
        exec(compile(EXAMPLES[number].replace(ADDRESS, kafka.bootstrap_servers), "arrow.md", "exec"), {})
        records = [kafka.records(topic, p) for topic, count in TOPICS.items() for p in range(count)]
    assert sum(map(len, records)) > 0
    for shown in re.findall(r"# (row .*?) \.\.\.$", EXAMPLES[number], re.MULTILINE):
        assert shown in capsys.readouterr().out


# What each package is asked to make when pyarrow is not there.
ONE_ROW = {
    "Polars": "import polars; table = polars.DataFrame({'value': ['x']})",
    "DuckDB": "import duckdb; table = duckdb.sql(\"select 'x' as value\")",
    "pandas": "import pandas; table = pandas.DataFrame({'value': ['x']})",
}
SEND_WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from penstock import Producer
from penstock.testing import FakeKafka
{make}
with FakeKafka(topics={{"orders": 1}}) as kafka, Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
    print(producer.send_arrow("orders", table).result(timeout=60).records)
"""


@pytest.mark.slow
@pytest.mark.parametrize("maker", ONE_ROW)
def test_what_is_to_be_installed_is_enough_and_not_more(maker: str) -> None:
    (packages,) = re.findall(rf"^\| {maker} \| `pip install ([\w -]+)`", PAGE, re.MULTILINE)
    code = SEND_WITHOUT_PYARROW.format(make=ONE_ROW[maker])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ("pyarrow" in packages.split()) == (done.returncode != 0), done.stderr
    if done.returncode:
        assert "pyarrow" in done.stderr.splitlines()[-1]


def test_the_extra_that_is_named_brings_pyarrow() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert "`pip install 'penstock-kafka[arrow]'`" in PAGE
    assert extras["arrow"] == ["pyarrow>=18"]
    assert "pyarrow>=18" in extras["spark"]
    assert "(18 or later)" in PAGE


def test_what_was_not_accepted_is_sent_again() -> None:
    (example,) = (example for example in EXAMPLES if ADDRESS not in example)
    names: dict[str, Any] = {}
    exec(compile(example, "arrow.md", "exec"), names)
    producer = MockProducer()
    error = BufferExhaustedError("no memory")
    error.bulk_delivery = SimpleNamespace(errors=[RowErrors(1, 2, error)])
    producer.raise_on("send_arrow", error, times=1)
    names["send_all"](producer, "orders", pa.table({"value": ["a", "b", "c"]}))
    assert [record.value for record in producer.history()] == [b"b", b"c"]


def test_the_size_of_a_window_is_told() -> None:
    assert f"{WINDOW_ROWS:,} at a time" in PAGE
