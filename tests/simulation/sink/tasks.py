# SPDX-License-Identifier: Apache-2.0
"""A model of Spark's tasks: attempts, retries, speculation, zombies, workers that are used again or killed."""

from __future__ import annotations

import enum
import random
from typing import TYPE_CHECKING, Any

from penstock.errors import KafkaError
from simulation.sink.actors import Actor, Killed, Process
from simulation.sink.ledger import PlannedBatch
from simulation.sink.protocol import TaskEnvironment

if TYPE_CHECKING:
    from simulation.sink.driver import Application

_MOST_ATTEMPTS = 4


class Trouble(enum.Enum):
    """What goes wrong in an attempt."""

    NONE = "nothing"
    RAISES = "raises"
    DIES = "its worker is killed"
    SLOW = "is slow"
    VERY_SLOW = "is slower than any time-out"


class TaskFailed(Exception):
    """The user's code, or the data, made the attempt fail."""


class JobFailed(Exception):
    """A task failed too often."""

    def __init__(self, messages: list[Any]) -> None:
        super().__init__("a task failed too often")
        self.messages = messages


class Worker:
    """A Python worker: runs one attempt at a time, and is used again."""

    def __init__(self, process: Process, environment: TaskEnvironment) -> None:
        self.process = process
        self.environment = environment
        self.busy = False
        self.idle_since = 0.0


class Partition:
    """One partition of the stage: its rows, its attempts, and the first message that came."""

    def __init__(self, rows: list[bytes]) -> None:
        self.rows = rows
        self.running: list[tuple[Actor, Worker, float]] = []
        self.started = 0
        self.failed = 0
        self.message: Any = None
        self.done = False


class Stage:
    """Runs the tasks of one batch, by the driver's actor.

    Args:
        app: the driver.
        plan: what prepare() returned.
        batch: the rows.
    """

    def __init__(self, app: Application, plan: Any, batch: PlannedBatch, rng: random.Random) -> None:
        self.app = app
        self.sim = app.sim
        self.plan = plan
        self.batch = batch
        self.rng = rng
        # A replay may be cut into other tasks than the first run; a repair cannot be.
        cut = random.Random(str(batch)) if app.sink.repairs else rng
        self.partitions = [Partition([]) for _ in range(cut.randint(1, 3))]
        for row in batch.rows:
            cut.choice(self.partitions).rows.append(row)

    def run(self) -> list[Any]:
        """The messages, one for each partition.

        Raises:
            JobFailed: a task failed too often.
        """
        for partition in self.partitions:
            self._start(partition)
        while not all(partition.done for partition in self.partitions):
            self.app.stage.wait_for(self._has_news, 3.0)
            for partition in self.partitions:
                self._look_at(partition)
        self._leave_losers()
        return [partition.message for partition in self.partitions]

    def _has_news(self) -> bool:
        return any(actor.ended for partition in self.partitions for actor, _, _ in partition.running)

    def _look_at(self, partition: Partition) -> None:
        now = self.sim.clock.time
        for entry in list(partition.running):
            actor, worker, started_at = entry
            if actor.ended:
                partition.running.remove(entry)
                self._take(partition, actor, worker)
            elif self._wants_copy(partition, now - started_at):
                self.sim.note("speculation, or the executor is taken for lost: %s", actor.name)
                self._start(partition)

    def _wants_copy(self, partition: Partition, seconds: float) -> bool:
        if partition.done or seconds <= 2.5 or len(partition.running) > 1:
            return False
        return partition.started < _MOST_ATTEMPTS + 2 and self.rng.random() < 0.5

    def _take(self, partition: Partition, actor: Actor, worker: Worker) -> None:
        worker.busy = False
        worker.idle_since = self.sim.clock.time
        error = actor.error
        if error is None:
            if not partition.done:
                partition.done, partition.message = True, actor.result
            return
        worker.process.kill()  # Spark drops a worker after its task has raised
        if not isinstance(error, TaskFailed | KafkaError | Killed):
            self.sim.violate(f"{actor.name} raised {error!r}")
        if partition.done:
            return
        partition.failed += 1
        self.sim.note("%s failed: %r", actor.name, error)
        if partition.failed >= _MOST_ATTEMPTS or self.app.sim.is_final(error):
            self._leave_losers()
            raise JobFailed([each.message for each in self.partitions]) from error
        if not partition.running:
            self._start(partition)

    def _leave_losers(self) -> None:
        """Attempts whose result nobody wants: some are killed, the others go on."""
        for partition in self.partitions:
            for actor, worker, _ in partition.running:
                if self.rng.random() >= self.sim.plan.zombies:
                    worker.process.kill()
                else:
                    self.sim.note("%s goes on, unwanted", actor.name)
                worker.busy = True  # not to be used again

    def _start(self, partition: Partition) -> None:
        worker = self._worker()
        partition.started += 1
        trouble = self._trouble()
        number = self.partitions.index(partition)
        name = f"batch {self.batch.number} task {number}.{partition.started}"
        rows = list(partition.rows)
        rng = random.Random(self.rng.random())
        actor = worker.process.spawn(name, lambda: self._attempt(worker, number, rows, trouble, rng))
        partition.running.append((actor, worker, self.sim.clock.time))

    def _worker(self) -> Worker:
        now = self.sim.clock.time
        for worker in self.app.workers:
            if worker.process.alive and not worker.busy and now - worker.idle_since < 60:
                worker.busy = True
                return worker
        process = Process(self.app.stage, f"{self.app.name} worker {next(self.sim.worker_numbers)}")
        worker = Worker(process, self.sim.protocol.task_environment(process))
        worker.busy = True
        self.app.workers.append(worker)
        return worker

    def _trouble(self) -> Trouble:
        if self.sim.calm or self.rng.random() >= self.sim.plan.task_trouble:
            return Trouble.NONE
        return self.rng.choices(
            (Trouble.RAISES, Trouble.DIES, Trouble.SLOW, Trouble.VERY_SLOW), (4, 4, 4, 1)
        )[0]

    # ---- in the worker

    def _attempt(
        self, worker: Worker, number: int, rows: list[bytes], trouble: Trouble, rng: random.Random
    ) -> Any:
        sim, batch = self.sim, self.batch
        task = worker.environment.begin(
            self.plan, sim.protocol.query_id(self.app.sink, batch.query_id), batch.number, number
        )
        strikes_at = rng.randrange(len(rows) + 2)
        if task.is_skipped:
            sim.note("%s is skipped", batch)
            return task.skipped(rows)
        for index, row in enumerate(rows):
            if index == strikes_at:
                self._strike(worker, trouble, rng)
            task.write(self.app.topic, rng.randrange(sim.plan.partitions), row)
            if rng.random() < 0.3:
                sim.stage.sleep(rng.random() * 0.2)
        if strikes_at == len(rows):
            self._strike(worker, trouble, rng)
        message = task.finish()
        if strikes_at > len(rows):
            self._strike(worker, trouble, rng)
        return message

    def _strike(self, worker: Worker, trouble: Trouble, rng: random.Random) -> None:
        stage = self.sim.stage
        if trouble is Trouble.RAISES:
            raise TaskFailed("the user's code raises")
        if trouble is Trouble.DIES:
            worker.process.kill()
            raise Killed
        if trouble is Trouble.SLOW:
            stage.sleep(rng.choice((2.0, 6.0, 20.0)))
        elif trouble is Trouble.VERY_SLOW:
            stage.sleep(rng.choice((100.0, 580.0, 950.0)))
