# SPDX-License-Identifier: Apache-2.0
"""abort() undoes what was never decided, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sink.support import BATCH_QUERY_ID, Crash, Driver, World, abort_from_elsewhere, open_task

from penstock import Producer
from penstock._identity import TransactionalIdentity
from penstock.errors import DecisionRefusedError, SinkError
from penstock.sink import BatchPlan, Message, Slots, Written, inspect_sinks
from penstock.sink.effects import (
    AppendInTransaction,
    Effects,
    EndAll,
    EndTransaction,
    FenceAll,
    JoinLog,
    ListOngoing,
    Pause,
)


def two_tasks(driver: Driver) -> tuple[BatchPlan, list[Message | None]]:
    plan = driver.prepare()
    return plan, [driver.task(plan, 0, number, [str(number)]) for number in range(2)]


def test_a_batch_that_was_not_decided_is_aborted(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    assert driver.abort([messages[0], None], 0)
    assert world.ongoing() == []
    assert (
        driver.abort(messages, 0) is False
    )  # nothing can be decided with it any more, so that it is not known
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


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("stray", ["of another batch", "of another sink", "none of ours"])
def test_messages_that_commit_refuses_keep_nothing_open(world: World, stray: str, planned: bool) -> None:
    driver = world.driver()
    plan, (message, second) = two_tasks(driver)
    assert isinstance(second, Written)
    strange: Any = {
        "of another batch": replace(second, batch_id=9),
        "of another sink": replace(second, stamp=replace(second.stamp, sink_key="0" * 16)),
        "none of ours": "?",
    }[stray]
    with pytest.raises(SinkError, match=r"[Nn]othing was decided"):
        driver.commit([message, strange], 0)
    assert driver.abort([message, strange], 0, plan if planned else None)
    assert world.ongoing() == []
    driver.batch(0, {0: ["0"], 1: ["1"]})
    assert world.visible() == ["0", "1"]


@pytest.mark.parametrize("planned", [True, False])
def test_a_transaction_of_somebody_else_is_not_aborted(world: World, planned: bool) -> None:
    """commit() has refused the message that names it; abort() gets the same one."""
    driver = world.driver()
    plan, (message, second) = two_tasks(driver)
    assert isinstance(second, Written)
    with Producer(world.config, transactional_id="payments") as payments:
        payments.init_transactions()
        payments.begin_transaction()
        payments.send("orders", b"paid", partition=0)
        theirs = payments.detach_transaction()
        strange = replace(second, handle=replace(second.handle, transaction=theirs))
        with pytest.raises(SinkError, match="not one of this sink's own"):
            driver.commit([message, strange], 0)
        assert driver.abort([message, strange], 0, plan if planned else None)
    assert world.ongoing() == ["payments"]


def test_a_one_off_run_that_fails_or_has_no_rows_leaves_nothing_in_the_log(world: World) -> None:
    for number, end in enumerate((Driver.abort, Driver.commit)):
        driver = world.driver(sink_id="batch", run_id=f"random-{number}", one_off=True)
        plan = driver.prepare()
        end(driver, [driver.task(plan, 0, 1, [], BATCH_QUERY_ID)], 0)
        assert inspect_sinks(world.config) == []


def test_a_query_that_is_stopped_before_a_task_has_ended_leaves_nothing_open(world: World) -> None:
    """Spark asks a writer that has no plan, in another process than the one that planned."""
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    plan = driver.prepare()
    running = [open_task(driver, plan, number, "never seen", Slots()) for number in range(2)]
    stopped = driver.replaced()
    assert stopped.abort([None, None], 1)
    assert world.ongoing() == []
    for producer in running:
        producer.close(0)
    driver.batch(1, {0: ["b"]})
    assert world.visible() == ["a", "b"]


def test_a_task_that_begins_while_the_batch_is_given_up_is_ended_too(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    late: list[Producer] = []

    def begin(effect: object) -> None:
        if isinstance(effect, Pause) and len(late) < 3:
            late.append(open_task(driver, plan, 0, "late", Slots()))

    driver.before = begin
    assert driver.abort([None], 0)
    assert len(late) == 3
    assert world.ongoing() == []
    for producer in late:
        producer.close(0)


def test_no_wait_for_tasks_that_have_all_ended(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    driver.seen.clear()
    assert driver.abort(messages, 0)
    assert not any(isinstance(effect, Pause) for effect in driver.seen)


def test_a_driver_that_does_not_own_the_sink_gives_nothing_up(world: World) -> None:
    """Its batch came to nothing when another driver took over, and that one has begun a batch of its own."""
    old, new = world.driver(), world.driver()
    assert old.abort([None], 0) is False  # it has planned nothing at all
    old.prepare()
    plan = new.prepare()
    messages: list[Message | None] = [new.task(plan, 0, 0, ["a"])]
    old.seen.clear()
    assert old.abort([None], 0) is False
    assert not any(isinstance(effect, EndAll | FenceAll | EndTransaction) for effect in old.seen)
    new.commit(messages, 0)
    assert world.visible() == ["a"]


def test_a_batch_that_is_planned_meanwhile_is_not_hit(world: World) -> None:
    """The process that gives up the batch before may be slow, when Spark has begun the next one."""
    driver = world.driver()
    driver.prepare()
    other = driver.replaced()
    messages: list[Message | None] = []

    def overtake(effect: object) -> None:
        if isinstance(effect, ListOngoing):
            driver.before = lambda _: None
            messages.append(other.task(other.prepare(), 0, 0, ["a"]))

    driver.before = overtake
    driver.abort([None], 0)
    other.commit(messages, 0)
    assert world.visible() == ["a"]


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


def test_a_decided_batch_is_not_aborted_for_a_request_that_came_late(world: World) -> None:
    """In the older protocol such a request begins another transaction with the identity that has decided."""
    driver = world.driver()
    plan, messages = two_tasks(driver)
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    identity = plan.stamp.coordinator
    if not identity.joins_by_writing:
        driver.run(join_again(identity, plan.stamp.sink_key))
        assert identity.transactional_id in world.ongoing()
    driver.seen.clear()
    assert driver.abort(messages, 0) is False
    assert not any(isinstance(effect, EndAll) for effect in driver.seen)
    world.driver().prepare()
    assert world.visible() == ["0", "1"]


def join_again(identity: TransactionalIdentity, sink_key: str) -> Effects[None]:
    yield JoinLog(identity, sink_key)


def test_after_a_takeover_everything_is_left_to_the_new_driver(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    new = world.driver()
    new.prepare()
    driver.seen.clear()
    assert driver.abort(messages, 0) is False
    assert not any(isinstance(effect, EndAll | EndTransaction) for effect in driver.seen)


def test_after_a_decision_that_was_refused_nothing_stays_open(world: World) -> None:
    """commit() has given its decision up, and ended what it knew of; an attempt that lost a race is open as well."""
    driver = world.driver()
    plan, messages = two_tasks(driver)
    loser = open_task(driver, plan, 0, "never seen", Slots())
    first = messages[0]
    assert first is not None
    abort_from_elsewhere(world, first)
    with pytest.raises(DecisionRefusedError):
        driver.commit(messages, 0)
    assert driver.abort(messages, 0)
    assert world.ongoing() == []
    loser.close(0)
    driver.batch(0, {0: ["0"], 1: ["1"]})
    assert world.visible() == ["0", "1"]


def test_a_task_that_begins_late_is_ended_too(world: World) -> None:
    """Its worker was still importing when the batch was given up; Spark kills it two seconds after the cancel."""
    driver = world.driver()
    plan = driver.prepare()
    late: list[Producer] = []

    def begin(effect: object) -> None:
        if isinstance(effect, Pause) and sum(isinstance(each, Pause) for each in driver.seen) == 5:
            late.append(open_task(driver, plan, 0, "late", Slots()))

    driver.before = begin
    assert driver.abort([None], 0)
    assert len(late) == 1
    assert world.ongoing() == []
    late[0].close(0)
