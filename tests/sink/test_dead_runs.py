# SPDX-License-Identifier: Apache-2.0
"""The next run of a sink id ends what a dead one has left open; of two runs that live none ends the other's."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sink.support import BATCH_QUERY_ID, TOPIC, Crash, Driver, World, open_by_hand

from penstock.errors import SinkSupersededError
from penstock.sink import DriverIdentity, Life, Message, end_left_over, inspect_log, inspect_sinks
from penstock.sink import identity as module
from penstock.sink.effects import AppendFacts, Effect, Effects, EndTransaction, InitProducer, ListOngoing
from penstock.sink.identity import Jvm, coordinator_id, current_place
from penstock.sink.log.records import Claim, claim_record

_numbers = itertools.count(1)


class Java:
    """A process that stands for the driver's Java process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        found = module._look_at(self.process.pid)
        assert found is not None
        self.jvm = Jvm("host", self.process.pid, found.started)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def driver(self, world: World, place: str | None = None, **settings: Any) -> Driver:
        """A run of a batch job without a sinkId and a runId, unless something else is said."""
        number = next(_numbers)
        job = {"sink_id": "batch", "run_id": f"random-{number}", "one_off": True} | settings
        where = current_place() if place is None else place
        identity = DriverIdentity(self.jvm, number, f"token-{number}", where)
        return Driver(world, world.settings(**job), identity)


@pytest.fixture
def java() -> Iterator[Java]:
    started = Java()
    yield started
    started.kill()


@pytest.fixture
def other() -> Iterator[Java]:
    started = Java()
    yield started
    started.kill()


def leave_open(driver: Driver) -> None:
    """A task writes, and that is the last that is heard of it."""
    driver.task(driver.prepare(), 0, 0, ["never seen"], BATCH_QUERY_ID)


def write(driver: Driver, value: str) -> None:
    driver.batch(0, {1: [value]}, BATCH_QUERY_ID)


@pytest.mark.parametrize("named", [False, True])
def test_what_a_dead_run_left_open_is_ended_by_the_next_one(
    world: World, java: Java, other: Java, named: bool
) -> None:
    """Neither has a sinkId, and their runs have different names."""
    run = {"run_id": "monday", "one_off": False} if named else {}
    left = java.driver(world, **run)
    leave_open(left)
    assert len(world.ongoing()) == 1
    java.kill()
    write(other.driver(world), "a")
    assert world.ongoing() == []
    assert world.visible() == ["a"]
    assert [state.run_id for state in inspect_sinks(world.config)] == (["monday"] if named else [])


def test_what_a_dead_run_has_decided_is_finished(world: World, java: Java, other: Java) -> None:
    left = java.driver(world)
    with pytest.raises(Crash):
        left.batch(0, {0: ["a"], 1: ["b"]}, BATCH_QUERY_ID, after=EndTransaction)
    java.kill()
    write(other.driver(world), "c")
    assert world.visible() == ["a", "b", "c"]
    assert inspect_sinks(world.config) == []


def test_a_process_that_has_outlived_its_driver_decides_no_more(
    world: World, java: Java, other: Java
) -> None:
    left = java.driver(world)
    messages: list[Message | None] = [left.task(left.prepare(), 0, 0, ["never seen"], BATCH_QUERY_ID)]
    java.kill()

    def meanwhile(effect: object) -> None:
        if isinstance(effect, EndTransaction):
            left.before = lambda _: None
            write(other.driver(world), "a")

    left.before = meanwhile
    with pytest.raises(Exception, match="decided"):
        left.commit(messages, 0)
    assert world.visible() == ["a"]
    assert world.ongoing() == []


def test_two_runs_side_by_side_are_left_alone_while_a_third_starts(
    world: World, java: Java, other: Java
) -> None:
    """Two threads of one driver, and a third run in it and in another driver on the same host."""
    runs = [java.driver(world) for _ in range(2)]
    messages = [[run.task(run.prepare(), 0, 0, [str(n)], BATCH_QUERY_ID)] for n, run in enumerate(runs)]
    write(java.driver(world), "same driver")
    write(other.driver(world), "other driver")
    assert len(world.ongoing()) == 2
    for run, handles in zip(runs, messages, strict=True):
        assert run.commit(handles, 0).decided
    assert world.visible() == ["0", "1", "other driver", "same driver"]


@pytest.mark.parametrize("place", ["", "another boot pid:[4026531836]"])
def test_of_a_run_elsewhere_nothing_is_known_and_it_is_left_alone(
    world: World, java: Java, other: Java, place: str
) -> None:
    """A container or machine with the same name: its process ids mean nothing here."""
    run = java.driver(world, place)
    messages = [run.task(run.prepare(), 0, 0, ["elsewhere"], BATCH_QUERY_ID)]
    java.kill()
    write(other.driver(world), "here")
    assert run.commit(messages, 0).decided
    assert world.visible() == ["elsewhere", "here"]


def test_other_sink_ids_are_left_alone(world: World, java: Java, other: Java) -> None:
    leave_open(java.driver(world))
    java.kill()
    write(other.driver(world, sink_id="orders"), "a")
    assert len(world.ongoing()) == 1


def test_a_run_that_is_taken_up_again_meanwhile_is_left_alone(world: World, java: Java, other: Java) -> None:
    named = {"run_id": "monday", "one_off": False}
    leave_open(java.driver(world, **named))
    java.kill()
    again, third = other.driver(world, **named), other.driver(world)
    messages: list[Message | None] = []

    def take_up(effect: object) -> None:
        if isinstance(effect, ListOngoing) and effect.sink_key is None:
            third.before = lambda _: None
            messages.append(again.task(again.prepare(), 0, 0, ["monday"], BATCH_QUERY_ID))

    third.before = take_up
    write(third, "a")
    own = coordinator_id(again.settings.sink_key)
    taken = [
        effect for effect in third.seen if isinstance(effect, InitProducer) and effect.transactional_id == own
    ]
    assert taken == []
    assert again.commit(messages, 0).decided
    assert world.visible() == ["a", "monday"]


def test_a_run_that_is_done_costs_no_look(world: World, java: Java, other: Java) -> None:
    write(java.driver(world, run_id="monday", one_off=False), "a")
    java.kill()
    third = other.driver(world)
    write(third, "b")
    assert not any(isinstance(effect, ListOngoing) and effect.sink_key is None for effect in third.seen)


# ---- by hand


def test_what_is_left_open_is_shown_with_its_driver_and_ended_when_asked_for(
    world: World, java: Java
) -> None:
    left = java.driver(world)
    leave_open(left)
    key = left.settings.sink_key
    (state,) = inspect_sinks(world.config)
    assert state.life is Life.RUNS
    assert end_left_over(world.config, key, elsewhere=True) == []
    java.kill()
    (state,) = inspect_sinks(world.config)
    (found,) = state.left_over
    assert state.life is Life.ENDED
    assert found.partitions == ((TOPIC, 0),)
    assert (found.started_ms > 0, found.timeout_ms) == (True, 900_000)
    assert end_left_over(world.config, key) == [found.transactional_id]
    assert world.ongoing() == []
    assert inspect_sinks(world.config) == []


def test_a_query_that_somebody_calls_one_off_is_not_forgotten(world: World, java: Java) -> None:
    left = java.driver(world, sink_id="stream", run_id=None, one_off=False)
    left.batch(0, {0: ["a"]})
    left.task(left.prepare(), 1, 0, ["never seen"])
    key = left.settings.sink_key
    forged = claim_record(key, Claim("stream", None, one_off=True))
    left.run(_one(AppendFacts(key, (forged,))))
    java.kill()
    assert len(end_left_over(world.config, key)) == 1
    assert inspect_log(world.config).strays == ()


def _one(effect: Effect) -> Effects[Any]:
    return (yield effect)


def test_of_a_driver_elsewhere_only_who_says_so_ends_what_is_open(world: World, java: Java) -> None:
    left = java.driver(world, "elsewhere", sink_id="stream", run_id=None, one_off=False)
    messages = [left.task(left.prepare(), 0, 0, ["never seen"])]
    key = left.settings.sink_key
    assert end_left_over(world.config, key) == []
    assert len(end_left_over(world.config, key, elsewhere=True)) == 1
    with pytest.raises(SinkSupersededError):  # it did run, and is told
        left.commit(messages, 0)
    left.batch(0, {0: ["a"]})
    assert world.visible() == ["a"]


def test_what_a_driver_that_was_replaced_has_open_is_ended_beside_the_one_that_runs(
    world: World, java: Java, other: Java
) -> None:
    stream = {"sink_id": "stream", "run_id": None, "one_off": False}
    old, new = java.driver(world, **stream), other.driver(world, **stream)
    old.prepare()
    messages = [new.task(new.prepare(), 0, 0, ["a"])]
    zombie = f"ps.{new.settings.sink_key}.1.zombie.0"
    open_by_hand(world, zombie)
    assert len(world.ongoing()) == 2
    assert end_left_over(world.config, new.settings.sink_key) == [zombie]
    new.commit(messages, 0)
    assert world.visible() == ["a"]


def test_transactions_of_a_sink_that_the_log_does_not_know_are_listed(world: World) -> None:
    world.driver().batch(0, {0: ["a"]})
    unknown = "0123456789abcdef"
    open_by_hand(world, f"ps.{unknown}.1.zombie.0")
    states = {state.sink_key: state for state in inspect_sinks(world.config)}
    assert len(states[unknown].left_over) == 1
    assert states[unknown].owner is None
    assert end_left_over(world.config, unknown, elsewhere=True) == []
