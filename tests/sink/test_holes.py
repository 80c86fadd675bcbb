# SPDX-License-Identifier: Apache-2.0
"""Holes that the rules close, each made to happen; those that other tests of this folder show are not repeated."""

from __future__ import annotations

import pytest
from sink.support import QUERY, TOPIC, Crash, World, handles_of, open_by_hand, open_task

from penstock import complete_transaction
from penstock.control import ControlClient
from penstock.control.partition_log import init_producer_id
from penstock.errors import DecisionRefusedError, KafkaError
from penstock.sink import Slots
from penstock.sink.effects import AppendInTransaction, EndTransaction, InitProducer
from penstock.sink.identity import coordinator_id


def test_a_late_commit_of_one_transaction_does_not_touch_the_next_of_the_same_id(world: World) -> None:
    driver = world.driver()
    first = driver.task(driver.prepare(), 0, 0, ["a"])
    driver.commit([first], 0)
    second = driver.task(driver.prepare(), 1, 0, ["b"])
    handle = handles_of([first])[0].transaction
    assert handle.transactional_id == handles_of([second])[0].transaction.transactional_id
    assert complete_transaction(
        handle, config=world.config
    ).committed  # comes late; the log tells how it ended
    assert world.visible() == ["a"]
    driver.commit([second], 1)
    assert world.visible() == ["a", "b"]


def test_a_late_initialisation_that_aborts_a_handle_means_no_decision(world: World) -> None:
    """Why an id whose answer was lost is burnt: this is what would happen, and still nothing is half-visible."""
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, 0, ["a"]), driver.task(plan, 0, 1, ["b"])]
    with ControlClient(world.config) as client:
        init_producer_id(client, handles_of(messages)[0].transaction.transactional_id, 60_000)
    with pytest.raises(DecisionRefusedError):
        driver.commit(messages, 0)
    assert world.visible() == []


def test_another_sinks_open_decision_does_not_hide_ours(world: World) -> None:
    """Both are in the same partition of the log, and the other one's transaction was begun earlier."""
    other, driver = world.driver(sink_id="other"), world.driver()
    with pytest.raises(Crash):
        other.batch(0, {1: ["other"]}, before=EndTransaction, nth=1)
    with pytest.raises(Crash):
        driver.batch(0, {0: ["a"]}, after=EndTransaction)
    with world.kafka.locked() as cluster:
        log = cluster.partition("penstock-sink-log", 0).log
        assert log.last_stable_offset < log.high_watermark
    assert driver.prepare().last_decided == {QUERY: 0}
    assert world.visible() == ["a"]


def test_two_sinks_decide_at_the_same_time(world: World) -> None:
    one, two = world.driver(sink_id="one"), world.driver(sink_id="two")
    plans = [driver.prepare() for driver in (one, two)]
    messages = [
        [driver.task(plan, 0, n, [str(n)])]
        for n, (driver, plan) in enumerate(zip((one, two), plans, strict=True))
    ]
    with pytest.raises(Crash):
        one.commit(messages[0], 0, before=EndTransaction)
    two.commit(messages[1], 0)
    assert world.visible() == ["1"]
    one.abort(messages[0], 0)
    one.batch(0, {0: ["0"]})
    assert world.visible() == ["0", "1"]


def test_a_sink_whose_name_begins_with_anothers_is_left_alone(world: World) -> None:
    eu = world.driver(sink_id="orders-eu")
    plan = eu.prepare()
    messages = [eu.task(plan, 0, 0, ["eu"])]
    orders = world.driver(sink_id="orders")
    orders.batch(0, {1: ["x"]})
    world.driver(sink_id="orders").prepare()
    eu.commit(messages, 0)
    assert world.visible() == ["eu", "x"]


def test_an_id_that_only_looks_like_ours_is_left_alone(world: World) -> None:
    driver = world.driver()
    key = driver.settings.sink_key
    foreign = [f"ps.{key}.0.w.0.more", f"ps.{key[:-1]}.0.w.0", f"xps.{key}.0.w.0"]
    for name in foreign:
        open_by_hand(world, name)
    driver.prepare()
    driver.prepare()
    assert world.ongoing() == sorted(foreign)


def test_a_deleted_checkpoint_does_not_clean_up_what_the_old_query_decided(world: World) -> None:
    driver = world.driver()
    with pytest.raises(Crash):
        driver.batch(7, {0: ["old"]}, query_id="old", after=EndTransaction)
    new = world.driver()
    new.batch(0, {0: ["new"]}, query_id="new")
    assert world.visible() == ["new", "old"]


def test_an_idle_old_driver_does_not_fence_the_new_one(world: World) -> None:
    old = world.driver()
    old.batch(0, {0: ["a"]})
    new = world.driver()
    plan = new.prepare()
    messages = [new.task(plan, 1, 0, ["b"])]
    for _ in range(3):
        with pytest.raises(KafkaError):
            old.prepare()
    assert new.commit(messages, 1).decided


def test_an_old_driver_that_was_already_past_its_first_look_is_stopped_at_the_second(world: World) -> None:
    old = world.driver()
    old.batch(0, {0: ["a"]})
    new = world.driver()

    def overtake(effect: object) -> None:
        own = coordinator_id(old.settings.sink_key)
        if isinstance(effect, InitProducer) and effect.transactional_id == own:
            old.before = lambda _: None
            new.batch(1, {0: ["b"]})

    old.before = overtake
    with pytest.raises(KafkaError, match="another driver"):
        old.prepare()
    new.batch(2, {0: ["c"]})
    assert world.visible() == ["a", "b", "c"]


def test_an_owner_record_without_an_answer_is_found_in_the_log(world: World) -> None:
    """The transaction of the owner record was committed, and the driver fenced before it knew that."""
    driver = world.driver()

    def fence(effect: object) -> None:
        if isinstance(effect, EndTransaction):
            driver.before = lambda _: None
            driver.run(_perform(effect))
            with world.kafka.locked() as cluster:
                cluster.fence(effect.identity.transactional_id, 0.0)

    driver.before = fence
    assert driver.prepare().execution.generation == 1


def _perform(effect: EndTransaction):  # type: ignore[no-untyped-def]
    yield effect


def test_a_live_task_under_a_clean_up_is_never_half_committed(world: World) -> None:
    """The older protocol lets a task whose transaction was aborted go on under the same epoch."""
    driver = world.driver()
    plan = driver.prepare()
    zombie = open_task(driver, plan, 0, "first half", Slots())
    following = driver.prepare()
    try:
        zombie.send(TOPIC, b"second half", partition=0)
        zombie.flush()
        zombie.detach_transaction()
    except KafkaError:
        pass
    driver.commit([driver.task(following, 0, 1, ["whole"])], 0)
    driver.prepare()
    assert world.visible() == ["whole"]
    zombie.close(0)


def test_a_decision_that_could_not_be_written_decides_nothing(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, 0, ["a"])]

    def fence(effect: object) -> None:
        if isinstance(effect, AppendInTransaction):
            driver.before = lambda _: None
            with world.kafka.locked() as cluster:
                cluster.fence(effect.identity.transactional_id, 0.0)

    driver.before = fence
    with pytest.raises(DecisionRefusedError, match="could not be written"):
        driver.commit(messages, 0)
    assert driver.abort(messages, 0) is False
    driver.batch(0, {0: ["a"]})
    assert world.visible() == ["a"]
