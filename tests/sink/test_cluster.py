# SPDX-License-Identifier: Apache-2.0
"""Effects are carried out one by one, and nothing that goes wrong on the way passes for an answer."""

from __future__ import annotations

from typing import Any

import pytest
from sink.support import World

from penstock.control import ControlClient
from penstock.errors import KafkaError, KafkaTimeoutError
from penstock.protocol.messages import LIST_TRANSACTIONS
from penstock.sink import cluster as module
from penstock.sink.cluster import Cluster, LogReaders
from penstock.sink.effects import Effect, Effects, EndAll, ListOngoing, Note, Reached, ReadLog
from penstock.sink.hooks import Step
from penstock.testing import Fault
from penstock.types import TopicPartition

KEY = "0123456789abcdef"


class Scripted(Cluster):
    """A cluster whose effects have the outcomes of a script."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)

    def perform(self, effect: Effect) -> Any:
        outcome = self.script.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def asking_twice():  # type: ignore[no-untyped-def]
    first = yield ReadLog(KEY)
    try:
        second = yield ReadLog(KEY)
    except KafkaError as error:
        second = yield Note(str(error))
    return first, second


def test_outcomes_are_sent_in_and_failures_thrown_in() -> None:
    assert Scripted(1, 2).run(asking_twice()) == (1, 2)
    assert Scripted(1, KafkaTimeoutError("late"), 3).run(asking_twice()) == (1, 3)
    with pytest.raises(KafkaTimeoutError):
        Scripted(KafkaTimeoutError("late")).run(asking_twice())


def test_an_end_of_something_else_is_not_the_end_of_the_protocol() -> None:
    with pytest.raises(StopIteration):
        Scripted(1, StopIteration("not ours")).run(asking_twice())


def test_ends_are_taken_apart_only_for_a_hook(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, [str(number)]) for number in range(2)]
    visible = []

    def hook(step: Step, facts: object) -> None:
        if step is Step.AFTER_FIRST_END:
            visible.append(world.visible())

    monkeypatch.setattr(module, "current_hook", lambda: hook)
    monkeypatch.setattr(module, "reached", lambda step, **facts: hook(step, facts))
    driver.commit(messages, 0)
    assert visible == [["0"]]
    assert world.visible() == ["0", "1"]


def test_every_effect_can_be_carried_out(world: World) -> None:
    with ControlClient(world.config) as client:
        cluster = Cluster(client, "x", "log")
        handled = set(cluster._performers)
    assert handled == set(Effect.__args__)
    assert {EndAll, Reached, Note} <= handled


def test_readers_are_kept_by_cluster_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = LogReaders()
    place = TopicPartition("log", 0)
    first = readers.reader("a", place)
    assert readers.reader("a", place) is first
    assert readers.reader("b", place) is not first
    assert readers.reader("a", TopicPartition("log", 1)) is not first
    monkeypatch.setattr(module.os, "getpid", lambda: -3)
    assert readers.reader("a", place) is not first  # a child does not share its parent's


def test_a_broker_that_does_not_answer_hides_only_its_own_open_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIST_SECONDS", 1.0)
    driver = world.driver()
    plan = driver.prepare()
    for number in range(6):
        driver.task(plan, 0, number % 2, ["x"])
    key = driver.settings.sink_key
    everything = driver.run(_one(ListOngoing(key)))
    world.kafka.add_fault(Fault(api=LIST_TRANSACTIONS, broker=0, delay=30.0, times=None))
    some = driver.run(_one(ListOngoing(key)))
    assert set(some) < set(everything) or some == everything
    assert some


def _one(effect: Effect) -> Effects[Any]:
    return (yield effect)
