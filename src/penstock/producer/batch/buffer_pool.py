# SPDX-License-Identifier: Apache-2.0
"""A fixed amount of record memory, shared fairly.

Buffers of one size (batch.size) are kept and used again; any other size is only counted. Who finds no memory gets a
Ticket. Tickets are served strictly in order of arrival, and the first one gathers whatever comes back until it has
enough, so that a large record is not starved by small ones.

Rules:
1. available + handed out + gathered by the waiting Tickets == total, at every moment the lock is free.
2. Memory is charged by `len(buffer)`; `give_back` of the same buffer restores it, to the byte.
3. Tickets are completed outside the lock: whoever gets one may call the pool again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from penstock._locks import new_lock
from penstock._ticket import Ticket, TicketKind
from penstock.errors import KafkaError, ProducerClosedError

NewBuffer = Callable[[int], bytearray]


class _Waiting:
    """A Ticket in the queue, with the memory gathered for it so far."""

    __slots__ = ("gathered", "size", "ticket")

    def __init__(self, size: int, ticket: Ticket[bytearray]) -> None:
        self.size = size
        self.ticket = ticket
        self.gathered = 0


class BufferPool:
    """Hands out record memory up to `total` bytes.

    Args:
        total: bytes that may be handed out at once.
        buffer_size: the size of the buffers that are kept for reuse.
        new_buffer: makes memory; replaced in tests.
    """

    def __init__(self, total: int, buffer_size: int, new_buffer: NewBuffer = bytearray) -> None:
        self.total = total
        self.buffer_size = buffer_size
        self._new_buffer = new_buffer
        self._lock: Any = new_lock()  # guards all below; never taken with a partition lock held
        self._free: list[bytearray] = []  # each of buffer_size
        self._unused = total  # bytes that exist neither as a free buffer nor outside
        self._waiting: deque[_Waiting] = deque()
        self._closed = False

    def try_take(self, size: int) -> bytearray | None:
        """Memory at once, or None: there is not enough, or others came first.

        Raises:
            ValueError: more than the pool will ever have.
            ProducerClosedError: the pool is closed.
        """
        if size > self.total:
            raise ValueError(f"{size} bytes were asked for, but buffer.memory is {self.total} in all")
        buffer: bytearray | None = None
        charged = False
        try:
            with self._lock:
                if self._closed:
                    raise _closed()
                if self._waiting:
                    return None
                if size == self.buffer_size and self._free:
                    # Not by pop(): Ctrl-C comes after calls, and would find the buffer in nobody's hands.
                    buffer = self._free[-1]
                    del self._free[-1]
                elif not self._make_room_locked(size):
                    return None
                else:
                    self._unused -= size
                    charged = True
        except BaseException:
            if buffer is not None:
                self.give_back((buffer,))
            elif charged:
                self.give_back((), size)
            raise
        return self._make(size) if buffer is None else buffer

    def take(self, size: int) -> Ticket[bytearray]:
        """A Ticket for memory; granted at once where there is some and nobody waits.

        A holder that no longer wants it calls `withdraw`.
        """
        ticket: Ticket[bytearray] = Ticket(f"{size} bytes of buffer.memory", TicketKind.MEMORY)
        self.take_for(ticket, size)
        return ticket

    def take_for(self, ticket: Ticket[bytearray], size: int) -> None:
        """The same for a Ticket that the caller has made, and gives to `withdraw` if anything is raised here."""
        buffer = self.try_take(size)
        if buffer is not None:
            try:
                ticket.complete(buffer)
            except BaseException:
                if not ticket.done:
                    self.give_back((buffer,))
                raise
            return
        with self._lock:
            if self._closed:
                raise _closed()
            self._waiting.append(_Waiting(size, ticket))
        self._serve()  # memory may have come back between the two looks

    def withdraw(self, ticket: Ticket[bytearray]) -> None:
        """Stop waiting: what the Ticket has, or had gathered, goes back."""
        if not ticket.give_up():
            self._give_back_granted(ticket)
            return
        with self._lock:
            for waiting in self._waiting:
                if waiting.ticket is ticket:
                    self._unused += waiting.gathered
                    self._waiting.remove(waiting)
                    break
        self._serve()

    def give_back(self, buffers: Iterable[bytearray], counted: int = 0) -> None:
        """Return memory: whole buffers, and bytes that were only counted."""
        with self._lock:
            self._unused += counted
            for buffer in buffers:
                if len(buffer) == self.buffer_size and not self._closed:
                    self._free.append(buffer)
                else:
                    self._unused += len(buffer)
            while self._unused < 0:
                # A trade charges more than comes back uncounted: whole buffers pay for the rest.
                self._free.pop()
                self._unused += self.buffer_size
            somebody_waits = bool(self._waiting)
        if somebody_waits:
            self._serve()

    def trade(self, buffers: list[bytearray], size: int) -> tuple[bytearray, int]:
        """Exchange buffers for one of another size, without waiting: the memory, and what is charged for it.

        For a compressed batch that does not fit its first buffer. Where compression made the data larger than it was,
        the surplus is not charged: there may be no memory for it, and the batch must go out.
        """
        memory = self._new_buffer(size)  # first: where the machine has none, nothing has changed hands
        charge = min(size, sum(len(buffer) for buffer in buffers))
        self.give_back(buffers, -charge)
        return memory, charge

    def available(self) -> int:
        """Bytes that nobody holds; another thread may be about to change that."""
        # No lock: a metric must not wait. At worst it misses a buffer that is changing hands.
        return self._unused + len(self._free) * self.buffer_size

    def waiting(self) -> int:
        """How many Tickets wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Refuse further work, and tell everybody who waits."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._unused += sum(one.gathered for one in waiting) + len(self._free) * self.buffer_size
            self._free.clear()
        for one in waiting:
            one.ticket.fail(_closed())

    def _make_room_locked(self, size: int) -> bool:
        """Break up free buffers until `size` bytes are unused; whether that was enough."""
        if self._unused + len(self._free) * self.buffer_size < size:
            return False
        while self._unused < size:
            self._free.pop()
            self._unused += self.buffer_size
        return True

    def _make(self, size: int) -> bytearray:
        try:
            return self._new_buffer(size)
        except BaseException:
            # The machine has no memory although the pool has: what was charged goes back.
            self.give_back((), size)
            raise

    def _serve(self) -> None:
        """Give what is free to the Tickets at the head."""
        while True:
            with self._lock:
                served = self._gather_for_first_locked()
            if served is None:
                return
            waiting, buffer = served
            try:
                memory = buffer if buffer is not None else self._new_buffer(waiting.size)
            except MemoryError as error:
                self.give_back((), waiting.size)
                waiting.ticket.fail(error)
                continue
            if not waiting.ticket.complete(memory):
                self.give_back((memory,))  # given up meanwhile

    def _gather_for_first_locked(self) -> tuple[_Waiting, bytearray | None] | None:
        if not self._waiting:
            return None
        first = self._waiting[0]
        if first.ticket.done:
            # Given up, and `withdraw` has not come to take it out yet.
            self._unused += first.gathered
            first.gathered = 0
            self._waiting.popleft()
            return self._gather_for_first_locked()
        if first.size == self.buffer_size and self._free:
            # A whole buffer is better than pieces of memory.
            self._unused += first.gathered
            self._waiting.popleft()
            return first, self._free.pop()
        while self._free and self._unused + first.gathered < first.size:
            self._free.pop()
            self._unused += self.buffer_size
        taken = min(self._unused, first.size - first.gathered)
        self._unused -= taken
        first.gathered += taken
        if first.gathered < first.size:
            return None
        self._waiting.popleft()
        return first, None

    def _give_back_granted(self, ticket: Ticket[bytearray]) -> None:
        try:
            buffer = ticket.result
        except (KafkaError, MemoryError):
            return  # it had failed: there is nothing to return
        self.give_back((buffer,))


def _closed() -> ProducerClosedError:
    return ProducerClosedError("the producer was closed while memory was asked for")
