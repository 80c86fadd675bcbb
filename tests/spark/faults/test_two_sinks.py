# SPDX-License-Identifier: Apache-2.0
"""Sinks and drivers that meet on one real broker, by the calls that Spark's writers make; no Spark here."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from spark.faults.reading import PARTITIONS, look

from penstock import Producer
from penstock.control import create_topic, describe_transactions
from penstock.devbroker import DevCluster
from penstock.errors import RunIdReusedError, SinkSupersededError
from penstock.sink import (
    CommitReport,
    DriverIdentity,
    Message,
    SinkSettings,
    Slots,
    Step,
    TaskHandle,
    Written,
    commit,
    hooks,
    open_transaction,
    prepare,
)
from penstock.sink.identity import Jvm

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUERY = "query"
_numbers = itertools.count(1)


def row(number: int) -> str:
    return f"000 0 {number:05}"


@dataclass
class Driver:
    """One driver of a sink, with workers of its own."""

    settings: SinkSettings
    identity: DriverIdentity = field(init=False)
    slots: Slots = field(default_factory=Slots)

    def __post_init__(self) -> None:
        number = next(_numbers)
        self.identity = DriverIdentity(
            Jvm("host", number, f"started {number}"), number, f"{number}-{uuid.uuid4().hex}"
        )

    def write(self, *rows: int, batch: int = 0, query: str = QUERY) -> list[Message]:
        """Plan a batch, and run its tasks: one for each row."""
        plan = prepare(self.settings, self.identity)
        messages: list[Message] = []
        for task, number in enumerate(rows):
            options = {
                **self.settings.config,
                "transactional.id": "placeholder",
                "transaction.timeout.ms": plan.transaction_timeout_ms,
            }
            with Producer(options) as producer:
                open_transaction(producer, plan, self.slots)
                topic = self.settings.topic
                assert topic is not None
                producer.send(topic, row(number).encode(), partition=number % 2)
                handle = TaskHandle(transaction=producer.detach_transaction(), task=task, rows=1)
            messages.append(Written(plan.stamp, query, batch, handle))
        return messages

    def commit(self, messages: list[Message], batch: int = 0) -> CommitReport:
        return commit(self.settings, messages, batch)


MakeDriver = Callable[..., Driver]


@pytest.fixture
def name(dev_cluster: DevCluster) -> str:
    name = f"two-{uuid.uuid4().hex[:10]}"
    create_topic(name, PARTITIONS, config={"bootstrap.servers": dev_cluster.bootstrap_servers})
    return name


@pytest.fixture
def make_driver(dev_cluster: DevCluster, name: str) -> MakeDriver:
    def make(suffix: str = "", **changed: Any) -> Driver:
        values = {
            "sink_id": name + suffix,
            "topic": name,
            "config": {"bootstrap.servers": dev_cluster.bootstrap_servers},
        }
        return Driver(SinkSettings(**(values | changed)))

    return make


def assert_seen(dev_cluster: DevCluster, name: str, *rows: int) -> None:
    found = look(dev_cluster.bootstrap_servers, name, map(row, rows))
    assert found.exactly_once, str(found)


def test_the_older_driver_is_fenced_and_told_so(
    dev_cluster: DevCluster, name: str, make_driver: MakeDriver
) -> None:
    old, new = make_driver(), make_driver()
    abandoned = old.write(1, 2)
    decided = new.write(3, 4)
    with pytest.raises(SinkSupersededError, match="another driver"):
        old.commit(abandoned)
    new.commit(decided)
    with pytest.raises(SinkSupersededError, match="belongs to another driver now"):
        old.write(5)
    assert_seen(dev_cluster, name, 3, 4)


def test_an_idle_driver_that_wakes_later_touches_nothing(
    dev_cluster: DevCluster, name: str, make_driver: MakeDriver
) -> None:
    old, new = make_driver(), make_driver()
    old.commit(old.write(0))
    waiting = new.write(1, 2, batch=1)
    with pytest.raises(SinkSupersededError, match="belongs to another driver now"):
        old.write(3, batch=1)
    new.commit(waiting, 1)
    assert_seen(dev_cluster, name, 0, 1, 2)


def test_a_sink_whose_name_begins_like_anothers_leaves_it_alone(
    dev_cluster: DevCluster, name: str, make_driver: MakeDriver
) -> None:
    longer, shorter = make_driver("-eu"), make_driver()
    waiting = longer.write(1, 2)
    shorter.commit(shorter.write(3))
    ids = [message.handle.transaction.transactional_id for message in waiting if isinstance(message, Written)]
    states = describe_transactions(ids, longer.settings.config)
    assert [found.state if found else None for found in states.values()] == ["Ongoing", "Ongoing"]
    longer.commit(waiting)
    assert_seen(dev_cluster, name, 1, 2, 3)


def test_two_sinks_decide_at_the_same_time(
    dev_cluster: DevCluster, name: str, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one decides, and a third driver reads its decision, behind the open decision of the first."""
    first, second, successor = make_driver("-1"), make_driver("-2"), make_driver("-2")
    messages = first.write(1, 2)

    def meanwhile(step: Step, _facts: object) -> None:
        monkeypatch.setitem(hooks._hooks, os.getpid(), None)
        assert step is Step.BEFORE_DECISION
        second.commit(second.write(3, 4))
        plan = prepare(successor.settings, successor.identity)
        assert plan.last_decided == {QUERY: 0}

    monkeypatch.setitem(hooks._hooks, os.getpid(), meanwhile)
    first.commit(messages)
    assert_seen(dev_cluster, name, 1, 2, 3, 4)


def test_a_run_id_stands_for_one_topic(dev_cluster: DevCluster, name: str, make_driver: MakeDriver) -> None:
    run = make_driver(run_id="run-1")
    run.commit(run.write(1, query="batch"))
    again = make_driver(run_id="run-1", topic="elsewhere")
    with pytest.raises(RunIdReusedError, match="elsewhere"):
        again.write(1)
    assert_seen(dev_cluster, name, 1)
