# SPDX-License-Identifier: Apache-2.0
"""abort() undoes what was never decided, and nothing else."""

from __future__ import annotations

import pytest
from sink.support import Crash, Driver, World

from penstock.sink import BatchPlan, Message
from penstock.sink.effects import AppendInTransaction, EndAll, EndTransaction


def two_tasks(driver: Driver) -> tuple[BatchPlan, list[Message | None]]:
    plan = driver.prepare()
    return plan, [driver.task(plan, 0, number, [str(number)]) for number in range(2)]


def test_a_batch_that_was_not_decided_is_aborted(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    assert driver.abort([messages[0], None], 0)
    assert len(world.ongoing()) == 1
    assert driver.abort(messages, 0)
    assert driver.abort(messages, 0)  # as often as it takes
    assert world.ongoing() == []
    driver.batch(0, {0: ["0"], 1: ["1"]})
    assert world.visible() == ["0", "1"]


def test_without_handles_nothing_is_asked(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    driver.seen.clear()
    assert driver.abort([driver.task(plan, 0, 0, []), None], 0)
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
