# SPDX-License-Identifier: Apache-2.0
"""A sink on the fake cluster: drivers, tasks with real producers, and what a reader of committed records sees."""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from control.support import OpenTransaction

from penstock import Producer
from penstock.control import ControlClient, complete_all
from penstock.errors import KafkaError
from penstock.sink import (
    BATCH_QUERY_ID,
    Admission,
    BatchPlan,
    CommitReport,
    DriverIdentity,
    Message,
    Nothing,
    PartitionCount,
    SinkSettings,
    Skipped,
    Slots,
    TaskHandle,
    Written,
    admit,
    open_transaction,
)
from penstock.sink.aborting import abort_steps
from penstock.sink.cluster import Cluster, LogReaders
from penstock.sink.committing import commit_steps
from penstock.sink.effects import Effect, Effects
from penstock.sink.identity import Jvm
from penstock.sink.messages import IN_ORDER, SUMMED, Content
from penstock.sink.preparing import PlannerMemory, prepare_steps
from penstock.testing import FakeKafka

TOPIC = "orders"
QUERY = "query-1"

_pids = itertools.count(1000)
log = logging.getLogger(__name__)


class Crash(BaseException):
    """The driver dies; not an Exception, so that nothing on the way can take notice of it."""


@dataclass
class World:
    """One fake cluster, and the workers of one Spark application."""

    kafka: FakeKafka
    workers: Slots = field(default_factory=Slots)
    now: float = 0.0

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    def settings(self, **changed: Any) -> SinkSettings:
        values: dict[str, Any] = {"sink_id": "sink-1", "topic": TOPIC, "config": self.config}
        return SinkSettings(**(values | changed))

    def driver(self, **changed: Any) -> Driver:
        return Driver(self, self.settings(**changed))

    def visible(self, topic: str = TOPIC, partitions: int = 2) -> list[str]:
        """What a reader of committed records sees, sorted."""
        return sorted(
            (record.value or b"").decode()
            for partition in range(partitions)
            for record in self.kafka.records(topic, partition)
        )

    def ongoing(self) -> list[str]:
        with self.kafka.locked() as cluster:
            return sorted(txn.transactional_id for txn in cluster.transactions if txn.state == "Ongoing")


class Driver:
    """One JVM with one planner process; `replaced` is another process of the same JVM."""

    def __init__(self, world: World, settings: SinkSettings, identity: DriverIdentity | None = None) -> None:
        self.world = world
        self.settings = settings
        number = next(_pids)
        self.identity = identity or DriverIdentity(
            Jvm("host", number, f"at {number}"), number, f"token-{number}"
        )
        self.memory = PlannerMemory()
        self.readers = LogReaders()
        self.seen: list[Effect] = []
        self.before: Callable[[Effect], None] = lambda _: None  # what happens to the world before an effect

    def with_settings(self, **changed: Any) -> Driver:
        """The same process with other settings."""
        other = Driver(self.world, replace(self.settings, **changed), self.identity)
        other.memory, other.readers = self.memory, self.readers
        return other

    def replaced(self) -> Driver:
        number = next(_pids)
        identity = self.identity._replace(planner_pid=number, token=f"token-{number}")
        return Driver(self.world, self.settings, identity)

    # ---- the calls

    def prepare(self, **stop: Any) -> BatchPlan:
        steps = prepare_steps(self.settings, self.identity, self.memory, self.world.now)
        plan: BatchPlan = self.run(steps, **stop)
        return plan

    def commit(self, messages: list[Message | None], batch_id: int = 0, **stop: Any) -> CommitReport:
        report: CommitReport = self.run(commit_steps(self.settings, messages, batch_id), **stop)
        return report

    def abort(self, messages: list[Message | None], batch_id: int = 0, plan: BatchPlan | None = None) -> bool:
        aborted: bool = self.run(abort_steps(self.settings, messages, batch_id, plan, self.identity))
        return aborted

    def batch(
        self, batch_id: int, rows: Mapping[int, list[str]], query_id: str = QUERY, **stop: Any
    ) -> CommitReport:
        """A whole batch, one task for each entry of rows."""
        plan = self.prepare()
        messages = [self.task(plan, batch_id, number, values, query_id) for number, values in rows.items()]
        return self.commit(messages, batch_id, **stop)

    def run(
        self,
        steps: Effects[Any],
        before: type | None = None,
        after: type | None = None,
        nth: int = 1,
        **where: Any,
    ) -> Any:
        """Carry steps out; with `before` or `after`, crash at the n-th effect of that kind with those values."""
        with ControlClient(self.world.config) as client:
            cluster = Cluster(client, "fake", self.settings.log_topic, self.readers, timeout=20.0)
            count = 0

            def perform(effect: Effect) -> Any:
                nonlocal count
                self.seen.append(effect)
                kind = before or after
                here = kind is not None and type(effect) is kind
                here = here and all(getattr(effect, name) == value for name, value in where.items())
                count += here
                if here and before and count == nth:
                    raise Crash
                self.before(effect)
                outcome = original(effect)
                if here and after and count == nth:
                    raise Crash
                return outcome

            original = cluster.perform
            cluster.perform = perform  # type: ignore[method-assign]
            return cluster.run(steps)

    # ---- tasks

    def task(
        self, plan: BatchPlan, batch_id: int, number: int, values: list[str], query_id: str = QUERY
    ) -> Message:
        """One task attempt: writes its values to partition `number`."""
        if admit(plan, query_id, batch_id, self.world.workers, task=number) is Admission.SKIP:
            return Skipped(plan.stamp, query_id, batch_id, *content_of(values))
        if not values:
            return Nothing(plan.stamp, query_id, batch_id)
        with self.producer(plan) as producer:
            name = open_transaction(producer, plan, self.world.workers)
            topic = plan.topic or TOPIC
            for value in values:
                producer.send(topic, value.encode(), partition=number)
            producer.flush()
            handle = producer.detach_transaction()
            self.world.workers.give_back(name, plan)
        counts = (PartitionCount(topic, number, len(values)),)
        content = content_of(values)
        if plan.repair is not None and plan.repair.tasks[number].method == IN_ORDER:
            content = content_in_order(values)
        task = TaskHandle(
            transaction=handle,
            task=number,
            rows=content.rows,
            checksum=content.checksum,
            counts=counts,
            method=content.method,
        )
        return Written(plan.stamp, query_id, batch_id, task)

    @contextmanager
    def producer(self, plan: BatchPlan) -> Iterator[Producer]:
        with Producer(
            self.world.config | {"transaction.timeout.ms": str(plan.transaction_timeout_ms)},
            transactional_id="set-by-the-sink",
        ) as producer:
            yield producer


def content_of(values: list[str]) -> Content:
    """A sum over the rows, as of a real task."""
    return Content(len(values), sum(zlib.crc32(value.encode()) for value in values), SUMMED)


def content_in_order(values: list[str]) -> Content:
    """What a task of the first release would say."""
    return Content(len(values), zlib.crc32(repr(values).encode()), IN_ORDER)


def handles_of(messages: list[Message | None]) -> list[TaskHandle]:
    return [message.handle for message in messages if isinstance(message, Written)]


def abort_from_elsewhere(world: World, message: Message) -> None:
    """End a task's transaction behind the driver's back."""
    assert isinstance(message, Written)
    (completion,) = complete_all([message.handle.transaction], commit=False, config=world.config)
    assert completion.error is None


def open_by_hand(world: World, transactional_id: str) -> None:
    """Leave a transaction open under any id."""
    with ControlClient(world.config) as client:
        protocol = client.end_txn_version()
        OpenTransaction(client, transactional_id, protocol).send(TOPIC, b"left open")


def open_task(
    driver: Driver, plan: BatchPlan, number: int, value: str, slots: Slots | None = None
) -> Producer:
    """A task that writes and never ends: it is dead, or a zombie. The producer must be closed by the caller."""
    producer = Producer(
        driver.world.config | {"transaction.timeout.ms": str(plan.transaction_timeout_ms)},
        transactional_id="set-by-the-sink",
    )
    open_transaction(producer, plan, slots or driver.world.workers)
    producer.send(plan.topic or TOPIC, value.encode(), partition=number)
    producer.flush()
    return producer


__all__ = [
    "BATCH_QUERY_ID",
    "QUERY",
    "TOPIC",
    "Crash",
    "Driver",
    "KafkaError",
    "World",
    "abort_from_elsewhere",
    "content_in_order",
    "content_of",
    "handles_of",
    "open_by_hand",
    "open_task",
]
