# SPDX-License-Identifier: Apache-2.0
"""abort() undoes what was never decided, and nothing else."""

from __future__ import annotations

import pytest
from sink.support import BATCH_QUERY_ID, Crash, Driver, World, open_task

from penstock.sink import BatchPlan, Message, Slots, inspect_sinks
from penstock.sink.effects import AppendInTransaction, EndAll, EndTransaction


def two_tasks(driver: Driver) -> tuple[BatchPlan, list[Message | None]]:
    plan = driver.prepare()
    return plan, [driver.task(plan, 0, number, [str(number)]) for number in range(2)]


def test_a_batch_that_was_not_decided_is_aborted(world: World) -> None:
    driver = world.driver()
    plan, messages = two_tasks(driver)
    assert driver.abort([messages[0], None], 0)
    assert len(world.ongoing()) == (0 if plan.stamp.coordinator.joins_by_writing else 1)
    assert driver.abort(messages, 0)
    assert driver.abort(messages, 0)  # as often as it takes
    assert world.ongoing() == []
    driver.batch(0, {0: ["0"], 1: ["1"]})
    assert world.visible() == ["0", "1"]


@pytest.mark.parametrize("with_message", [True, False])
def test_what_the_tasks_of_a_failed_batch_job_hold_open_is_aborted(world: World, with_message: bool) -> None:
    driver = world.driver(sink_id="batch", run_id="a")
    plan = driver.prepare()
    dead = open_task(driver, plan, 0, "dead", Slots())
    messages: list[Message | None] = [driver.task(plan, 0, 1, [], BATCH_QUERY_ID)] if with_message else [None]
    assert driver.abort(messages, 0, None if with_message else plan)
    assert world.ongoing() == []
    dead.close(0)
    driver.batch(0, {0: ["a"]}, BATCH_QUERY_ID)
    assert world.visible() == ["a"]


def test_a_one_off_run_that_fails_or_has_no_rows_leaves_nothing_in_the_log(world: World) -> None:
    for number, end in enumerate((Driver.abort, Driver.commit)):
        driver = world.driver(sink_id="batch", run_id=f"random-{number}", one_off=True)
        plan = driver.prepare()
        end(driver, [driver.task(plan, 0, 1, [], BATCH_QUERY_ID)], 0)
        assert inspect_sinks(world.config) == []


def test_without_messages_nothing_is_asked(world: World) -> None:
    driver = world.driver()
    driver.prepare()
    driver.seen.clear()
    assert driver.abort([None, None], 0)
    assert driver.seen == []


def test_a_decision_that_was_begun_is_aborted_first(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=AppendInTransaction)
    driver.seen.clear()
    assert driver.abort(messages, 0)
    kinds = [type(effect) for effect in driver.seen if isinstance(effect, EndTransaction | EndAll)]
    assert kinds == [EndTransaction, EndAll]
    assert world.ongoing() == []
    world.driver().prepare()
    assert world.visible() == []


@pytest.mark.parametrize("stop", [{"after": EndTransaction}, {"before": EndAll}, {"after": EndAll}])
def test_a_decided_batch_is_never_aborted(world: World, stop: dict[str, type]) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    with pytest.raises(Crash):
        driver.commit(messages, 0, **stop)
    driver.seen.clear()
    assert driver.abort(messages, 0) is False
    assert not any(isinstance(effect, EndAll) for effect in driver.seen)
    world.driver().prepare()
    assert world.visible() == ["0", "1"]


def test_after_a_takeover_everything_is_left_to_the_new_driver(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    new = world.driver()
    new.prepare()
    driver.seen.clear()
    assert driver.abort(messages, 0) is False
    assert not any(isinstance(effect, EndAll | EndTransaction) for effect in driver.seen)
