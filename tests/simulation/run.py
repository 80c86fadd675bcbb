# SPDX-License-Identifier: Apache-2.0
"""One seed: a producer, a cluster, application threads and faults, from the first call to the last check.

The real `IOThread.run` is the main program. Whenever it waits for the network, the application threads run and virtual
time passes, as the seed's random source decides; they may also run in the middle of its turn, when it writes or calls
back. Where the producer fails for good before enough records were sent, another life begins with a new one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from watchable import watchable_parts

from penstock import AsyncProducer
from penstock._identity import ProducerIdentity
from penstock.config.config import ProducerConfig
from penstock.producer import lifecycle, owner
from penstock.producer.assembly import ProducerParts, assemble
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.producer.producer import Producer
from penstock.testing.apis.context import ApiRequest
from penstock.testing.cluster import FakeCluster
from penstock.testing.faults import NO_FAULT, Fault
from penstock.testing.settings import ClusterSettings
from penstock.transaction_handle import TransactionHandle
from simulation import checks
from simulation.chaos import Chaos
from simulation.face import Call, Face
from simulation.guard import Guard
from simulation.late import LateRequests, batches_of
from simulation.ledger import Entry, Ledger, Txn, TxnEnd
from simulation.lockstep import THREADING, SimThread, SimTicket
from simulation.loops import LoopApplication, tell_both
from simulation.plan import (
    IDEMPOTENT,
    PLAIN,
    RECORDS_WANTED,
    TRANSACTIONAL,
    Plan,
    be_patient,
    grow_old,
    make_plan,
    stream,
)
from simulation.programs import Application
from simulation.scheduler import AppThread, Scheduler
from simulation.tracing import broker_side
from simulation.watch import Watch, watched_order
from simulation.watch_network import LeaderWatch, watched_network
from simulation.wire import EPOCH, World, sim_clock

_LONGEST = 400.0  # virtual seconds that a life may take: by then every fault has undone itself long ago
_MOST_TURNS = 20_000
_MOST_LIVES = 60
_CHUNKS = (40, 80, 160, 1024)  # bytes: the smallest; with the last one a batch is nearly always in one piece
_FORGETFUL = 3  # every so many seeds topics and brokers are forgotten whenever they can be


class Stuck(BaseException):
    """Nothing will ever happen, or it never ends. No part of the producer may catch it."""


@dataclass
class Report:
    """What came of a seed."""

    seed: int
    mode: str = ""
    records: int = 0
    faults: int = 0
    turns: int = 0
    lives: int = 0
    late_arrivals: int = 0
    late_losses: int = 0
    renewals: int = 0  # sessions
    refusals: int = 0  # identities
    conversions: int = 0  # records
    refused: int = 0  # batches, before they were sent
    virtual_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def _forget_at_every_update(parts: ProducerParts) -> None:
    """Let topics be forgotten as soon as nothing is on its way there: the idle time would be longer than most runs.

    Brokers likewise, when the metadata does not name them and there is no connection.
    """
    parts.client._pool.states.remembered = 0.0
    metadata = parts.metadata
    metadata._settings = metadata._settings._replace(max_idle_ms=0)
    metadata.keep_topics = lambda _: parts.sender.keep_topics(())


class Simulation:
    """The run of one seed."""

    def __init__(
        self,
        seed: int,
        *,
        traced: bool = False,
        guarded: bool = False,
        frozen: bool = False,
        old: bool = False,
        awaited: bool = False,
    ) -> None:
        self.report = Report(seed)
        self.traced = traced
        self.plan = plan_of(seed, awaited=awaited)
        if old:
            grow_old(self.plan, stream(seed, "old"))
        self._awaited = awaited
        self.seed = seed
        self.clock = sim_clock()
        self.cluster = self._make_cluster()
        self.late = LateRequests(self.cluster)
        self.world = World(self.cluster, self.clock, stream(seed, "network"), self.late)
        self.world.slowest = self.plan.slowest
        self.world.partial_writes = self.world.partial_reads = self.plan.partial_writes
        self.world.reads = stream(seed, "reads")
        # Else sizes are estimates; and a message set is larger than the batch that it was.
        if "compression_type" not in self.plan.options and not (old and self.plan.mode == PLAIN):
            self.world.max_request_size = self.plan.options["max_request_size"]
        if guarded:
            choices = stream(seed, "guard")
            # It takes three exchanges more to be ready.
            self.plan.max_block = max(self.plan.max_block, 0.3)
            self.plan.options["socket_connection_setup_timeout_ms"] = choices.choice((300, 800))
            self.plan.options["socket_connection_setup_timeout_max_ms"] = 1200
            # Clients renew a session once a second at most: one of 0.4 s ends without.
            self.world.guard = Guard(choices, choices.choice((0.4, 1.2, 1.25, 1.3)))
        self._freezes = stream(seed, "frozen") if frozen else None
        if frozen:
            be_patient(self.plan, stream(seed, "patience"))
        self.world.poll_with = self._poll
        self.world.on_write = self._interleave
        self.world.violate = self.violate
        self.world.on_trouble = self.note_trouble
        self.trouble_until = 0.0  # when something went wrong last
        self.nonsense = 0  # answers of random bytes, so far as the client has not told of them
        self.told: list[Entry] = []  # in the order of their callbacks
        self.ledger = Ledger()
        self.ledger.on_outcome = self._on_outcome
        self.choices = stream(seed, "schedule")
        self.scheduler = Scheduler(self.choices, self.clock.now, self._on_crash)
        self.scheduler.interrupts = self.plan.interrupts
        self.chaos = Chaos(self, stream(seed, "faults"))
        self._watch_faults()
        self.ids = 0
        self.records_wanted = RECORDS_WANTED
        self._senders = 0
        self._faults_at = list(reversed(self.plan.faults_at))
        self._interleaving = False
        self._old_turn = 0  # the one in whose middle nothing ran for a while
        self._ends_at = 0.0
        if traced:
            self.world.note = self._trace
            self.note = self._trace

    def note(self, text: str, *args: Any) -> None:
        """Say what happens; nobody listens unless the seed is traced."""

    def _trace(self, text: str, *args: Any) -> None:
        self.report.trace.append(f"{self.clock.time - 1000:9.4f}  {text % args if args else text}")

    def violate(self, problem: str) -> None:
        """Something does not hold."""
        self.note("VIOLATION: %s", problem)
        self.report.problems.append(problem)

    def note_trouble(self, seconds: float) -> None:
        """Something goes wrong, from now for so long."""
        self.trouble_until = max(self.trouble_until, self.clock.time + seconds)

    def note_jump(self) -> None:
        """Nothing has run for a while."""
        if self._interleaving:
            self._old_turn = self.report.turns + 1

    @property
    def turn_is_old(self) -> bool:
        """Whether the I/O thread has not looked at the clock since: it waits as long as it meant to before."""
        return self.report.turns == self._old_turn

    def _watch_faults(self) -> None:
        faults = self.cluster.faults
        take = faults.take

        def taken(request: ApiRequest) -> Fault:
            fault = take(request)
            if fault is not NO_FAULT:
                self.note_trouble(fault.delay + fault.throttle_ms / 1000)
                self.nonsense += fault.garbage
            return fault

        faults.take = taken  # type: ignore[method-assign]

    def _make_cluster(self) -> FakeCluster:
        plan = self.plan
        cluster = FakeCluster(
            plan.brokers,
            release=plan.release,
            features=plan.features,
            settings=ClusterSettings(
                marker_delay=plan.marker_delay, timeout_check_interval=0.5, default_replication=plan.brokers
            ),
            clock=lambda: self.clock.time + EPOCH,
            rng=stream(self.seed, "cluster"),
        )
        for name, partitions in plan.topics.items():
            cluster.create_topic(name, partitions, configs={"max.message.bytes": str(plan.max_message_bytes)})
        return cluster

    # ---------------------------------------------------------------------------------------------- the run

    def run(self) -> Report:
        report = self.report
        report.mode = self.plan.mode
        self.note(self.plan.describe())
        handler = _Listener(self._on_log)
        logger = logging.getLogger("penstock")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if self.traced else logging.ERROR)
        logger.propagate = False
        try:
            self._run_lives()
        except Stuck as stuck:
            self.violate(str(stuck))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        report.records = self.ledger.accepted
        report.faults = self.chaos.happened
        report.late_arrivals = self.world.late_arrivals
        report.late_losses = self.world.late_losses
        if self.world.guard is not None:
            report.renewals, report.refusals = self.world.guard.renewals, self.world.guard.refusals
        report.virtual_seconds = self.clock.time - 1000
        return report

    def _run_lives(self) -> None:
        report = self.report
        with watched_order(self), watched_network(self), self.chaos.brokers_behind():
            while (
                not report.problems and report.lives < _MOST_LIVES and self.ledger.accepted < RECORDS_WANTED
            ):
                report.lives += 1
                self._live()
            self._settle()
            self._check()

    def _live(self) -> None:
        """The life of one producer."""
        plan = self.plan
        if self._freezes is not None:
            self._freeze(self._freezes)
        self.note("a producer is made")
        producer = self._make_producer()
        self.parts = producer._parts
        self.parts.metadata.piece = stream(self.seed, "pieces").choice((1, 2, 500))
        self.watch = Watch(self, self.parts)
        self._leaders = LeaderWatch(self, self.parts)
        if self.seed % _FORGETFUL == 0:
            _forget_at_every_update(self.parts)
        self._open_batches = checks.OpenBatches(self.parts.accumulator)
        if plan.mode == IDEMPOTENT:
            self.late.watch(self.parts.sender._gate)  # type: ignore[arg-type]
        if plan.mode == TRANSACTIONAL:
            self.late.watch_gaps(self.parts.sender._gate)  # type: ignore[arg-type]
        self.face = Face(producer, self.clock, plan.max_block, self.on_appended)
        choices = stream(self.seed, f"application {self.report.lives}")
        self._ends_at = self.clock.time + _LONGEST
        if isinstance(producer, AsyncProducer):
            in_loops = LoopApplication(self, producer, choices)
            programs = in_loops.loops(plan.senders, plan.records)
            threads = [self.scheduler.spawn(f"loop {at}", each) for at, each in enumerate(programs)]
            self.scheduler.spawn("closer", in_loops.closer(threads))
        else:
            self._spawn_threads(Application(self, self.face, choices))
        thread = producer._core.thread
        assert isinstance(thread, SimThread)
        try:
            with _ApplicationSide():  # what run() says of this thread does not outlast it
                thread.run()
            self.note("the I/O thread has ended")
            while self.scheduler.threads:
                if self.scheduler.runnable:
                    self.scheduler.step()
                else:
                    self._pass_time(self._ends_at)
        finally:
            # Also where the simulation has failed: nobody else will ever close it.
            lifecycle.unregister(producer._core)
            producer._core.closed = True
            totals = producer.metrics()["producer-metrics"]
            self.report.conversions += int(totals["record-conversion-total"])
        for problem in checks.check_producer(self.parts, self.world.open_transports):
            self.violate(problem)

    def _spawn_threads(self, app: Application) -> None:
        plan = self.plan
        if plan.mode == TRANSACTIONAL:
            self.scheduler.spawn("transactions", app.transactions())
        else:
            for _ in range(plan.senders):
                self.spawn_sender(lambda sender: app.sender(sender, -(-plan.records // plan.senders)))
        self.scheduler.spawn("closer", app.closer())

    def _freeze(self, choices: random.Random) -> None:
        """Let brokers look at nothing for a while, from before the producer makes its first connection."""
        for broker in self.cluster.nodes:
            seconds = choices.uniform(1, 30) if choices.random() < 0.8 else 0.0
            self.note("broker %s is frozen for %.1f s", broker, seconds)
            self.note_trouble(seconds)
            self.world.frozen_until[broker] = self.clock.time + seconds

    def _make_producer(self) -> Producer | AsyncProducer:
        plan = self.plan
        rng = stream(self.seed, f"producer {self.report.lives}")
        servers = ",".join(f"broker-{index}:9092" for index in range(plan.brokers))

        def assemble_here(config: ProducerConfig) -> ProducerParts:
            with watchable_parts(stream(self.seed, "chunks").choice(_CHUNKS)):
                return assemble(config, self.clock, self.world.backend(), rng)

        with (
            mock.patch.object(lifecycle, "assemble", assemble_here),
            mock.patch.object(lifecycle, "threading", THREADING),
            mock.patch.object(lifecycle, "Ticket", SimTicket),
        ):
            options = plan.options | {"bootstrap_servers": servers}
            if not self._awaited:
                return Producer(options)
            in_loop = stream(self.seed, "callbacks").random() < 0.5
            producer = AsyncProducer(options, on_delivery_in="loop" if in_loop else "io_thread")
            tell_both(self, producer)
            return producer

    def _settle(self) -> None:
        """Let everything come to rest: late requests, time-outs of transactions, markers."""
        self.cluster.faults.clear()
        if self.world.guard is not None:
            self.world.guard.accepts_all = True
        until = self.clock.time + 60
        while (moment := self.world.next_at()) <= until:
            self.world.happen(moment, until)

    def _check(self) -> None:
        plan, ledger, problems = self.plan, self.ledger, self.report.problems
        found = checks.find_records(self.cluster, ledger, problems)
        problems += checks.check_outcomes(ledger)
        problems += checks.check_identities(plan, self.cluster)
        problems += checks.check_log(plan, ledger, found, self.chaos.loses)
        problems += checks.check_places(ledger, found)
        problems += checks.check_order(plan, ledger, found, self.world.late_arrivals > 0, self.chaos.loses)
        problems += checks.check_transactions(plan, self.cluster, ledger, found)
        if self.traced:
            for problem in problems:
                self.note("VIOLATION: %s", problem)

    # ---------------------------------------------------------------------------------------------- who runs

    def _poll(self, timeout: float) -> list[tuple[Any, int]]:
        """The I/O thread waits: let others run, and time pass, until it has something to do."""
        world, scheduler, clock = self.world, self.scheduler, self.clock
        self.report.turns += 1
        if self.report.turns > _MOST_TURNS:
            raise Stuck(f"no end after {_MOST_TURNS} turns; {checks.describe_threads(scheduler.threads)}")
        until = clock.time + timeout
        with _ApplicationSide():
            while True:
                if scheduler.runnable and self.choices.random() < 0.7:
                    self._step()
                    continue
                ready = world.ready()
                if ready or world.woken:
                    return ready
                if scheduler.runnable:
                    self._step()
                elif clock.time >= until:
                    return []
                else:
                    if world.must_not_wait:
                        world.must_not_wait = False
                        self.violate("the I/O thread waits although it was woken before")
                    self._pass_time(until)

    def _pass_time(self, until: float) -> None:
        """Nobody can run: go on to the next moment at which something happens."""
        alarm = self.scheduler.next_alarm()
        target = min(until, alarm, self._ends_at)
        happens_at = self.world.next_at()
        if target == self._ends_at <= happens_at or target == float("inf"):
            raise Stuck(f"nothing will ever happen; {checks.describe_threads(self.scheduler.threads)}")
        if happens_at <= target:
            self.world.happen(happens_at, target)
        else:
            self.clock.time = max(self.clock.time, target)
        self.scheduler.ring(self.clock.time)

    def _step(self) -> None:
        self.scheduler.step()
        self._leaders.look()
        # A turn of a loop may append more than one record.
        problem = None if self._awaited else self._open_batches.look()
        if problem is not None:
            self.violate(problem)

    def _interleave(self) -> None:
        """The I/O thread is in the middle of its turn: somebody else may run now."""
        if self._interleaving or not self.scheduler.runnable or self.choices.random() < 0.7:
            return
        self._check_locks("in the middle of a turn")
        self._interleaving = True
        with _ApplicationSide():
            self._step()
        self._interleaving = False

    def _check_locks(self, when: str) -> None:
        held = checks.held_locks()
        if held:
            self.violate(f"the lock of {held[0]} is held {when}")

    def _on_crash(self, thread: AppThread, error: BaseException) -> None:
        if isinstance(error, Stuck):
            raise error
        self.violate(f"{thread.name} ended with {error!r}")

    def _on_log(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.violate(f"{record.getMessage()}: {record.exc_info[1]!r}")
        elif self.traced:
            self.note("  log: %s", record.getMessage())

    # ---------------------------------------------------------------------------------------------- the application

    def new_sender(self) -> int:
        """The number of a task that sends."""
        self._senders += 1
        return self._senders

    def spawn_sender(self, program: Callable[[int], Call]) -> AppThread:
        self._senders += 1
        return self.scheduler.spawn(f"sender {self._senders}", program(self._senders))

    def new_entry(self, sender: int, size: int) -> Entry:
        if self._faults_at and len(self.ledger.entries) >= self._faults_at[-1]:
            self._faults_at.pop()
            self.chaos.strike()
        entry = self.ledger.new_entry(sender, size)
        entry.started = self.clock.time
        return entry

    def on_appended(self, entry: Entry) -> None:
        """The record is in a batch, at this moment."""
        entry.appended = self.clock.time
        manager = self.parts.transactions
        if manager is not None and manager.state is not TxnState.IN_TRANSACTION:
            self.violate(f"{entry} was accepted although the producer is {manager.state.value}")

    def on_accepted(self, entry: Entry, delivery: Any) -> None:
        self.ledger.accept(entry, delivery)
        self.note("%s is accepted%s", entry, "" if entry.txn is None else f", transaction {entry.txn.number}")

    def on_refused(self, entry: Entry, error: BaseException) -> None:
        entry.refused = error
        self.watch.on_refused(entry, error, self.clock.time)
        self.note("%s is refused: %r", entry, error)

    def _on_outcome(self, entry: Entry) -> None:
        if self.traced:
            where = f"{entry.topic}-{entry.partition} {entry.offset}"
            self.note("%s: %s", entry, where if entry.error is None else f"failed, {entry.error!r}")
        self.told.append(entry)
        self.watch.on_outcome(entry)
        self._check_locks("while a callback runs")
        if self.plan.mode != TRANSACTIONAL and self.choices.random() < 0.01:
            self._send_from_callback(entry)
        self._interleave()

    def _send_from_callback(self, cause: Entry) -> None:
        # Each producer has callbacks of its own: there is no order between what two producers write.
        entry = self.ledger.new_entry(-self.report.lives, 20)
        entry.started = self.clock.time
        entry.topic = cause.topic
        try:
            self.on_accepted(entry, self.face.send_from_callback(entry))
        except Exception as error:
            self.on_refused(entry, error)

    def check_flushed(self, waiting: list[Entry]) -> None:
        for entry in waiting:
            if not entry.calls:
                self.violate(f"flush() returned, and {entry} has no outcome")

    def check_closed(self) -> None:
        """close() has returned, whatever its time-out: nobody waits for an outcome any more."""
        for entry in self.ledger.entries:
            if entry.accepted and not entry.calls:
                self.violate(f"close() returned, and {entry} has no outcome")
                return

    def take_handle(self, txn: Txn, handle: TransactionHandle) -> None:
        """Another process ends the detached transaction, after a while."""
        self.note("transaction %s is detached: %s", txn.number, handle)
        if not handle.empty:
            self.world.after(
                self.choices.random() * 0.5, self._end_handle, txn, handle, self.choices.random() < 0.7
            )

    def _end_handle(self, txn: Txn, handle: TransactionHandle, commit: bool) -> None:
        coordinator = self.cluster.transactions
        end = coordinator.end_v2 if handle.end_txn_version >= 5 else coordinator.end_v1
        producer = ProducerIdentity(handle.producer_id, handle.producer_epoch)
        answer = end(handle.transactional_id, producer, commit=commit, now=self.clock.time)
        self.note("transaction %s is ended from elsewhere: commit=%s, %s", txn.number, commit, answer)
        if answer.code == 0:
            txn.end = TxnEnd.COMMITTED if commit else TxnEnd.ABORTED
        else:
            txn.end = TxnEnd.OPEN  # it took too long, and was aborted
        self.world.pump()

    def holds_written_batch(self, request: ApiRequest) -> bool:
        """Whether the log has one of the request's batches already."""
        for partition, batch in batches_of(self.cluster, request.body):
            identity = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
            for known in partition.log.batches:
                if (known.producer_id, known.producer_epoch, known.base_sequence) == identity:
                    return True
        return False


class _Listener(logging.Handler):
    """Hands log records to a function."""

    def __init__(self, tell: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record)


class _ApplicationSide:
    """One thread runs everything: inside the block it is not the I/O thread, whatever it was and becomes there."""

    __slots__ = ("_before", "_marks")

    def __enter__(self) -> None:
        self._marks = vars(owner._thread)
        self._before = dict(self._marks)
        self._marks.clear()

    def __exit__(self, *error: object) -> None:
        self._marks.clear()
        self._marks.update(self._before)


def plan_of(seed: int, *, awaited: bool = False) -> Plan:
    """What a seed decides before anything runs."""
    return make_plan(stream(seed, "plan"), awaited=awaited)


def simulate(
    seed: int,
    *,
    traced: bool = False,
    guarded: bool = False,
    frozen: bool = False,
    old: bool = False,
    awaited: bool = False,
) -> Report:
    """Run one seed.

    Args:
        seed: of all random numbers.
        traced: note what happens.
        guarded: with brokers that authenticate clients.
        frozen: with brokers that look at nothing for up to 30 seconds when a producer comes for the first time.
        old: with brokers of Kafka 0.9 to 2.8 that are upgraded and downgraded.
        awaited: with tasks in event loops in place of threads, and without transactions: such a seed is idempotent.
    """
    simulation = Simulation(seed, traced=traced, guarded=guarded, frozen=frozen, old=old, awaited=awaited)
    try:
        with broker_side(simulation.note) if traced else nullcontext():
            return simulation.run()
    finally:
        # The garbage collector does not look into Deliveries. Their owner's clock leads to the simulation here, which
        # keeps them: without this, a part of each seed would stay in memory, and be looked at by each collection.
        vars(simulation).clear()
