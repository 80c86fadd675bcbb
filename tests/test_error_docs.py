# SPDX-License-Identifier: Apache-2.0
"""The page on errors has every exception, with its flags, and what it advises works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Producer, errors
from penstock.errors import KafkaError
from penstock.protocol.messages import END_TXN, PRODUCE
from penstock.testing import Code, FakeKafka, Fault, MockProducer

WriteTogether = Callable[[Producer, Sequence[tuple[str, Any]]], bool]

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "errors.md").read_text(encoding="utf-8")
CLASSES = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, KafkaError)
}
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| `(\w+)` \| ?([A-Z]*) ?\| ([^|]+)\| ([^|]*)\|$", PAGE, re.MULTILINE)


def test_every_error_has_one_row() -> None:
    assert sorted(name for name, *_ in ROWS) == sorted(CLASSES)


@pytest.mark.parametrize(("name", "flags"), [row[:2] for row in ROWS])
def test_flags_are_those_of_the_class(name: str, flags: str) -> None:
    cls = CLASSES[name]
    assert flags == "R" * cls.retriable + "F" * cls.fatal + "A" * cls.requires_abort


def test_a_class_is_listed_below_its_parents() -> None:
    order = [name for name, *_ in ROWS]
    for name in order:
        parents = [base.__name__ for base in CLASSES[name].__mro__[1:] if base.__name__ in CLASSES]
        assert all(order.index(parent) < order.index(name) for parent in parents), name


# ---- the examples


def test_examples_name_errors_that_exist() -> None:
    for example in EXAMPLES:
        named = re.findall(r"errors\.(\w+)", example)
        assert named
        assert set(named) <= set(CLASSES)


def run_example(defines: str) -> dict[str, Any]:
    """Run the example that defines a function; all that it defines."""
    (example,) = (example for example in EXAMPLES if f"def {defines}(" in example)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/errors.md", "exec"), names)
    return names


def test_sending_with_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    send_or_explain = run_example("send_or_explain")["send_or_explain"]
    producer = MockProducer(topics={"orders": 1})
    assert send_or_explain(producer, "orders", b"1").result().offset == 0
    assert send_or_explain(producer, "orders", "no bytes") is None
    assert capsys.readouterr().out.startswith("skipped: ")
    with pytest.raises(SystemExit, match="cannot reach the topic"):
        send_or_explain(producer, "nowhere", b"1")
    producer.raise_on("send", errors.BufferExhaustedError("full"), times=1)
    with pytest.raises(errors.BufferExhaustedError):
        send_or_explain(producer, "orders", b"1")


@pytest.fixture
def write_together() -> WriteTogether:
    function: WriteTogether = run_example("write_together")["write_together"]
    return function


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"orders": 1}) as cluster:
        yield cluster


@pytest.fixture
def producer(fake: FakeKafka) -> Iterator[Producer]:
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="shop") as producer:
        producer.init_transactions()
        yield producer


def values(fake: FakeKafka) -> list[bytes | None]:
    return [record.value for record in fake.records("orders")]


def test_a_failed_record_aborts_the_transaction_and_the_next_one_succeeds(
    fake: FakeKafka, producer: Producer, write_together: WriteTogether
) -> None:
    fake.add_fault(Fault(api=PRODUCE, error=Code.MESSAGE_TOO_LARGE))
    assert not write_together(producer, [("orders", b"too large")])
    assert write_together(producer, [("orders", b"1"), ("orders", b"2")])
    assert values(fake) == [b"1", b"2"]


def test_an_error_of_send_aborts_the_transaction(
    fake: FakeKafka, producer: Producer, write_together: WriteTogether
) -> None:
    assert not write_together(producer, [("orders", b"1"), ("orders", "no bytes")])
    assert write_together(producer, [("orders", b"2")])
    assert values(fake) == [b"2"]


@pytest.mark.slow
def test_a_commit_that_had_no_answer_in_time_is_asked_for_again(
    fake: FakeKafka, write_together: WriteTogether
) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="shop") as producer:
        producer.init_transactions()
        producer.partitions_for("orders")
        producer._core.max_block = 0.3
        fake.add_fault(Fault(api=END_TXN, delay=0.6))
        assert write_together(producer, [("orders", b"1")])
    assert values(fake) == [b"1"]


def test_a_fence_is_raised(fake: FakeKafka, producer: Producer, write_together: WriteTogether) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="shop") as newer:
        newer.init_transactions()
    with pytest.raises(errors.ProducerFencedError):
        write_together(producer, [("orders", b"1")])
    assert values(fake) == []
