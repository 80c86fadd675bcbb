# SPDX-License-Identifier: Apache-2.0
"""Looks over the shoulder of one producer: what it does, when, and in which order.

Rules that are checked here:
1. A batch is not failed with an error that can be retried while retries and time are left.
2. No batch expires before its time, nor at all when nothing has gone wrong for PATIENCE seconds of its life; no send()
   is refused for want of metadata or memory after as long a wait, and no transaction call is still without an answer.
3. A batch is sent again after its backoff, or when its partition has a new leader, not before.
4. After n failures in a row the next question for metadata comes after the n-th wait of the backoff, not later.
5. The callbacks of a batch come in the order of its records; with one request in flight, and no transaction, all those
   of a partition do.
6. Memory is granted in the order in which it was asked for.
7. A record has its outcome when its delivery time-out is over.
8. A batch that was refused before it was sent does not end the producer.

What concerns the network and the metadata is in `watch_network`.

That a node is not sent anything while it throttles is seen by the network, in `wire`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from watchable import WatchablePool

from penstock._ticket import Ticket
from penstock.errors import BufferExhaustedError, DeliveryTimeoutError, KafkaTimeoutError
from penstock.producer.assembly import ProducerParts
from penstock.producer.batch import _delivery_cy
from penstock.producer.batch._batch_cy import Batch, BatchState
from penstock.producer.batch._buffer_pool_cy import BufferPool
from penstock.producer.batch._delivery_cy import BatchResult
from simulation.ledger import Entry
from simulation.plan import TRANSACTIONAL

if TYPE_CHECKING:
    from simulation.run import Simulation

PATIENCE = 10.0  # virtual seconds: far more than any queue needs to get empty
_LEAST, _MOST = 0.8, 1.2  # of a wait, by its jitter
_UNLIMITED = 2**31 - 1
_TICKS = 1e-3  # looks at the clock in between
_TURNS = 0.01  # seconds that others may take before it is a batch's turn
_ROUNDING = 1e-6


class Watch:
    """Watches one producer, from its making to its end."""

    def __init__(self, sim: Simulation, parts: ProducerParts) -> None:
        self._sim = sim
        self._timeout = parts.accumulator.delivery_timeout
        self._retries = sim.plan.options.get("retries", _UNLIMITED)
        self._initial = sim.plan.options["retry_backoff_ms"] / 1000
        self._max = sim.plan.options["retry_backoff_max_ms"] / 1000
        self._again_from: dict[
            Batch, tuple[float, int]
        ] = {}  # not before; the leader epoch that it was sent with
        self._metadata_failures = 0
        self._told: dict[tuple[int, str, int], int] = {}  # by sender and partition: the last record told of
        # A transaction that cannot be committed fails what was never sent at once, and what is on its way later.
        self._in_order = (
            sim.plan.mode != TRANSACTIONAL and sim.plan.options["max_in_flight_requests_per_connection"] == 1
        )
        self._hook_outcomes(parts)
        self._hook_flight(parts)
        self._hook_metadata(parts)

    # ---- failures

    def _hook_outcomes(self, parts: ProducerParts) -> None:
        outcomes = parts.sender._outcomes
        fail, retry = outcomes.fail, outcomes._retry

        def watched_fail(batch: Batch, error: Any, now: float, *rest: Any) -> None:
            if not batch.done:
                self._check_failure(batch, error, now)
            fail(batch, error, now, *rest)

        def watched_retry(batch: Batch, answer: Any, now: float) -> None:
            retry(batch, answer, now)
            wait = min(self._max, self._initial * 2 ** (batch.attempts - 1) * _LEAST)
            self._again_from[batch] = (now + wait, batch.leader_epoch)

        fail_expired = parts.sender._fail_expired

        def watched_expiry(batch: Batch, now: float) -> None:
            self._check_expiry(batch, now)
            fail_expired(batch, now)

        parts.sender._fail_expired = watched_expiry  # type: ignore[method-assign]
        outcomes.fail, outcomes._retry = watched_fail, watched_retry  # type: ignore[method-assign]
        on_unsent, gate = outcomes.on_unsent, parts.sender._gate

        def watched_unsent(error: Any, batches: list[Batch], now: float) -> None:
            could_go_on = not gate.failed
            on_unsent(error, batches, now)
            self._sim.report.refused += len(batches)
            if gate.failed and could_go_on and not any(batch.in_doubt for batch in batches):
                self._sim.violate(f"{error!r} has ended the producer, although nothing was sent")

        outcomes.on_unsent = watched_unsent  # type: ignore[method-assign]

    def _check_failure(self, batch: Batch, error: Any, now: float) -> None:
        if batch.state is not BatchState.IN_FLIGHT or isinstance(error, DeliveryTimeoutError):
            return  # not for its own answer: its transaction, or the producer, has failed with another batch's error
        over = batch.reached_timeout(now, self._timeout)
        if error.retriable and batch.attempts < self._retries and not over:
            self._sim.violate(
                f"a batch of {batch.record_count} records for {batch.topic_partition} failed after {batch.attempts} "
                f"retries and {batch.age(now):.3f} of {self._timeout:.3f} s, although it could be sent again: {error!r}"
            )

    def _check_expiry(self, batch: Batch, now: float) -> None:
        what = f"a batch of {batch.record_count} records for {batch.topic_partition}"
        if not batch.reached_timeout(now + _ROUNDING, self._timeout):
            self._sim.violate(f"{what} expired after {batch.age(now):.3f} s of {self._timeout:.3f} s")
        self._check_patience(f"{what} expired", batch.created, now)

    def _check_patience(self, what: str, since: float, now: float) -> None:
        quiet = now - max(since, self._sim.trouble_until)
        if quiet >= PATIENCE:
            self._sim.violate(f"{what}, although nothing went wrong for the last {quiet:.1f} s")

    def on_refused(self, entry: Entry, error: BaseException, now: float) -> None:
        """Check an error that send() has raised."""
        if isinstance(error, (KafkaTimeoutError, BufferExhaustedError)):
            self._check_patience(f"{entry} was refused with {error!r}", entry.started, now)

    def on_call_repeated(self, call: str, error: BaseException, since: float, now: float) -> None:
        """A transaction call had no answer in time, and is made again."""
        if isinstance(error, KafkaTimeoutError):
            self._check_patience(f"{call}() has no answer", since, now)

    # ---- timing

    def _hook_flight(self, parts: ProducerParts) -> None:
        enter_flight = parts.sender._enter_flight

        def watched(batches: list[Batch]) -> None:
            for batch in batches:
                earliest, epoch = self._again_from.pop(batch, (0.0, -1))
                now = self._sim.clock.time
                if now < earliest and batch.leader_epoch <= epoch:
                    self._sim.violate(
                        f"a batch for {batch.topic_partition} is sent again {1000 * (earliest - now):.1f} ms before "
                        f"the end of its backoff (retry {batch.attempts})"
                    )
            enter_flight(batches)

        parts.sender._enter_flight = watched  # type: ignore[method-assign]

    def _hook_metadata(self, parts: ProducerParts) -> None:
        schedule = parts.metadata._schedule
        on_answer, on_failure = schedule.on_answer, schedule.on_failure

        def watched_answer(now: float, **options: Any) -> None:
            on_answer(now, **options)
            self._metadata_failures = 0

        def watched_failure(now: float) -> None:
            on_failure(now)
            longest = min(self._max, self._initial * 2**self._metadata_failures * _MOST) + _TICKS
            self._metadata_failures += 1
            waits = schedule._rest_until - now
            if waits > longest:
                self._sim.violate(
                    f"metadata are asked for again after {waits:.3f} s, and {self._metadata_failures} failure(s) in a "
                    f"row mean {longest:.3f} s at most"
                )

        schedule.on_answer, schedule.on_failure = watched_answer, watched_failure  # type: ignore[method-assign]

    # ---- order

    def on_outcome(self, entry: Entry) -> None:
        """A callback was called."""
        late = self._sim.clock.time - max(entry.appended + self._timeout, self._sim.trouble_until)
        if late > _TURNS and not self._sim.turn_is_old:
            self._sim.violate(f"{entry} has its outcome {late:.3f} s after its delivery time-out")
        if not self._in_order:
            return
        key = (entry.sender, entry.topic, entry.partition)
        before = self._told.get(key, -1)
        if entry.number < before:
            self._sim.violate(
                f"the callback of {entry} for {entry.topic}-{entry.partition} came after that of record {before}"
            )
        self._told[key] = max(before, entry.number)


@contextmanager
def watched_order(sim: Simulation) -> Iterator[None]:
    """Watch the order of callbacks in a batch, and that of memory, for all producers of a simulation."""
    call_callbacks, take_for = _delivery_cy.call_callbacks, WatchablePool.take_for
    asked: dict[BufferPool, list[Ticket[bytearray]]] = defaultdict(list)

    def watched_callbacks(result: BatchResult, callbacks: list[Any]) -> None:
        first = len(sim.told)
        call_callbacks(result, callbacks)
        last: dict[int, int] = {}
        for entry in sim.told[first:]:
            if entry.number < last.get(entry.sender, -1):
                sim.violate(
                    f"the callback of {entry} came after that of record {last[entry.sender]} in its batch"
                )
            last[entry.sender] = entry.number

    def watched_take(pool: BufferPool, ticket: Ticket[bytearray], size: int) -> None:
        waiting = asked[pool]
        if pool.waiting():
            waiting.append(ticket)
        take_for(pool, ticket, size)
        if not ticket.done and ticket not in waiting:
            waiting.append(ticket)
        ticket.on_done(lambda _: _check_first(sim, waiting, ticket))

    with (
        # A function of the module: a method of a compiled class could not be replaced.
        mock.patch.object(_delivery_cy, "call_callbacks", watched_callbacks),
        mock.patch.object(WatchablePool, "take_for", watched_take),
    ):
        yield


def _check_first(sim: Simulation, waiting: list[Ticket[bytearray]], ticket: Ticket[bytearray]) -> None:
    if ticket not in waiting:
        return
    granted = repr(ticket).endswith("granted>")
    older = [one for one in waiting[: waiting.index(ticket)] if not one.done]
    waiting.remove(ticket)
    if granted and older:
        sim.violate(
            f"{ticket.what} were granted to the one who asked after {len(older)} other(s) that still wait"
        )
