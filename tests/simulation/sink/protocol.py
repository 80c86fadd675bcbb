# SPDX-License-Identifier: Apache-2.0
"""The sink's own calls, as the simulated processes make them: everything between Spark's model and the real protocol.

What processes send each other is pickled, as in Spark.
"""

from __future__ import annotations

import os
import pickle
import random
import zlib
from typing import TYPE_CHECKING, Any

from penstock.control import ControlClient, complete_all
from penstock.errors import SinkSupersededError
from penstock.sink import (
    BATCH_QUERY_ID,
    Admission,
    BatchPlan,
    DriverIdentity,
    Life,
    Nothing,
    PartitionCount,
    SinkSettings,
    Skipped,
    Slots,
    Step,
    TaskHandle,
    Written,
    admit,
    open_transaction,
    reached,
)
from penstock.sink.aborting import abort_steps
from penstock.sink.cluster import Cluster, LogReaders
from penstock.sink.committing import commit_steps
from penstock.sink.effects import CheckDrivers, Effect, Effects, FenceAll
from penstock.sink.identity import Jvm
from penstock.sink.messages import SUMMED
from penstock.sink.preparing import PlannerMemory, prepare_steps
from penstock.sink.recovering import _roll_forward
from penstock.sink.task import check_wanted
from simulation.sink.actors import Process
from simulation.sink.ledger import COPIED
from simulation.sink.plan import LOG_TOPIC, TOPIC, SinkPlan
from simulation.sink.writing import TaskProducer

if TYPE_CHECKING:
    from simulation.sink.driver import Application
    from simulation.sink.run import SinkSimulation


class Protocol:
    """Calls the sink.

    Args:
        sim: the seed.
    """

    def __init__(self, sim: SinkSimulation) -> None:
        self.sim = sim
        self.config = {
            "bootstrap.servers": ",".join(f"broker-{index}:9092" for index in range(sim.plan.brokers)),
            "retry.backoff.ms": "50",
            "request.timeout.ms": "8000",
        }
        self._clients = 0

    def client(self, process: Process) -> ControlClient:
        """A client of its own, in the process's name."""
        self._clients += 1
        return ControlClient(
            self.config,
            clock=self.sim.clock,
            backend=process.backend(),
            rng=random.Random(f"{self.sim.seed} client {self._clients}"),
        )

    def settings(self, sink: SinkPlan, topic: str = TOPIC) -> SinkSettings:
        return SinkSettings(
            sink_id=sink.sink_id,
            run_id=sink.run_id,
            one_off=sink.one_off,
            config=self.config,
            topic=topic,
            on_restored_checkpoint="rewrite" if sink.rewrites else "fail",
            on_lost="repair" if sink.repairs else "fail",
            log_topic=LOG_TOPIC,
        )

    # ---- the driver's processes

    def identity(self, process: Process, app: Application) -> DriverIdentity:
        pid = process.memory["pid"]
        return DriverIdentity(Jvm("host", app.number, "boot"), pid, f"{app.number}-{pid}", "this place")

    def prepare(self, process: Process, app: Application) -> BatchPlan:
        return _travel(self._run(process, self.prepare_steps(process, app)))

    def prepare_steps(self, process: Process, app: Application) -> Effects[BatchPlan]:
        memory = process.memory.setdefault(("planner", app.sink), PlannerMemory())
        driver = self.identity(process, app)
        return prepare_steps(self.settings(app.sink, app.topic), driver, memory, self.sim.clock.now())

    def commit(self, process: Process, app: Application, messages: list[Any], number: int) -> Any:
        return self._run(process, self.commit_steps(app, _travel(messages), number))

    def commit_steps(self, app: Application, messages: list[Any], number: int) -> Effects[Any]:
        return commit_steps(self.settings(app.sink, app.topic), messages, number)

    def abort(self, process: Process, app: Application, messages: list[Any], number: int) -> None:
        driver = self.identity(process, app)
        self._run(process, abort_steps(self.settings(app.sink), _travel(messages), number, None, driver))

    def recover(self, process: Process, sink: SinkPlan, *, accept_loss: bool) -> Any:
        """What `penstock recover` does, on the simulator's clock."""
        return self._run(process, _roll_forward(self.settings(sink).sink_key, accept_loss=accept_loss))

    def _run(self, process: Process, steps: Effects[Any]) -> Any:
        """Carry out a driver's work, with the connections of the process and what it has read before."""
        readers = process.memory.setdefault("readers", LogReaders())
        client = process.memory.pop("client", None) or self.client(process)
        try:
            cluster = WatchedCluster(
                self.sim,
                client,
                self.config["bootstrap.servers"],
                LOG_TOPIC,
                readers,
                wall_ms=self.sim.clock.wall_ms,
            )
            result = cluster.run(steps)
        except BaseException:
            client.close()
            raise
        process.memory["client"] = client
        return result

    # ---- tasks

    def task_environment(self, process: Process) -> TaskEnvironment:
        return TaskEnvironment(self, process)

    def query_id(self, sink: SinkPlan, query_id: str) -> str:
        return query_id.removesuffix(COPIED) if sink.run_id is None else BATCH_QUERY_ID


class WatchedCluster(Cluster):
    """Carries out effects; a driver can be killed or frozen before or after any of them."""

    def __init__(self, sim: SinkSimulation, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sim = sim

    def perform(self, effect: Effect) -> Any:
        name = type(effect).__name__
        self._sim.on_point(f"before {name}")
        if isinstance(effect, FenceAll):
            self._sim.on_fence(effect.transactional_ids)
        outcome = self.lives(effect) if isinstance(effect, CheckDrivers) else super().perform(effect)
        self._sim.on_point(f"after {name}")
        return outcome

    def lives(self, effect: CheckDrivers) -> list[Life]:
        """Which of the simulated drivers run."""
        runs = self._sim.is_driver_alive
        return [Life.RUNS if runs(owner.jvm.pid) else Life.ENDED for owner in effect.owners]


class TaskEnvironment:
    """What a worker process keeps from task to task: its slots, its producer and its connections."""

    def __init__(self, protocol: Protocol, process: Process) -> None:
        self.protocol = protocol
        self.process = process
        self.slots = Slots()
        # A random name would make every run of a seed different.
        self.slots._pid = os.getpid()
        self.slots._worker = process.name.replace(" ", "")
        self._client: ControlClient | None = None
        self.producers: dict[int, TaskProducer] = {}

    def begin(self, plan: BatchPlan, query_id: str, batch_id: int, number: int) -> Task:
        return Task(self, _travel(plan), query_id, batch_id, number)

    def client(self) -> ControlClient:
        if self._client is None:
            self._client = self.protocol.client(self.process)
        return self._client

    def producer(self, timeout_ms: int) -> TaskProducer:
        if timeout_ms not in self.producers:
            self.producers[timeout_ms] = TaskProducer(self.client(), self.protocol.sim.cluster, timeout_ms)
        return self.producers[timeout_ms]


class Task:
    """One attempt of a task."""

    def __init__(
        self, environment: TaskEnvironment, plan: BatchPlan, query_id: str, batch_id: int, number: int
    ) -> None:
        self._number = number
        self._checksum = 0
        self._environment = environment
        self._plan = plan
        self._origin = (plan.stamp, query_id, batch_id)
        self._id: str | None = None
        self.is_skipped = admit(plan, query_id, batch_id, environment.slots, task=number) is Admission.SKIP
        self._producer = environment.producer(plan.transaction_timeout_ms)

    def skipped(self, rows: list[bytes]) -> Skipped:
        return Skipped(*self._origin, len(rows), sum(map(_hash, rows)), SUMMED)

    def write(self, topic: str, partition: int, row: bytes) -> None:
        if self._id is None:
            self._id = open_transaction(self._producer, self._plan, self._environment.slots)
            reached(Step.TASK_FIRST_ROW)
        self._producer.send(topic, partition, [row])
        self._checksum += _hash(row)

    def finish(self) -> Written | Nothing:
        if self._id is None:
            return Nothing(*self._origin)
        reached(Step.TASK_FLUSHED)
        counts = tuple(PartitionCount(*where, count) for where, count in self._producer.counts.items())
        handle = self._producer.detach_transaction()
        try:
            check_wanted(self._plan, self._environment.client())
        except SinkSupersededError:
            complete_all([handle], commit=False, config=self._environment.client())
            raise
        self._environment.slots.give_back(self._id, self._plan)
        reached(Step.TASK_DETACHED)
        rows = sum(count.records for count in counts)
        written = TaskHandle(
            transaction=handle,
            task=self._number,
            rows=rows,
            checksum=self._checksum,
            counts=counts,
            method=SUMMED,
        )
        return Written(*self._origin, written)


def _hash(row: bytes) -> int:
    """The same for a row and for that of a copied checkpoint: a checksum does not cover the topic that is set."""
    return zlib.crc32(row.replace(COPIED.encode(), b""))


def _travel(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))
