# SPDX-License-Identifier: Apache-2.0
"""Transactional ids say whose they are, and no sink's are mistaken for another's."""

from __future__ import annotations

import re

import pytest

from penstock.sink.identity import TaskId, coordinator_id, parse_task_id, probe_id, task_id_pattern

KEY, OTHER = "0123456789abcdef", "0123456789abcde0"


def test_a_task_id_can_be_read_back() -> None:
    name = TaskId(KEY, 12, "ab34", 5)
    assert str(name) == "ps.0123456789abcdef.12.ab34.5"
    assert parse_task_id(str(name)) == name


@pytest.mark.parametrize(
    "other",
    [
        coordinator_id(KEY),
        probe_id(KEY),
        "",
        "ps",
        f"ps.{KEY}.1.w",
        f"ps.{KEY}.1.w.0.1",
        f"x.{KEY}.1.w.0",
        f"ps.{KEY}.c.w.0",
    ],
)
def test_other_ids_are_no_task_ids(other: str) -> None:
    assert parse_task_id(other) is None
    assert re.fullmatch(task_id_pattern(KEY), other) is None


def test_the_pattern_finds_all_generations_of_one_sink_only() -> None:
    pattern = re.compile(task_id_pattern(KEY))
    assert pattern.fullmatch(str(TaskId(KEY, 1, "a", 0)))
    assert pattern.fullmatch(str(TaskId(KEY, 99, "ab-cd", 77)))
    assert not pattern.fullmatch(str(TaskId(OTHER, 1, "a", 0)))
    assert not pattern.fullmatch("x" + str(TaskId(KEY, 1, "a", 0)))
