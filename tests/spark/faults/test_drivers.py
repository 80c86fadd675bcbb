# SPDX-License-Identifier: Apache-2.0
"""Drivers that are killed while they commit, and started again on the same checkpoint."""

from __future__ import annotations

import pytest
from fix_snippets import DOCS, snippets
from spark.faults.rules import Rule
from spark.faults.scene import Scene, long_list

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

BEFORE, DECIDED, BETWEEN, ENDED, DONE = (
    "BEFORE_DECISION",
    "AFTER_DECISION",
    "AFTER_FIRST_END",
    "AFTER_ALL_ENDS",
    "AFTER_DONE",
)


def kill_at(step: str, batch: int = 1) -> Rule:
    return Rule(step, ("kill jvm",), batch=batch)


def test_a_driver_is_killed_in_every_batch_each_time_at_another_step(scene: Scene) -> None:
    steps = (BEFORE, DECIDED, BETWEEN, ENDED)
    scene.plan(*(kill_at(step, batch) for batch, step in enumerate(steps)), batches=len(steps) + 1)
    for _ in steps:
        scene.assert_killed()
    scene.assert_well()
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@long_list
@pytest.mark.parametrize("step", ["PREPARED", "COMMITTING", BEFORE, DECIDED, BETWEEN, ENDED, DONE])
def test_a_driver_is_killed(scene: Scene, step: str) -> None:
    scene.plan(kill_at(step))
    if step == "PREPARED":
        scene.driver.stop()  # before a task there is no batch's number, only that of an execution of this program
    scene.assert_killed()
    scene.assert_well()
    assert scene.marks.fired() == 1
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@long_list
def test_the_plan_that_the_page_shows(scene: Scene) -> None:
    (shown,) = (block for block in snippets(DOCS / "testing.md") if "scene.plan(" in block.code)
    exec(compile(shown.code, str(shown), "exec"), {"scene": scene, "Rule": Rule})
    assert scene.marks.fired() == 1


@long_list
@pytest.mark.parametrize("step", [BEFORE, DECIDED, BETWEEN, ENDED])
def test_a_driver_is_killed_twice_at_the_same_step(scene: Scene, step: str) -> None:
    scene.plan(kill_at(step), kill_at(step, batch=2))
    scene.assert_killed()
    scene.assert_killed()
    scene.assert_well()
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@pytest.mark.parametrize("step", [BETWEEN, ENDED])
def test_without_decisions_a_kill_after_the_first_end_repeats_rows(scene: Scene, step: str) -> None:
    off = Rule("COMMITTING", ("without decisions",), times=None)
    scene.plan(off, kill_at(step))
    scene.assert_killed()
    scene.assert_well()
    # Of the two tasks' transactions the first, or both, were ended before the kill.
    found = scene.found()
    tasks = {row[:5] for row in found.repeated}
    assert tasks == {"001 0", "001 1"} if step == ENDED else len(tasks) == 1
    assert not found.missing
