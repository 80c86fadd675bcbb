# SPDX-License-Identifier: Apache-2.0
"""How sinks stand, and rolling forward from outside, without disturbing anyone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sink.support import QUERY, TOPIC, Crash, World, abort_from_elsewhere, handles_of, open_task

from penstock import Producer
from penstock.control.partition_log import KeyValue
from penstock.errors import DecidedDataLostError, DecisionInDoubtError, SinkError, SinkLogLostError
from penstock.protocol.messages import INIT_PRODUCER_ID
from penstock.sink import Slots, TaskHandle, inspect_log, inspect_sinks, roll_forward
from penstock.sink.decision import init_producer, write_in_transaction
from penstock.sink.effects import AppendFacts, AppendInTransaction, Effect, Effects, EndTransaction
from penstock.sink.log.records import Claim, Key, claim_record, decide, decision_records
from penstock.sink.messages import Execution


def test_without_a_log_there_are_no_sinks(world: World) -> None:
    assert inspect_sinks(world.config) == []
    with pytest.raises(SinkLogLostError, match="no topic"):
        roll_forward(world.config, "0123456789abcdef")


def test_a_sink_that_is_well(world: World) -> None:
    driver = world.driver()
    driver.batch(3, {0: ["a"]})
    (state,) = inspect_sinks(world.config)
    assert (state.sink_id, state.run_id, state.generation) == ("sink-1", None, 1)
    assert state.sink_key == driver.settings.sink_key
    assert (state.owner, state.planner_pid) == (driver.identity.jvm, driver.identity.planner_pid)
    assert state.last_decided == {QUERY: 3}
    assert state.decision is not None
    assert (state.decision.done, state.decision.handles, state.decision.rows) == (True, (), 1)
    assert not state.needs_roll_forward
    assert not state.deciding
    assert state.left_over == ()
    report = roll_forward(world.config, state.sink_key)
    assert (report.decided, report.handles) == (False, 0)


def test_a_decision_whose_driver_died_is_shown_and_rolled_forward(world: World) -> None:
    driver = world.driver()
    with pytest.raises(Crash):
        driver.batch(0, {0: ["a", "b"], 1: ["c"]}, after=EndTransaction)
    (state,) = inspect_sinks(world.config, driver.settings.sink_key)
    assert state.needs_roll_forward
    assert state.decision is not None
    assert [each.is_open for each in state.decision.handles] == [True, True]
    with world.kafka.locked() as cluster:
        cluster.received.clear()
    report = roll_forward(world.config, state.sink_key)
    assert (report.handles, report.rows) == (2, 3)
    with world.kafka.locked() as cluster:
        assert not any(request.api is INIT_PRODUCER_ID for request in cluster.received)
    assert world.visible() == ["a", "b", "c"]
    (state,) = inspect_sinks(world.config)
    assert not state.needs_roll_forward
    # The driver that comes back finds it done.
    assert driver.batch(0, {0: ["a", "b"], 1: ["c"]}).skipped
    assert world.visible() == ["a", "b", "c"]


def test_what_is_not_decided_is_not_rolled_forward(world: World) -> None:
    driver = world.driver()
    with pytest.raises(Crash):
        driver.batch(0, {0: ["a"]}, after=AppendInTransaction)
    (state,) = inspect_sinks(world.config)
    assert state.deciding
    assert state.decision is None
    assert [each.generation for each in state.left_over] == [1]
    assert roll_forward(world.config, state.sink_key).handles == 0
    assert world.visible() == []


def test_a_loss_is_told_and_may_be_accepted(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, 0, ["a"]), driver.task(plan, 0, 1, ["b", "c"])]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    abort_from_elsewhere(world, messages[1])
    key = driver.settings.sink_key
    with pytest.raises(DecidedDataLostError) as caught:
        roll_forward(world.config, key)
    assert caught.value.partitions == ((TOPIC, 1, 2),)
    assert inspect_sinks(world.config)[0].needs_roll_forward
    report = roll_forward(world.config, key, accept_loss=True)
    assert (report.handles, report.rows) == (1, 1)
    assert not inspect_sinks(world.config)[0].needs_roll_forward
    driver.batch(1, {0: ["d"]})
    assert world.visible() == ["a", "d"]


def test_only_what_is_lost_for_good_is_accepted_as_a_loss(world: World) -> None:
    """A transaction that we may not ask about is perhaps committed, or still open: it must not be written off."""
    driver = world.driver()
    plan = driver.prepare()
    message = driver.task(plan, 0, 0, ["a"])
    with pytest.raises(Crash):
        driver.commit([message], 0, after=EndTransaction)
    (handle,) = handles_of([message])
    with world.kafka.locked() as cluster:
        cluster.denied_transactional_ids.add(handle.transaction.transactional_id)
    with pytest.raises(DecisionInDoubtError, match="Nothing was taken down"):
        roll_forward(world.config, driver.settings.sink_key, accept_loss=True)
    with world.kafka.locked() as cluster:
        cluster.denied_transactional_ids.clear()
    assert roll_forward(world.config, driver.settings.sink_key).rows == 1
    assert world.visible() == ["a"]


def test_a_sink_that_cannot_be_read_does_not_hide_the_others(world: World) -> None:
    broken, well = world.driver(), world.driver(sink_id="well")
    well.batch(0, {1: ["b"]})
    with pytest.raises(Crash):
        broken.batch(0, {0: ["a"]}, after=EndTransaction)
    key = broken.settings.sink_key
    (decided,) = (state.decision for state in inspect_sinks(world.config, key))
    assert decided is not None
    chunk = KeyValue(Key("chunk", key, decided.execution, 0).encode(), None)
    broken.run(_one(AppendFacts(key, (chunk,))))
    assert [state.unreadable for state in inspect_sinks(world.config)] == [None, None]  # not in a transaction
    broken.run(_in_a_transaction(key, chunk))
    states = {state.sink_key: state for state in inspect_sinks(world.config)}
    assert "part 1 of 1" in (states[key].unreadable or "")
    assert states[well.settings.sink_key].unreadable is None
    assert len(states) == 2
    with pytest.raises(SinkLogLostError, match="part 1 of 1"):
        roll_forward(world.config, key)


def _one(effect: Effect) -> Effects[Any]:
    return (yield effect)


def _in_a_transaction(sink_key: str, *records: KeyValue) -> Effects[Any]:
    identity = yield from init_producer("mallory", 30_000)
    yield from write_in_transaction(identity, sink_key, records)
    yield EndTransaction(identity, commit=True)


def test_a_forged_decision_ends_nobodys_transaction(world: World) -> None:
    """A client that may write to the topic could have anybody's transaction committed by the operator's rights."""
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    victim = Producer(world.config, transactional_id="payments-service-1")
    victim.init_transactions()
    victim.begin_transaction()
    victim.send(TOPIC, b"not to be seen", partition=1).result(60)
    stolen = replace(
        victim.detach_transaction(), end_txn_version=driver.prepare().stamp.coordinator.end_txn_version
    )
    key = driver.settings.sink_key
    forged = decide(Execution(9, 9), (QUERY, 1), TOPIC, [TaskHandle(transaction=stolen, rows=1)])
    _, records = decision_records(key, forged, None)
    driver.run(_one(AppendFacts(key, tuple(records))))
    found = inspect_log(world.config)
    assert [state.needs_roll_forward for state in found.sinks] == [False]
    assert roll_forward(world.config, key).handles == 0
    assert [(stray.sink_key, "not written in a transaction" in stray.reason) for stray in found.strays] == [
        (key, True)
    ] * 2
    driver.batch(1, {0: ["b"]})
    # In a transaction of somebody's own it is refused for what it names.
    driver.run(_in_a_transaction(key, *records))
    assert "payments-service-1" in (inspect_sinks(world.config)[0].unreadable or "")
    with pytest.raises(SinkLogLostError, match="not one of this sink's own"):
        roll_forward(world.config, key)
    with pytest.raises(SinkLogLostError, match="not one of this sink's own"):
        driver.prepare()
    assert world.visible() == ["a", "b"]
    victim.close(0)


def test_records_that_cannot_be_read_are_named_and_stop_nobody(world: World) -> None:
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    key = driver.settings.sink_key
    nested = b"[" * 100_000
    other = "f" * 16
    strange = (
        KeyValue(nested, b"x"),
        KeyValue(b'{"format":1,"sink":"' + key.encode() + b'",' + nested, b"x"),
        KeyValue(b"somebody else's", b"x"),
        KeyValue(Key("sink", other).encode(), nested),
    )
    driver.run(_one(AppendFacts(key, strange)))
    driver.run(_in_a_transaction(key, KeyValue(Key("decision", other).encode(), b'{"format":1}')))
    assert driver.batch(1, {0: ["b"]}).decided
    found = inspect_log(world.config)
    assert [(stray.sink_key, stray.reason) for stray in found.strays] == [
        (None, "its key is not one of a sink"),
        (key, "its key is not one of a sink"),
        (None, "its key is not one of a sink"),
    ]
    states = {state.sink_key: state for state in found.sinks}
    assert states[key].unreadable is None
    assert "nested too deeply" in (states[other].unreadable or "")
    assert world.visible() == ["a", "b"]


def test_a_name_that_is_not_the_sinks_is_not_shown(world: World) -> None:
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    key = driver.settings.sink_key
    driver.run(_one(AppendFacts(key, (claim_record(key, Claim("payments", None)),))))
    (state,) = inspect_sinks(world.config)
    assert state.sink_id is None
    assert driver.batch(1, {0: ["b"]}).decided


def test_a_one_off_run_that_was_rolled_forward_is_forgotten(world: World) -> None:
    driver = world.driver(sink_id="batch", run_id="random", one_off=True)
    with pytest.raises(Crash):
        driver.batch(0, {0: ["a"]}, after=EndTransaction)
    roll_forward(world.config, driver.settings.sink_key)
    assert world.visible() == ["a"]
    assert inspect_sinks(world.config) == []


@pytest.mark.parametrize(("sink_id", "run_id"), [("sink-1", None), ("batch", "random")])
def test_a_name_that_is_not_the_sinks_makes_nobody_forget_it(
    world: World, sink_id: str, run_id: str | None
) -> None:
    """Whose tombstones they are makes no difference to compaction: the decisions would be gone."""
    driver = world.driver()
    key = driver.settings.sink_key
    with pytest.raises(Crash):
        driver.batch(0, {0: ["a"]}, after=EndTransaction)
    driver.run(_one(AppendFacts(key, (claim_record(key, Claim(sink_id, run_id, one_off=True)),))))
    assert roll_forward(world.config, key).handles == 1
    found = inspect_log(world.config)
    assert [stray.reason for stray in found.strays] == []
    assert driver.batch(0, {0: ["a"]}).skipped


def test_rolling_forward_disturbs_no_running_job(world: World) -> None:
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    plan = driver.prepare()
    messages = [driver.task(plan, 1, 0, ["b"])]
    roll_forward(world.config, driver.settings.sink_key)
    inspect_sinks(world.config)
    assert driver.commit(messages, 1).decided
    assert world.visible() == ["a", "b"]


def test_left_over_transactions_are_those_of_the_sink(world: World) -> None:
    one, other = world.driver(), world.driver(sink_id="sink-12")
    zombie = open_task(one, one.prepare(), 0, "x", Slots())
    other.batch(0, {1: ["y"]})
    states = {state.sink_id: state for state in inspect_sinks(world.config)}
    assert len(states["sink-1"].left_over) == 1
    assert states["sink-12"].left_over == ()
    zombie.close(0)


def test_a_key_that_nobody_has(world: World) -> None:
    world.driver().prepare()
    assert inspect_sinks(world.config, "0" * 16) == []
    with pytest.raises(SinkError, match="does not know"):
        roll_forward(world.config, "0" * 16)
