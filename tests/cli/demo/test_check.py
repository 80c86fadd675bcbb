# SPDX-License-Identifier: Apache-2.0
"""The comparison of the demo: it says yes only when nothing differs, and names what does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.cli.demo.check import TopicFigures, TopicTally, exactly_once, table
from penstock.cli.demo.command import headers_of
from penstock.cli.demo.orders import customer_partitions, order, value_of

EVENTS = 500
PARTITIONS = 6
PLACES = customer_partitions(PARTITIONS)


def line(number: int, **other: object) -> str:
    """What the console consumer prints for an event's record."""
    found = order(number)
    parts: dict[str, object] = {
        "time": found.timestamp_ms,
        "partition": PLACES[found.customer],
        "headers": headers_of(found),
        "key": found.customer,
        "value": value_of(number, found),
        **other,
    }
    return "CreateTime:{time}\tPartition:{partition}\t{headers}\t{key}\t{value}".format(**parts)


def accepted_lines() -> list[str]:
    return [line(number) for number in range(EVENTS) if not order(number).rejected]


def compare(lines: list[str]) -> TopicFigures:
    tally = TopicTally("orders", PARTITIONS, EVENTS, lambda found: not found.rejected, headers_of)
    for text in lines:
        tally.add(text)
    return tally.figures()


def test_all_events_once_in_any_order_is_exactly_once() -> None:
    found = compare(accepted_lines()[::-1])
    assert found.exactly_once
    assert exactly_once([found])
    assert found.read == found.expected == len(accepted_lines())
    assert sum(found.by_partition.values()) == found.read
    assert found.examples == ()


def first_rejected() -> int:
    return next(number for number in range(EVENTS) if order(number).rejected)


def but_one(change: Callable[[str], str]) -> list[str]:
    first, *rest = accepted_lines()
    return [change(first), *rest]


@pytest.mark.parametrize(
    ("lines", "figure", "words"),
    [
        (accepted_lines()[1:], "missing", "event 1 is missing"),
        ([*accepted_lines(), line(9)], "duplicates", "event 9 is there 2 times"),
        ([*accepted_lines(), line(EVENTS)], "strangers", "a record of no event"),
        ([*accepted_lines(), "WARN something else"], "strangers", "a record of no event: WARN"),
        ([*accepted_lines(), line(1, value="null")], "strangers", "a record of no event"),
        ([*accepted_lines(), line(first_rejected())], "strangers", "does not belong into orders"),
        (
            but_one(lambda text: text.replace("Partition:", "Partition:1")),
            "misplaced",
            "is in the wrong partition: Partition:1",
        ),
        (but_one(lambda text: text.replace("CreateTime:1", "CreateTime:2")), "changed", "not as it was made"),
        (but_one(lambda text: text.replace("trace:", "trace:f")), "changed", "not as it was made"),
        (but_one(lambda text: text.replace("\tcustomer-", "\tCustomer-")), "changed", "not as it was made"),
        (but_one(lambda text: text.replace('"cents":', '"cents":1')), "changed", "not as it was made"),
        (but_one(lambda text: text + " "), "changed", "not as it was made"),
    ],
)
def test_what_differs_is_counted_and_named(lines: list[str], figure: str, words: str) -> None:
    found = compare(lines)
    assert not found.exactly_once
    assert not exactly_once([compare(accepted_lines()), found])
    assert getattr(found, figure) == 1
    others = {"missing", "duplicates", "strangers", "misplaced", "changed"} - {figure}
    assert not any(getattr(found, other) for other in others)
    assert words in found.examples[0]
    assert words in table([found])


def test_event_0_is_rejected_as_the_lines_above_take_for_granted() -> None:
    assert order(0).rejected
    assert not order(1).rejected


def test_a_duplicate_does_not_make_up_for_a_missing_one() -> None:
    found = compare([*accepted_lines()[1:], line(9)])
    assert (found.missing, found.duplicates, found.read) == (1, 1, found.expected)
    assert not found.exactly_once


def test_nothing_read_is_not_exactly_once() -> None:
    assert not exactly_once([])
    found = compare([])
    assert found.missing == found.expected
    assert len(found.examples) == 3


def test_the_table_has_a_line_for_each_topic() -> None:
    text = table([compare(accepted_lines()), TopicFigures("orders-rejected", 1234, 1234, 0, 0, 0, 0, 0)])
    head, first, second = text.splitlines()
    assert head.split() == [
        *("topic", "expected", "read", "missing", "duplicates", "strangers", "misplaced", "changed")
    ]
    assert first.split()[0] == "orders"
    assert second.split() == ["orders-rejected", "1,234", "1,234", "0", "0", "0", "0", "0"]
