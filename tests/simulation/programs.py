# SPDX-License-Identifier: Apache-2.0
"""What the application threads do: send, flush, wait, run transactions, close."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import (
    AuthenticationError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.transaction_handle import TransactionHandle
from simulation.face import Call, Face
from simulation.ledger import Entry, Txn, TxnEnd
from simulation.plan import RECORDS_WANTED
from simulation.scheduler import AppThread, Interrupted, Sleep, Wait

if TYPE_CHECKING:
    from simulation.run import Simulation

_PATIENCE = 40  # how often a transaction call that timed out is repeated


class GivesUp(Exception):
    """The application cannot go on with this producer."""


class Application:
    """The programs of one producer's life.

    Args:
        sim: the seed.
        face: the producer.
        rng: what they decide.
    """

    def __init__(self, sim: Simulation, face: Face, rng: random.Random) -> None:
        self.sim = sim
        self.face = face
        self.rng = rng
        self.plan = sim.plan
        self.quota = sim.plan.records

    # ---- sending

    def sender(self, sender: int, count: int, txn: Txn | None = None) -> Call:
        """Send records one after the other; now and then flush, or wait for an outcome."""
        rng, face = self.rng, self.face
        last: Entry | None = None
        for _ in range(count):
            choice = rng.random()
            if choice < 0.4:
                yield Sleep(rng.expovariate(1 / self.plan.think))
            elif choice < 0.6:
                yield "between two sends"
            if choice > 0.985 and txn is None:
                yield from self._flush()
            elif choice > 0.96 and last is not None and last.delivery is not None:
                yield from face.outcome(last.delivery, rng.random())
            entry = yield from self.send_one(sender, txn)
            if entry.accepted:
                last = entry
            elif face.closed or self.in_trouble:
                return

    @property
    def in_trouble(self) -> bool:
        """Whether the transaction, or the producer, has failed."""
        manager = self.face.parts.transactions
        return manager is not None and manager.state is not TxnState.IN_TRANSACTION

    def send_one(self, sender: int, txn: Txn | None) -> Call:
        rng, sim = self.rng, self.sim
        entry = sim.new_entry(sender, rng.choice(self.plan.sizes))
        entry.topic = rng.choice(list(self.plan.topics))
        entry.txn = txn
        key = b"k%d" % rng.randrange(5) if rng.random() < 0.4 else None
        partition = rng.randrange(self.plan.topics[entry.topic]) if rng.random() < 0.3 else None
        headers = [("h", b"1")] if rng.random() < 0.1 else None
        entry.key, entry.wanted, entry.headers = key, partition, tuple(headers or ())
        try:
            delivery = yield from self.face.send(entry, key, partition, headers)
        except (KafkaError, IllegalStateError, Interrupted) as error:
            sim.on_refused(entry, error)
        else:
            sim.on_accepted(entry, delivery)
        return entry

    def _flush(self) -> Call:
        waiting = [entry for entry in self.sim.ledger.entries if entry.accepted and not entry.calls]
        try:
            yield from self.face.flush(self.rng.choice((0.05, 1.0, math.inf)))
        except (KafkaTimeoutError, AuthenticationError, ProducerClosedError, Interrupted) as error:
            self.sim.note("flush: %r", error)
            return
        self.sim.check_flushed(waiting)

    # ---- transactions

    def transactions(self) -> Call:
        """Run transactions until enough was sent, or the producer fails for good."""
        try:
            yield from self._insist("init_transactions")
            left = self.quota
            while left > 0:
                left -= yield from self._transaction(min(left, self.rng.randint(1, 45)))
        except (GivesUp, ProducerClosedError) as error:
            self.sim.note("the application gives up: %r", error)

    def _transaction(self, count: int) -> Call:
        sim, rng, face = self.sim, self.rng, self.face
        txn = sim.ledger.new_txn()
        try:
            face.begin_transaction()
        except (KafkaError, IllegalStateError) as error:
            if isinstance(error, ProducerClosedError) or face.manager.state is TxnState.FATAL_ERROR:
                raise GivesUp("begin") from error
            if face.manager.state is not TxnState.UNINITIALIZED:
                raise
            # The transaction before was ended, but its producer could not go on with it.
            yield from self._insist("init_transactions")
            face.begin_transaction()
        sim.note("transaction %s begins", txn.number)
        helpers = rng.randint(1, self.plan.senders)
        threads = [
            sim.spawn_sender(lambda sender: self.sender(sender, -(-count // helpers), txn))
            for _ in range(helpers)
        ]
        yield from _join(threads)
        try:
            if rng.random() < 0.2:
                yield from self._insist("send_offsets", txn.number + 1, self.plan.group)
                txn.offset = txn.number + 1
            yield from self._end(txn)
        except (KafkaError, IllegalStateError) as error:
            sim.note("transaction %s: %r", txn.number, error)
            yield from self._abort_after(txn, error)
        return count

    def _end(self, txn: Txn) -> Call:
        choice = self.rng.random()
        if choice < 0.14:
            yield from self._detach(txn)
        elif choice < 0.3:
            txn.end = TxnEnd.ABORTED
            yield from self._insist("abort_transaction")
        else:
            if any(entry.refused is not None for entry in self.sim.ledger.entries if entry.txn is txn):
                self.sim.note("transaction %s is committed although a record was refused", txn.number)
            txn.end = TxnEnd.UNKNOWN
            yield from self._insist("commit_transaction")
            txn.end = TxnEnd.COMMITTED
        self.sim.note("transaction %s: %s", txn.number, txn.end.value)

    def _detach(self, txn: Txn) -> Call:
        handle: TransactionHandle
        for _ in range(_PATIENCE):
            try:
                handle = yield from self.face.detach_transaction()
                break
            except (KafkaTimeoutError, Interrupted):
                continue
            except AuthenticationError:
                yield Sleep(self.rng.random() * 0.05)
        else:
            raise GivesUp("detach")
        txn.end = TxnEnd.UNKNOWN
        txn.detached = True
        self.sim.take_handle(txn, handle)
        if handle.record_count != len(txn.entries):
            self.sim.violate(f"{handle} tells of other records than the {len(txn.entries)} that were sent")
        self.sim.ids += 1
        yield from self._insist("init_transactions", f"t-{self.sim.ids}")

    def _abort_after(self, txn: Txn, error: BaseException) -> Call:
        """What a careful application does: abort if it can, else give the producer up."""
        if self.face.closed or self.face.manager.state is TxnState.FATAL_ERROR:
            raise GivesUp("fatal") from error
        if self.face.manager.state is not TxnState.ABORTABLE_ERROR:
            self.sim.violate(f"{error!r} although the producer is {self.face.manager.state.value}")
            raise GivesUp("inconsistent") from error
        try:
            yield from self._insist("abort_transaction")
        except (KafkaError, IllegalStateError) as failure:
            raise GivesUp("abort") from failure
        # A commit that was refused was not made, whatever became of its answers.
        txn.end = TxnEnd.ABORTED
        self.sim.note("transaction %s: aborted", txn.number)

    def _insist(self, call: str, *args: object) -> Call:
        """Make a transaction call, and make it again when its time was up."""
        since = self.sim.clock.time
        for _ in range(_PATIENCE):
            try:
                yield from getattr(self.face, call)(*args)
                return
            except (KafkaTimeoutError, Interrupted) as error:
                self.sim.watch.on_call_repeated(call, error, since, self.sim.clock.time)
                yield "again"
            except AuthenticationError:
                yield Sleep(self.rng.random() * 0.05)  # told at once; the call may be made again
            except KafkaError as error:
                if call == "init_transactions":
                    raise GivesUp(call) from error
                raise
        raise GivesUp(call)

    # ---- the end

    def closer(self) -> Call:
        """Close when the others are done, or as soon as there are records enough."""
        plan, sim = self.plan, self.sim
        others = [thread for thread in sim.scheduler.threads if thread.name != "closer"]
        if plan.close_early:
            while sim.ledger.accepted < RECORDS_WANTED and any(not thread.ended.done for thread in others):
                yield Sleep(0.02)
        else:
            yield from _join(others)
        if self.rng.random() < 0.5:
            yield Sleep(self.rng.random() * 0.2)
        sim.note("close(%s)", plan.close_timeout)
        yield from self.face.close(plan.close_timeout)
        sim.note("closed")
        sim.check_closed()


def _join(threads: Sequence[AppThread]) -> Call:
    """Wait until they have ended, whatever interrupts."""
    for thread in threads:
        while not thread.ended.done:
            yield Wait(thread.ended, math.inf)
