# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted on purpose, to see whether the simulator finds them. Each is a switch; none touches the sources.

Those of `bugs_by_room` are more: one for each part of the producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulation import bugs_by_room, bugs_in_loops
from simulation.planting import Bug, Changes, around, find

NOT_LEADER_OR_FOLLOWER = 6


def sequence_not_rewound() -> Changes:
    """A batch that is sent again takes the next number instead of its own."""

    def retry(original: Any, outcomes: Any, batch: Any, *args: Any) -> None:
        original(outcomes, batch, *args)
        numbering = getattr(outcomes._gate, "_numbers", outcomes._gate.numbering)
        if hasattr(numbering, "book"):
            numbering.book.drop(batch)
            batch.identity = find("ANONYMOUS")

    return around("Outcomes", "_retry", retry)


def batch_freed_in_flight() -> Changes:
    """The memory of a batch goes back although a request still holds its bytes."""

    def release(original: Any, accumulator: Any, batch: Any) -> None:
        pending, batch.request_pending = batch.request_pending, False
        original(accumulator, batch)
        batch.request_pending = pending

    return around("RecordAccumulator", "release", release)


def callback_called_twice() -> Changes:
    """The first callback of a batch that failed is called once more."""

    def settle(original: Any, result: Any, *args: Any, **options: Any) -> None:
        callbacks = list(result.callbacks)
        original(result, *args, **options)
        if result.error is not None and callbacks:
            delivery, callback = callbacks[0]
            callback(*delivery._outcome())

    return around("BatchResult", "settle", settle)


def muting_forgotten() -> Changes:
    """With one request in flight, a partition is not muted while its batch is on the way."""

    def enter_flight(original: Any, sender: Any, batches: list[Any]) -> None:
        original(sender, batches)
        for batch in batches:
            batch.queue.muted = False

    return around("Sender", "_enter_flight", enter_flight)


def epoch_renumbers_too_much() -> Changes:
    """A new epoch starts every partition anew, also those whose numbering is sound."""

    def take_identity(original: Any, gate: Any, identity: Any) -> None:
        original(gate, identity)
        for queue in list(gate.numbering.book._partitions):
            gate.numbering.book.restart(queue, identity, transactional=False)

    return around("IdempotentGate", "_take_identity", take_identity)


def too_many_numbered() -> Changes:
    """More batches are numbered behind one in flight than the broker remembers."""

    def may_drain(original: Any, numbering: Any, queue: Any, batch: Any) -> bool:
        numbers = numbering.book.of(queue)
        for each in [] if numbering.transactional else numbers.in_flight:
            each.numbered_as = numbers.numbered
        return bool(original(numbering, queue, batch))

    return around("Numbering", "may_drain", may_drain)


def end_sent_too_early() -> Changes:
    """EndTxn does not wait for batches that are in flight."""

    def may_still_be_written(_: Any, accumulator: Any) -> bool:
        return accumulator.has_undrained()

    return around("RecordAccumulator", "may_still_be_written", may_still_be_written)


def given_up_ticket_loses_memory() -> Changes:
    """Memory that was granted in the very moment in which its waiter gave up is forgotten."""
    return around("BufferPool", "_give_back_granted", lambda *_: None)


def second_look_left_out() -> Changes:
    """A thread that waited for memory opens a new batch, also when another thread has opened one meanwhile."""

    def append(original: Any, appender: Any, topic: Any, partition: Any, *rest: Any) -> Any:
        if rest[-1] is not None:
            queue = appender._queue(topic, partition)
            queue.take_some(lambda batch: False)  # closes the open batch
        return original(appender, topic, partition, *rest)

    return around("Appender", "_append", append)


def numbers_forgotten_with_the_topic() -> Changes:
    """A topic that is used again is numbered from 0, as if it had never been used."""
    return around("SequenceBook", "put_away", lambda _, book, queue: book._partitions.pop(queue, None))


def second_not_leader_fails() -> Changes:
    """A batch that meets a broker which does not lead its partition for the second time is given up."""

    def decide(original: Any, gate: Any, code: int, *args: Any) -> Any:
        decision = original(gate, code, *args)
        situation = args[-1]
        again = code == NOT_LEADER_OR_FOLLOWER and situation.attempts >= 1
        return decision._replace(action=find("Action").FAIL) if again and not situation.done else decision

    return around("OpenGate", "decide", decide) + around("Numbering", "decide", decide)


def pieces_share_a_sequence() -> Changes:
    """The pieces of a batch that was too large all get the number of the first one."""

    def on_split(original: Any, numbering: Any, batch: Any, pieces: Any) -> None:
        original(numbering, batch, pieces)
        for piece in pieces:
            piece.identity = pieces[0].identity

    return around("Numbering", "on_split", on_split)


def callbacks_reversed() -> Changes:
    """The callbacks of a batch are called from its last record to its first."""

    def settle(original: Any, result: Any, *args: Any, **options: Any) -> None:
        result.callbacks = result.callbacks[::-1]
        original(result, *args, **options)

    return around("BatchResult", "settle", settle)


def last_waiter_first() -> Changes:
    """The thread that asked for memory last is served first."""

    def take_for(original: Any, pool: Any, *args: Any) -> None:
        before = len(pool._waiting)
        original(pool, *args)
        if len(pool._waiting) > max(before, 1):
            pool._waiting.move_to_end(next(reversed(pool._waiting)), last=False)

    return around("BufferPool", "take_for", take_for)


def retry_backoff_ignored() -> Changes:
    """A batch that is sent again does not wait before it is."""

    def schedule(original: Any, retries: Any, batch: Any, now: float) -> None:
        original(retries, batch, now)
        batch.retry_at = now

    return around("Retries", "schedule", schedule)


def throttled_node_drained() -> Changes:
    """A broker that asked for a pause is sent the next request at once."""
    return around("pool's module", "throttle_seconds", lambda *_: 0.0)


def close_leaves_the_rest() -> Changes:
    """close(timeout) returns when its time is up, and what has no outcome by then goes on."""

    def close(original: Any, producer: Any, timeout: float | None = None) -> None:
        producer._core.begin_close()
        if producer._core.ended.wait(timeout):
            original(producer, timeout)

    return around("Producer", "close", close)


def metadata_backoff_never_reset() -> Changes:
    """After an answer the next failure waits as if it followed on all failures before."""

    def on_answer(original: Any, schedule: Any, *args: Any, **options: Any) -> None:
        failures = schedule._failures
        original(schedule, *args, **options)
        schedule._failures = failures

    return around("RefreshSchedule", "on_answer", on_answer)


def flush_forgets_retries() -> Changes:
    """flush() does not wait for batches that are to be sent again."""

    def flush(original: Any, accumulator: Any) -> Any:
        retried = {batch for batch in accumulator._incomplete if batch.attempts}
        accumulator._incomplete -= retried
        try:
            return original(accumulator)
        finally:
            accumulator._incomplete |= retried

    return around("RecordAccumulator", "flush", flush)


def wake_up_lost() -> Changes:
    """The I/O thread waits although it was woken just before."""

    def before_wait(original: Any, wakeup: Any) -> bool:
        original(wakeup)
        return True

    return around("Wakeup", "before_wait", before_wait)


_EVERYWHERE = (
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
_IN_LOOPS = [Bug(plant, awaited=True) for plant in bugs_in_loops.ALL]
BUGS = {bug.name: bug for bug in (*map(Bug, (*_EVERYWHERE, *bugs_by_room.ALL)), *_IN_LOOPS)}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run the block with a bug, or without."""
    if name is None:
        yield
        return
    with BUGS[name].planted():
        yield
