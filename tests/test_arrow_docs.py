# SPDX-License-Identifier: Apache-2.0
"""What the page on tables shows works."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BufferExhaustedError
from penstock.producer.columns import WINDOW_ROWS
from penstock.testing import FakeKafka, MockProducer
from penstock.types import RowErrors

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "arrow.md").read_text(encoding="utf-8")
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
