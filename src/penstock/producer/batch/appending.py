# SPDX-License-Identifier: Apache-2.0
"""How records get into batches: what application threads do, beyond the fast path.

Rules:
1. Memory is asked for outside the partition lock, and the append is tried again under it before a new batch is opened:
   meanwhile another thread may have opened one (the double-checked append).
2. A buffer that was taken ends in a queued batch or goes back to the pool, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from penstock._ticket import Ticket, TicketKind
from penstock.errors import BufferExhaustedError, ProducerClosedError
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.batch._opening_cy import BatchOpener
from penstock.producer.batch._queue_cy import (
    NEEDS_SEGMENT,
    NO_BATCH,
    NotAdmitted,
    PartitionQueue,
    TopicForgotten,
    TopicState,
)
from penstock.types import Header

Steps = Generator[Ticket[Any] | str, Any, Delivery]

# A checkpoint: something was accepted, and the time allowed for waiting counts anew.
PROGRESS = "progress"

# Bytes of rows after which the I/O thread is told of them: about what one request holds, by default. Told of each batch
# at once it would send requests of one batch, at the cost of a turn each, where one can take a batch of each partition.
_UNTOLD_BYTES = 1024 * 1024


def _always() -> None:
    """Records are accepted, whatever happens."""


class TimeIsUp(Exception):
    """Thrown into waiting steps by whoever drives them when the time allowed for waiting is used up."""

    def __init__(self, waited_ms: int) -> None:
        super().__init__(f"{waited_ms} ms")
        self.waited_ms = waited_ms


class EncodedRecord(NamedTuple):
    """A record as bytes, with the most it can take in a batch of its own."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None
    size_bound: int


class BulkWake:
    """Wakes the I/O thread for the rows of one call: now and then, and when the call waits or ends.

    Args:
        wake: wakes it.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._untold = 0  # bytes appended since

    def after(self, size: int) -> None:
        """Rows were appended."""
        self._untold += size
        if self._untold >= _UNTOLD_BYTES:
            self.now()

    def now(self) -> None:
        """No more will come for a while."""
        self._untold = 0
        self._wake()


class Appender(BatchOpener):
    """Appends records, singly or by rows, and opens batches for them: the half of the accumulator that sends use.

    Args: as for `BatchOpener`, which has what happens for every batch of single records.
    """

    def append_steps(
        self,
        topic: TopicState,
        partition: int | None,
        record: EncodedRecord,
        on_delivery: Any,
        admitted: Callable[[], None] = _always,
    ) -> Steps:
        """Append, opening a new batch where needed. Yields Tickets for memory, and checkpoints by name.

        Args:
            admitted: raises when records are not accepted any more; asked after each wait, because what was allowed
                before (a transaction was open) may have ended meanwhile.

        Raises:
            BufferExhaustedError: TimeIsUp was thrown in while it waited for memory.
            ProducerClosedError: the producer was closed.
            TopicForgotten: `topic` is not used any more: ask for it again.
        """
        while True:
            admitted()
            try:
                delivery: Delivery | None = self.try_append(topic, partition, record, on_delivery)
                if delivery is not None:
                    return delivery
                yield "memory"
                buffer = yield from self._memory(max(self.batch_size, record.size_bound))
                try:
                    yield "second look"
                    admitted()
                except BaseException:
                    self.pool.give_back((buffer,))
                    raise
                outcome: Delivery | int = self._append(topic, partition, record, on_delivery, buffer)
            except NotAdmitted as error:
                self._ask_why(admitted, error)
                continue
            if not isinstance(outcome, int):
                return outcome

    def _ask_why(self, admitted: Callable[[], None], error: NotAdmitted) -> None:
        """A queue took no record: let `admitted` say why not, or come back where that has passed meanwhile."""
        admitted()
        if not self.admits_records():
            raise error  # it knows of no reason

    def admits_records(self) -> bool:
        """Whether records are accepted, as far as transactions go."""
        raise NotImplementedError

    def bulk_wake(self) -> BulkWake:
        """What wakes the I/O thread for the rows of one call."""
        return BulkWake(self._wake)

    def append_rows_now(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        wake: BulkWake,
    ) -> int:
        """Append rows of a window as far as that needs no waiting; the first that is left.

        The ordinary case of `append_rows_steps`, whose arguments these are. Where it stops, those steps go on: they
        wait, let a compressed batch grow, or say why nothing more is accepted.
        """
        first, last = rows
        buffer: bytearray | None = None
        fresh: Batch | None = None
        try:
            while first < last:
                queue, sticky = self._place(where)
                fresh = None if buffer is None else self._new_batch(queue, buffer)
                taken, why = queue.append_rows(window, first, last, accepted, sticky, None, fresh)
                if fresh is not None and fresh.queued_as:
                    buffer = fresh = None  # it is the queue's now
                if taken:
                    first += taken
                    wake.after(window.payload)
                if why == NO_BATCH and first < last:
                    # Also where there is a buffer: another thread's batch may have taken the rows that it was for.
                    if window.size_bound(first) > self.batch_size:
                        break
                    if buffer is None:
                        buffer = self.pool.try_take(self.batch_size)
                    if buffer is None:
                        break
                elif why == NEEDS_SEGMENT:
                    break
        except (ProducerClosedError, NotAdmitted, TopicForgotten):
            pass  # the steps say so
        finally:
            self._return_unused(buffer, fresh, None)
        return first

    def append_rows_steps(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        wake: BulkWake,
        admitted: Callable[[], None] = _always,
    ) -> Generator[Ticket[Any] | str, Any, None]:
        """Append rows of a window, opening batches where needed; yields as `append_steps` does, and PROGRESS.

        Args:
            where: the queue of their partition, or a topic: wherever records without key of it go now.
            rows: the first, and the one behind the last.
            accepted: gets what was appended; see `PartitionQueue.append_rows`.
            wake: told what was appended. To tell it of the end is up to the caller, who may have more.
        """
        first, last = rows
        needs_batch = False
        while first < last:
            admitted()
            buffer = None
            if needs_batch:
                yield "memory"
                buffer = yield from self._memory(max(self.batch_size, window.size_bound(first)))
                try:
                    yield "second look"
                    admitted()
                except BaseException:
                    self.pool.give_back((buffer,))
                    raise
            try:
                taken, why = self._append_rows(where, window, (first, last), accepted, buffer)
            except NotAdmitted as error:
                self._ask_why(admitted, error)
                continue
            needs_batch = why == NO_BATCH
            if taken:
                first += taken
                wake.after(window.payload)
                yield PROGRESS

    def _append_rows(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        buffer: bytearray | None,
    ) -> tuple[int, int]:
        """One chunk; an unused `buffer` goes back to the pool, whatever happens."""
        fresh: Batch | None = None
        spares: list[bytearray] | None = None
        try:
            queue, sticky = self._place(where)
            fresh = None if buffer is None else self._new_batch(queue, buffer)
            taken, why = queue.append_rows(window, *rows, accepted, sticky, None, fresh)
            if taken == 0 and why == NEEDS_SEGMENT:
                spare = self.pool.try_take(self.batch_size)
                spares = [] if spare is None else [spare]
                taken, why = queue.append_rows(window, *rows, accepted, sticky, spares, fresh)
        finally:
            self._return_unused(buffer, fresh, spares)
        return taken, why

    def _place(self, where: PartitionQueue | TopicState) -> tuple[PartitionQueue, TopicState | None]:
        """The queue that rows go to now, and their topic where that is only for now."""
        if isinstance(where, TopicState):
            return self._queue(where, None), where
        return where, None

    def _memory(self, size: int) -> Generator[Ticket[Any] | str, Any, bytearray]:
        ticket: Ticket[bytearray] = Ticket(f"{size} bytes of buffer.memory", TicketKind.MEMORY)
        try:
            self.pool.take_for(ticket, size)
            if ticket.done:
                return ticket.result
            self._wake()  # memory pressure makes every batch ready: let the I/O thread see it
            buffer: bytearray = yield ticket
            return buffer
        except TimeIsUp as up:
            self.pool.withdraw(ticket)
            raise BufferExhaustedError(
                f"no {size} bytes of buffer.memory ({self.pool.total}) became free within max.block.ms: waited "
                f"{up.waited_ms} ms. The brokers take records more slowly than they are sent, or not at all; slow "
                "down, raise buffer.memory or max.block.ms, or see whether the brokers can be reached."
            ) from None
        except BaseException:
            self.pool.withdraw(ticket)
            raise
