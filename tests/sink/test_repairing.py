# SPDX-License-Identifier: Apache-2.0
"""What is lost of a decided batch is written again when it is replayed with the same rows, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from sink.support import Crash, Driver, World, abort_from_elsewhere

from penstock.errors import DecidedDataLostError, DecisionRefusedError
from penstock.sink import inspect_sinks
from penstock.sink.effects import AppendFacts, EndAll, EndTransaction

ROWS = {0: ["a", "b"], 1: ["c"]}


def lose(world: World, *lost: int, rows: dict[int, list[str]] | None = None) -> None:
    """Decide batch 0 and let the transactions of some of its tasks die before they are committed."""
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in (rows or ROWS).items()]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    for number in lost:
        abort_from_elsewhere(world, messages[number])


def repairing(world: World, **changed: Any) -> Driver:
    return world.driver(on_lost="repair", **changed)


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_what_is_lost_is_written_again_and_nothing_else(world: World, lost: tuple[int, ...]) -> None:
    lose(world, *lost)
    driver = repairing(world)
    report = driver.batch(0, ROWS)
    assert (report.decided, report.handles) == (True, len(lost))
    assert world.visible() == ["a", "b", "c"]
    assert driver.batch(0, ROWS).skipped
    driver.batch(1, {0: ["d"]})
    assert world.visible() == ["a", "b", "c", "d"]
    assert world.ongoing() == []


def test_without_the_option_everything_stops(world: World) -> None:
    lose(world, 0)
    with pytest.raises(DecidedDataLostError, match="onLost=repair"):
        world.driver().prepare()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({0: ["a", "B"], 1: ["c"]}, "Task 0 lost 2 rows and has written as many with another checksum"),
        ({0: ["a"], 1: ["b", "c"]}, "Task 0 lost 2 rows and has written 1"),
        ({0: [], 1: ["c"]}, None),
    ],
)
def test_a_replay_that_differs_is_refused(world: World, rows: dict[int, list[str]], text: str | None) -> None:
    lose(world, 0)
    driver = repairing(world)
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in rows.items()]
    with pytest.raises(DecidedDataLostError if text is None else DecisionRefusedError, match=text):
        driver.commit(messages, 0)
    assert driver.abort(messages, 0)
    assert world.visible() == ["c"]
    assert world.ongoing() == []
    assert repairing(world).batch(0, ROWS).decided
    assert world.visible() == ["a", "b", "c"]


@pytest.mark.parametrize("tasks", [2, 0])
def test_a_replay_without_rows_does_not_pass_for_a_repair(world: World, tasks: int) -> None:
    lose(world, 0, 1)
    driver = repairing(world)
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, []) for number in range(tasks)]
    with pytest.raises(DecidedDataLostError, match="2 of its 2 transactions were aborted"):
        driver.commit(messages, 0)
    assert repairing(world).batch(0, ROWS).decided
    assert world.visible() == ["a", "b", "c"]


def test_where_nothing_is_lost_a_batch_without_rows_is_as_ever(world: World) -> None:
    driver = repairing(world)
    driver.batch(0, ROWS)
    report = driver.batch(1, {0: [], 1: []})
    assert (report.decided, report.skipped) == (False, False)
    driver.batch(2, {0: ["d"]})
    assert world.visible() == ["a", "b", "c", "d"]


def test_another_batch_is_not_written_before(world: World) -> None:
    lose(world, 0)
    driver = repairing(world)
    plan = driver.prepare()
    with pytest.raises(DecidedDataLostError, match=r"batch 0 .* batch 1"):
        driver.task(plan, 1, 0, ["d"])
    with pytest.raises(DecidedDataLostError, match="another query"):
        driver.task(plan, 0, 0, ["d"], "another query")


@pytest.mark.parametrize("kind", [EndTransaction, EndAll, AppendFacts])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_may_die_while_it_repairs(world: World, kind: type, when: str) -> None:
    lose(world, 0)
    driver = repairing(world)
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in ROWS.items()]
    # The first EndAll only finds out what is lost.
    with pytest.raises(Crash):
        driver.commit(messages, 0, nth=2 if kind is EndAll else 1, **{when: kind})
    repairing(world).batch(0, ROWS)
    assert world.visible() == ["a", "b", "c"]
    (state,) = inspect_sinks(world.config)
    assert not state.needs_roll_forward


def test_a_repair_may_be_lost_as_well(world: World) -> None:
    lose(world, 0, 1)
    driver = repairing(world)
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in ROWS.items()]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    abort_from_elsewhere(world, messages[1])
    repairing(world).batch(0, ROWS)
    assert world.visible() == ["a", "b", "c"]
