# SPDX-License-Identifier: Apache-2.0
"""Tasks that fail: what an attempt has written before it failed must never be seen."""

from __future__ import annotations

import pytest
from spark.faults.rules import Rule
from spark.faults.scene import Scene, long_list

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FIRST_ROW, FLUSHED, DETACHED = "TASK_FIRST_ROW", "TASK_FLUSHED", "TASK_DETACHED"
AT_LEAST_ONCE = {"delivery": "at-least-once"}


@pytest.mark.parametrize("step", [pytest.param(FIRST_ROW, marks=long_list), FLUSHED, DETACHED])
def test_a_task_that_raises_is_retried(scene: Scene, step: str) -> None:
    scene.plan(Rule(step, ("raise",), batch=1, partition=0, attempt=0))
    scene.assert_well()
    assert scene.marks.fired() == 1
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@pytest.mark.parametrize("step", [FIRST_ROW, FLUSHED, pytest.param(DETACHED, marks=long_list)])
def test_a_python_worker_is_killed(scene: Scene, step: str) -> None:
    scene.plan(Rule(step, ("kill self",), batch=1, partition=1, attempt=0))
    scene.assert_well()
    assert scene.marks.fired() == 1
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@pytest.mark.parametrize("action", ["raise", "kill self"])
def test_at_least_once_repeats_what_a_failed_attempt_has_written(scene: Scene, action: str) -> None:
    scene.plan(Rule(FLUSHED, (action,), batch=1, partition=1, attempt=0), **AT_LEAST_ONCE)
    scene.assert_well()
    assert scene.marks.fired() == 1
    scene.assert_repeated(*scene.input.lines(batch=1, task=1))


def test_a_batch_that_fails_for_good_is_not_seen_and_written_by_the_next_run(scene: Scene) -> None:
    scene.plan(Rule(FLUSHED, ("raise",), batch=1, partition=0, times=4))
    ending = scene.run()
    assert ending.error is not None
    assert "planned at TASK_FLUSHED" in ending.error
    assert scene.marks.fired() == 4
    scene.assert_well()
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()
