# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted on purpose, to see whether the simulator finds them. Each is a switch; none touches the sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from penstock.network import _pool_cy
from penstock.network.selector import Wakeup
from penstock.producer.batch.accumulator import RecordAccumulator
from penstock.producer.batch.batch import ANONYMOUS, Batch
from penstock.producer.batch.buffer_pool import BufferPool
from penstock.producer.batch.delivery import BatchResult
from penstock.producer.guarantee.gate import OpenGate
from penstock.producer.guarantee.idempotence import IdempotentGate
from penstock.producer.guarantee.numbering import Numbering
from penstock.producer.guarantee.response_policy import Action, Decision
from penstock.producer.guarantee.sequences import SequenceBook
from penstock.producer.io.outcomes import Outcomes, Retries
from penstock.producer.io.sender import Sender
from penstock.producer.metadata.schedule import RefreshSchedule
from penstock.producer.producer import Producer
from simulation.plan import IDEMPOTENT, PLAIN, TRANSACTIONAL, Plan

Patch = AbstractContextManager[Any]

NOT_LEADER_OR_FOLLOWER = 6


def _around(owner: type, method: str, replacement: Callable[..., Any]) -> Patch:
    """Replace a method by a function that gets the original one first."""
    original = getattr(owner, method)

    def changed(*args: Any, **options: Any) -> Any:
        return replacement(original, *args, **options)

    return mock.patch.object(owner, method, changed)


def sequence_not_rewound() -> Patch:
    """A batch that is sent again takes the next number instead of its own."""

    def retry(original: Any, outcomes: Outcomes, batch: Batch, *args: Any) -> None:
        original(outcomes, batch, *args)
        numbering = getattr(outcomes._gate, "numbering", None) or getattr(outcomes._gate, "_numbering", None)
        if numbering is not None:
            numbering.book.drop(batch)
            batch.identity = ANONYMOUS

    return _around(Outcomes, "_retry", retry)


def batch_freed_in_flight() -> Patch:
    """The memory of a batch goes back although a request still holds its bytes."""

    def release(original: Any, accumulator: RecordAccumulator, batch: Batch) -> None:
        pending, batch.request_pending = batch.request_pending, False
        original(accumulator, batch)
        batch.request_pending = pending

    return _around(RecordAccumulator, "release", release)


def callback_called_twice() -> Patch:
    """The first callback of a batch that failed is called once more."""

    def settle(original: Any, result: BatchResult, *args: Any, **options: Any) -> None:
        callbacks = list(result.callbacks)
        original(result, *args, **options)
        if result.error is not None and callbacks:
            delivery, callback = callbacks[0]
            callback(*delivery._outcome())

    return _around(BatchResult, "settle", settle)


def muting_forgotten() -> Patch:
    """With one request in flight, a partition is not muted while its batch is on the way."""

    def enter_flight(original: Any, sender: Sender, batches: list[Batch]) -> None:
        original(sender, batches)
        for batch in batches:
            batch.queue.muted = False

    return _around(Sender, "_enter_flight", enter_flight)


def epoch_renumbers_too_much() -> Patch:
    """A new epoch starts every partition anew, also those whose numbering is sound."""

    def take_identity(original: Any, gate: IdempotentGate, identity: Any) -> None:
        original(gate, identity)
        for queue in list(gate.numbering.book._partitions):
            gate.numbering.book.restart(queue, identity, transactional=False)

    return _around(IdempotentGate, "_take_identity", take_identity)


def too_many_numbered() -> Patch:
    """More batches are numbered behind one in flight than the broker remembers."""

    def may_drain(original: Any, gate: IdempotentGate, queue: Any, batch: Batch) -> bool:
        numbers = gate.numbering.book.of(queue)
        for each in numbers.in_flight:
            each.numbered_as = numbers.numbered
        return bool(original(gate, queue, batch))

    return _around(IdempotentGate, "may_drain", may_drain)


def end_sent_too_early() -> Patch:
    """EndTxn does not wait for batches that are in flight."""

    def may_still_be_written(_: Any, accumulator: RecordAccumulator) -> bool:
        return accumulator.has_undrained()

    return _around(RecordAccumulator, "may_still_be_written", may_still_be_written)


def given_up_ticket_loses_memory() -> Patch:
    """Memory that was granted in the very moment in which its waiter gave up is forgotten."""
    return _around(BufferPool, "_give_back_granted", lambda *_: None)


def second_look_left_out() -> Patch:
    """Whoever waited for memory opens a new batch, also when another thread has opened one meanwhile."""

    def append(original: Any, accumulator: RecordAccumulator, topic: Any, partition: Any, *rest: Any) -> Any:
        if rest[-1] is not None:
            queue = accumulator._queue(topic, partition)
            queue.take_some(lambda batch: False)  # closes the open batch
        return original(accumulator, topic, partition, *rest)

    return _around(RecordAccumulator, "_append", append)


def numbers_forgotten_with_the_topic() -> Patch:
    """A topic that is used again is numbered from 0, as if it had never been used."""
    return mock.patch.object(SequenceBook, "put_away", lambda book, queue: book._partitions.pop(queue, None))


def second_not_leader_fails() -> Patch:
    """A batch that meets a broker which does not lead its partition for the second time is given up."""

    def decide(original: Any, gate: Any, code: int, *args: Any) -> Decision:
        decision: Decision = original(gate, code, *args)
        situation = args[-1]
        again = code == NOT_LEADER_OR_FOLLOWER and situation.attempts >= 1
        return decision._replace(action=Action.FAIL) if again and not situation.done else decision

    return _both(_around(OpenGate, "decide", decide), _around(Numbering, "decide", decide))


def pieces_share_a_sequence() -> Patch:
    """The pieces of a batch that was too large all get the number of the first one."""

    def on_split(original: Any, numbering: Numbering, batch: Batch, pieces: Any) -> None:
        original(numbering, batch, pieces)
        for piece in pieces:
            piece.identity = pieces[0].identity

    return _around(Numbering, "on_split", on_split)


def callbacks_reversed() -> Patch:
    """The callbacks of a batch are called from its last record to its first."""

    def settle(original: Any, result: BatchResult, *args: Any, **options: Any) -> None:
        result.callbacks = result.callbacks[::-1]
        original(result, *args, **options)

    return _around(BatchResult, "settle", settle)


def last_waiter_first() -> Patch:
    """Whoever asked for memory last is served first."""

    def take_for(original: Any, pool: BufferPool, *args: Any) -> None:
        before = len(pool._waiting)
        original(pool, *args)
        if len(pool._waiting) > max(before, 1):
            pool._waiting.rotate(1)

    return _around(BufferPool, "take_for", take_for)


def retry_backoff_ignored() -> Patch:
    """A batch that is sent again does not wait before it is."""

    def schedule(original: Any, retries: Retries, batch: Batch, now: float) -> None:
        original(retries, batch, now)
        batch.retry_at = now

    return _around(Retries, "schedule", schedule)


def throttled_node_drained() -> Patch:
    """A broker that asked for a pause is sent the next request at once."""
    return mock.patch.object(_pool_cy, "throttle_seconds", return_value=0.0)


def close_leaves_the_rest() -> Patch:
    """close(timeout) returns when its time is up, and what has no outcome by then goes on."""

    def close(original: Any, producer: Producer, timeout: float | None = None) -> None:
        producer._begin_close()
        if producer._ended.wait(timeout):
            original(producer, timeout)

    return _around(Producer, "close", close)


def metadata_backoff_never_reset() -> Patch:
    """After an answer the next failure waits as if it followed on all failures before."""

    def on_answer(original: Any, schedule: RefreshSchedule, *args: Any, **options: Any) -> None:
        failures = schedule._failures
        original(schedule, *args, **options)
        schedule._failures = failures

    return _around(RefreshSchedule, "on_answer", on_answer)


def flush_forgets_retries() -> Patch:
    """flush() does not wait for batches that are to be sent again."""

    def flush(original: Any, accumulator: RecordAccumulator) -> Any:
        retried = {batch for batch in accumulator._incomplete if batch.attempts}
        accumulator._incomplete -= retried
        try:
            return original(accumulator)
        finally:
            accumulator._incomplete |= retried

    return _around(RecordAccumulator, "flush", flush)


def wake_up_lost() -> Patch:
    """The I/O thread waits although it was woken just before."""

    def before_wait(original: Any, wakeup: Wakeup) -> bool:
        original(wakeup)
        return True

    return _around(Wakeup, "before_wait", before_wait)


@contextmanager
def _both(first: Patch, second: Patch) -> Iterator[None]:
    with first, second:
        yield


BUGS: dict[str, Callable[[], Patch]] = {
    bug.__name__.replace("_", "-"): bug
    for bug in (
        sequence_not_rewound,
        batch_freed_in_flight,
        callback_called_twice,
        muting_forgotten,
        epoch_renumbers_too_much,
        too_many_numbered,
        end_sent_too_early,
        given_up_ticket_loses_memory,
        second_look_left_out,
        numbers_forgotten_with_the_topic,
        second_not_leader_fails,
        pieces_share_a_sequence,
        callbacks_reversed,
        last_waiter_first,
        retry_backoff_ignored,
        throttled_node_drained,
        close_leaves_the_rest,
        metadata_backoff_never_reset,
        flush_forgets_retries,
        wake_up_lost,
    )
}


# Where the rarer ones are worth looking for when time is short.
_WORTH: dict[Callable[[], Patch], Callable[[Plan], bool]] = {
    sequence_not_rewound: lambda plan: plan.mode == IDEMPOTENT,
    batch_freed_in_flight: lambda plan: plan.spare_ms <= 300,
    muting_forgotten: lambda plan: (
        plan.mode == PLAIN and plan.ordered and plan.acks != "0" and plan.brokers > 1
    ),
    epoch_renumbers_too_much: lambda plan: plan.mode == IDEMPOTENT and sum(plan.topics.values()) > 1,
    too_many_numbered: lambda plan: (
        plan.mode == IDEMPOTENT
        and plan.brokers > 1
        and plan.options["max_in_flight_requests_per_connection"] > 1
        and sum(plan.topics.values()) <= 3
    ),
    end_sent_too_early: lambda plan: plan.mode == TRANSACTIONAL,
    numbers_forgotten_with_the_topic: lambda plan: plan.mode == IDEMPOTENT,
    pieces_share_a_sequence: lambda plan: (
        plan.mode != PLAIN and plan.max_message_bytes < plan.options["batch_size"]
    ),
    close_leaves_the_rest: lambda plan: plan.close_timeout < 1.0,
}


def worth_a_look(name: str, plan: Plan) -> bool:
    """Whether a bug may well show itself in seeds with such a plan."""
    check = _WORTH.get(BUGS[name])
    return check is None or check(plan)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run the block with a bug, or without."""
    if name is None:
        yield
        return
    with BUGS[name]():
        yield
