# SPDX-License-Identifier: Apache-2.0
"""A task that nobody waits for any more finds that out before it hands over its transaction."""

from __future__ import annotations

import pytest
from sink.support import World

from penstock.control import ControlClient
from penstock.errors import SinkSupersededError
from penstock.sink import BatchPlan
from penstock.sink.task import check_wanted


def check(world: World, plan: BatchPlan) -> None:
    with ControlClient(world.config) as client:
        check_wanted(plan, client)


def test_a_task_of_the_present_execution_is_wanted(world: World) -> None:
    plan = world.driver().prepare()
    check(world, plan)
    check(world, plan)


def test_a_task_is_not_wanted_after_its_batch_was_decided(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    driver.commit([driver.task(plan, 0, 0, ["a"])], 0)
    with pytest.raises(SinkSupersededError, match="decided without this attempt"):
        check(world, plan)


def test_a_task_is_not_wanted_after_its_batch_was_given_up(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    assert driver.replaced().abort([None], 0)
    with pytest.raises(SinkSupersededError, match="it was stopped"):
        check(world, plan)


@pytest.mark.parametrize("same_driver", [True, False])
def test_a_task_is_not_wanted_after_its_batch_was_begun_anew(world: World, same_driver: bool) -> None:
    driver = world.driver()
    plan = driver.prepare()
    (driver if same_driver else world.driver()).prepare()
    with pytest.raises(SinkSupersededError, match="begun anew"):
        check(world, plan)


def test_brokers_that_do_not_answer_do_not_fail_the_task(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = world.driver().prepare()
    monkeypatch.setattr("penstock.sink.task._ASK_SECONDS", 0.0)
    check(world, plan)
    assert "could not be found out" in caplog.text
