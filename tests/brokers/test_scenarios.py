# SPDX-License-Identifier: Apache-2.0
"""The scenarios with clusters of their own find what they are there to find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fix_flood import Outage

from brokers.__main__ import SCENARIOS
from brokers.memory import too_much
from brokers.mixed import wrong_formats, wrongly_told
from brokers.rolling import Upgrade, miscounted
from brokers.segments import Entry
from penstock.devbroker import RELEASES


def test_every_scenario_is_in_the_column_of_a_release() -> None:
    assert {scenario.old for scenario in SCENARIOS} <= set(RELEASES)
    assert len({(scenario.name, scenario.old) for scenario in SCENARIOS}) == len(SCENARIOS)


@pytest.mark.parametrize(
    ("old", "new", "total", "before", "found"),
    [
        ("0.10.2.2", "0.11.0.3", 60, 60, None),
        ("0.10.2.2", "0.11.0.3", 0, 0, "no record was converted"),
        ("0.10.2.2", "0.11.0.3", 100, 60, "also for new leaders"),
        ("0.10.2.2", "0.11.0.3", 60, 50, "10 records were converted when all leaders were new"),
        ("2.8.2", "3.9.1", 0, 0, None),
        ("2.8.2", "3.9.1", 1, 1, "none had to be"),
    ],
)
def test_conversions_are_counted(old: str, new: str, total: int, before: int, found: str | None) -> None:
    load: Any = SimpleNamespace(totals={"record-conversion-total": float(total)}, deliveries=[None] * 100)
    problems = miscounted(Upgrade(old, new), load, before)
    assert found in problems[0] if found else problems == []


def test_each_partition_has_the_format_of_its_leader() -> None:
    good = [[Entry(0, 0, 1, "none")], [Entry(0, 3, 2, "none", 4000, 0)], [Entry(0, 0, 0, "none")]]
    assert wrong_formats(good) == []
    assert "magic [[1], [1], [0]]" in wrong_formats([good[0], good[0], good[2]])[0]
    unnumbered = [good[0], [Entry(0, 3, 2, "none")], good[2]]
    assert wrong_formats(unnumbered) == ["1 batches of magic 2 have no numbers"]


def test_it_must_be_said_that_idempotence_is_off() -> None:
    text = "idempotence is switched off for the records of t-0"
    assert wrongly_told(0, [text]) == []
    assert "0 times" in wrongly_told(0, [])[0]
    assert wrongly_told(1, [text]) == ["idempotence-enabled is not 0"]


def test_memory_has_a_limit() -> None:
    def outage(**settled: Any) -> Outage:
        good = {"peak": 80_000_000, "idle": 10_000_000, "accepted": [5, 5], "acknowledged": 10}
        return Outage({}, {**good, "converted": 10, "errors": {}, **settled})

    assert too_much(outage()) == []
    assert "more than buffer.memory and 40 MB" in too_much(outage(peak=90_000_000))[0]
    assert "9 records were acknowledged" in too_much(outage(acknowledged=9))[0]
    assert "only 3 records were converted" in too_much(outage(converted=3))[0]
