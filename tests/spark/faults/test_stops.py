# SPDX-License-Identifier: Apache-2.0
"""Queries and jobs that are stopped or killed in the middle of a batch: nothing of theirs may hold readers back."""

from __future__ import annotations

import pytest
from spark.faults.rules import Rule, wait_until
from spark.faults.scene import Scene, long_list

from penstock.sink import inspect_sinks

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FIRST_ROW, FLUSHED = "TASK_FIRST_ROW", "TASK_FLUSHED"


def writing(step: str, partition: int, batch: int | None = None) -> Rule:
    """A task is held up; it cannot see meanwhile that Spark has cancelled it."""
    return Rule(step, (f"touch in-{partition}", "await go"), batch=batch, partition=partition)


def assert_rest_is_written(scene: Scene) -> None:
    """The next run writes what is missing, and repeats nothing."""
    scene.marks.touch("go")
    scene.assert_well()
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@pytest.mark.parametrize(
    "tasks", [(0, 1), pytest.param((1,), marks=long_list)], ids=["no task has ended", "one task has ended"]
)
def test_a_query_that_is_stopped_in_mid_batch_leaves_nothing_open(
    scene: Scene, tasks: tuple[int, ...]
) -> None:
    scene.plan(*(writing(FLUSHED, task, batch=1) for task in tasks))
    ending = scene.run(stop_at="in-1")
    assert ending.well, ending
    scene.assert_nothing_left_open()
    assert_rest_is_written(scene)


@long_list
@pytest.mark.parametrize(
    ("step", "hold"),
    [("TASK_DETACHED", "await go"), ("COMMITTING", "pause 3"), ("BEFORE_DECISION", "pause 3")],
)
@pytest.mark.parametrize("attempt", range(2))
def test_a_query_that_is_stopped_while_it_is_about_to_decide_leaves_nothing_open(
    scene: Scene, step: str, hold: str, attempt: int
) -> None:
    """Spark kills a task; of the sink's commit() it awaits the end, or raises when that takes longer than 10 s here."""
    scene.plan(Rule(step, ("touch in-1", hold), batch=1))
    assert scene.run(stop_at="in-1").well
    scene.assert_nothing_left_open()
    assert_rest_is_written(scene)


def test_a_task_that_goes_on_after_a_stop_gives_up_by_itself(scene: Scene) -> None:
    """It has written nothing when the query is stopped, so that nobody can see it."""
    scene.plan(writing(FIRST_ROW, 1, batch=1))
    assert scene.run(stop_at="in-1").well
    scene.assert_nothing_left_open()
    scene.marks.begin(Rule(FLUSHED, ("touch flushed",)))  # which also ends the wait for a mark that is gone
    scene.marks.touch("go")
    scene.marks.wait("flushed")
    scene.assert_nothing_left_open()
    assert_rest_is_written(scene)


def test_a_job_that_is_cancelled_leaves_nothing_open(scene: Scene) -> None:
    scene.plan(writing(FLUSHED, 0), writing(FLUSHED, 1), batches=1)
    ending = scene.run(kind="batch", stop_at="in-1")
    assert ending.error is not None
    assert not scene.left_open_in_topic()
    scene.marks.touch("go")
    scene.assert_well(kind="batch")
    scene.assert_exactly_once()


def test_the_next_job_ends_what_a_killed_one_left(scene: Scene) -> None:
    """Neither has a runId, so that nothing but the sinkId connects them."""
    scene.plan(Rule(FLUSHED, ("kill jvm",), partition=1), batches=1)
    ending = scene.run(kind="batch")
    assert ending.killed, ending
    wait_until(lambda: bool(scene.left_open_in_topic()), "the killed job's transactions to be open")
    scene.assert_well(kind="batch")
    assert not scene.left_open_in_topic()
    scene.assert_exactly_once()
    sinks = [state.sink_id for state in inspect_sinks({"bootstrap.servers": scene.servers})]
    assert scene.name not in sinks  # and nobody will ever ask for either again
