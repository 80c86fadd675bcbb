# SPDX-License-Identifier: Apache-2.0
"""The events of the demo: the same on every machine, divided among files as the pipeline will read them."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest

from penstock._primitives_cy import murmur2
from penstock.cli.demo import command as _demo
from penstock.cli.demo import orders as _demo_orders
from penstock.cli.demo import run as _demo_run
from penstock.cli.demo.orders import Batches, customer_partitions, number_in, order, value_of, write_input

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_an_event_is_what_its_number_says() -> None:
    found = order(7)
    assert value_of(7, found) == (
        '{"order_id":7,"customer":"customer-1143","sku":"pump-41","quantity":36,"cents":5803,"total":208908}'
    )
    assert json.loads(value_of(7, found))["total"] == found.quantity * found.cents
    assert found.timestamp_ms == 1_767_225_601_750
    assert found.trace == "538453d7"


def test_values_are_safe_to_print_and_lead_back_to_the_event() -> None:
    for number in range(0, 2_000_000, 7919):
        text = value_of(number, order(number))
        assert text.isascii()
        assert not set(text) & set("\t\r\n")
        assert number_in(text) == number


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '{"order_id":x,', '{"order_id":-5,', "the end of the demo"]
)
def test_other_values_lead_to_no_event(text: str) -> None:
    assert number_in(text) == -1


def test_about_two_in_a_hundred_are_rejected() -> None:
    assert 1800 < sum(order(number).rejected for number in range(100_000)) < 2200


def test_partitions_are_those_of_the_producer_although_computed_apart() -> None:
    places = customer_partitions(6)
    assert len(places) == _demo_orders.CUSTOMERS
    for key, partition in places.items():
        assert partition == (murmur2(key.encode()) & 0x7FFFFFFF) % 6
    assert set(places.values()) == set(range(6))


@pytest.mark.parametrize(
    ("events", "count"), [(1000, 5), (2_000_000, 5), (2_500_000, 5), (2_500_001, 6), (10_000_000, 20)]
)
def test_batches_hold_every_event_once_and_not_too_many(events: int, count: int) -> None:
    batches = Batches.of(events)
    assert batches.count == count
    ranges = [batches.numbers(batch) for batch in range(count)]
    assert ranges[0].start == 0
    assert ranges[-1].stop == events
    assert all(before.stop == after.start for before, after in itertools.pairwise(ranges))
    assert max(map(len, ranges)) <= _demo_orders.LARGEST_BATCH


def test_the_files_hold_the_events_in_the_order_of_their_times(tmp_path: Path) -> None:
    batches = Batches.of(123_457)
    write_input(tmp_path / "input", batches)
    files = sorted((tmp_path / "input").iterdir(), key=lambda path: path.stat().st_mtime)
    assert len({path.stat().st_mtime for path in files}) == len(files)
    per_batch = _demo_orders.FILES_PER_BATCH
    assert len(files) == per_batch * batches.count
    for batch in range(batches.count):
        numbers: list[int] = []
        for path in files[batch * per_batch : (batch + 1) * per_batch]:
            for line in path.read_text(encoding="ascii").splitlines():
                run = json.loads(line)
                assert run["last"] - run["first"] < 10_000
                numbers += range(run["first"], run["last"] + 1)
        assert numbers == list(batches.numbers(batch))


def test_the_example_is_what_the_demo_runs() -> None:
    # Not the same file where the package is installed.
    assert (EXAMPLES / "orders.toml").read_bytes() == _demo_run.PIPELINE.read_bytes()
    definition = tomllib.loads(_demo_run.PIPELINE.read_text(encoding="utf-8"))
    assert definition["source"]["options"]["maxFilesPerTrigger"] == _demo_orders.FILES_PER_BATCH
    assert re.fullmatch(r"local\[2,[2-9]\]", definition["spark"]["master"])
    assert {action["action"] for action in definition["expectations"]} == {"dead-letter"}
    sink = definition["sink"]
    assert [sink["topic"], sink["dead_letter_topic"]] == [*_demo.TOPICS]
    assert _demo.headers_of_rejected(order(7)).endswith(f",penstock.topic:{sink['topic']}")


def test_the_files_of_the_example_are_such_as_the_demo_writes(tmp_path: Path) -> None:
    write_input(tmp_path / "input", Batches.of(50_000))
    written = {path.name: path.read_text(encoding="ascii") for path in (tmp_path / "input").iterdir()}
    there = {path.name: path.read_text(encoding="ascii") for path in (EXAMPLES / "orders").iterdir()}
    assert there == written
