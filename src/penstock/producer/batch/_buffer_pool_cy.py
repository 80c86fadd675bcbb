# SPDX-License-Identifier: Apache-2.0
"""A fixed amount of record memory, shared fairly. Compiled if possible.

Buffers of one size (batch.size) are kept and used again; any other size is only counted. A caller that finds no
memory gets a Ticket. Tickets are served strictly in order of arrival, and the first one gathers the memory that comes
back until it has enough, so that a large record is not starved by small ones.

Rules:
1. available + handed out + gathered by the waiting Tickets == total, at every moment the lock is free.
2. Memory is charged by `len(buffer)`; `give_back` of the same buffer restores it, to the byte.
3. Tickets are completed outside the lock: what follows may call the pool again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock._locks import new_lock
from penstock._ticket import Ticket, TicketKind
from penstock.errors import KafkaError, ProducerClosedError

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# By another name, so that compiled code does not look at the type: tests have memory that is not there.
Memory = bytearray
NewBuffer = Callable[[int], Memory]


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class MemoryWait(NamedTuple):
    """Somebody who waits for memory.

    Attributes:
        thread: the name of the thread that asked.
        size: bytes it needs, and `gathered`, those that it has by now.
        since: when it began to wait, in monotonic seconds.
    """

    thread: str
    size: int
    gathered: int
    since: float


class _Waiting:
    """A Ticket in the queue, with the memory gathered for it so far."""

    __slots__ = ("gathered", "since", "size", "thread", "ticket")

    def __init__(self, size: int, ticket: Ticket[Memory], since: float) -> None:
        self.size = size
        self.since = since
        self.thread = threading.current_thread().name
        self.ticket = ticket
        self.gathered = 0


@cython.cclass
class BufferPool:
    """Hands out record memory up to `total` bytes.

    It never gives up: how long a caller waits is in `Appender._wait_for_memory`.

    Not final: the simulator, and tests, watch it through the methods of a class of their own.

    Args:
        total: bytes that may be handed out at once.
        buffer_size: the size of the buffers that are kept for reuse.
        new_buffer: makes memory; replaced in tests.
        now: the monotonic clock.
    """

    total = cython.declare(cython.Py_ssize_t, visibility="readonly")
    buffer_size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _now = cython.declare(object)
    _new_buffer = cython.declare(object)
    _lock = cython.declare(object, visibility="public")
    _free: list
    _unused: cython.Py_ssize_t
    _waiting = cython.declare(object, visibility="readonly")
    _closed: cython.bint

    def __init__(
        self,
        total: int,
        buffer_size: int,
        new_buffer: NewBuffer = bytearray,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self.total = total
        self.buffer_size = buffer_size
        self._new_buffer = new_buffer
        self._lock = new_lock()  # guards all below; never taken with a partition lock held
        self._free = []  # each of buffer_size
        self._unused = total  # bytes that exist neither as a free buffer nor outside
        # In order of arrival. Thousands may stop waiting at once, and are found without a search.
        self._waiting = OrderedDict()  # of _Waiting, by Ticket
        self._closed = False

    def try_take(self, size: cython.Py_ssize_t) -> Memory | None:
        """Memory at once, or None: there is not enough, or others came first.

        Raises:
            ValueError: more than the pool will ever have.
            ProducerClosedError: the pool is closed.
        """
        if size > self.total:
            raise ValueError(f"{size} bytes were asked for, but buffer.memory is {self.total} in all")
        buffer: Memory | None = None
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

    def take(self, size: int) -> Ticket[Memory]:
        """A Ticket for memory; granted at once where there is some and nobody waits.

        A holder that no longer wants it calls `withdraw`.
        """
        ticket: Ticket[Memory] = Ticket(f"{size} bytes of buffer.memory", TicketKind.MEMORY)
        self.take_for(ticket, size)
        return ticket

    def take_for(self, ticket: Ticket[Memory], size: int) -> None:
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
        waiting = _Waiting(size, ticket, self._now())
        with self._lock:
            if self._closed:
                raise _closed()
            self._waiting[ticket] = waiting
        self._serve()  # memory may have come back between the two looks

    def withdraw(self, ticket: Ticket[Memory]) -> None:
        """Stop waiting: what the Ticket has, or had gathered, goes back."""
        if not ticket.give_up():
            self._give_back_granted(ticket)
            return
        with self._lock:
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None:
                self._unused += waiting.gathered
        self._serve()

    def give_back(self, buffers: Iterable[Memory], counted: int = 0) -> None:
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

    def trade(self, buffers: list[Memory], size: int) -> tuple[Memory, int]:
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
        return len(self._waiting)

    def fail_waiting(self, why: Callable[[], KafkaError]) -> None:
        """Nothing comes back for now: tell everybody who waits. Who comes later may wait again."""
        with self._lock:
            waiting = self._take_waiting_locked()
        for one in waiting:
            one.ticket.fail(why())

    def waits(self) -> list[MemoryWait]:
        """Who waits for memory now, in the order in which they are served."""
        # No lock: a copy is made in one step, and a number that is about to change does no harm.
        return [
            MemoryWait(one.thread, one.size, one.gathered, one.since) for one in self._waiting.copy().values()
        ]

    def close(self) -> None:
        """Refuse further work, and tell everybody who waits."""
        with self._lock:
            self._closed = True
            waiting = self._take_waiting_locked()
            self._unused += len(self._free) * self.buffer_size
            self._free.clear()
        for one in waiting:
            one.ticket.fail(_closed())

    def _take_waiting_locked(self) -> list[_Waiting]:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._unused += sum(one.gathered for one in waiting)
        return waiting

    @cython.cfunc
    def _make_room_locked(self, size: cython.Py_ssize_t) -> cython.bint:
        """Break up free buffers until `size` bytes are unused; whether that was enough."""
        if self._unused + len(self._free) * self.buffer_size < size:
            return False
        while self._unused < size:
            self._free.pop()
            self._unused += self.buffer_size
        return True

    def _make(self, size: int) -> Memory:
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

    def _gather_for_first_locked(self) -> tuple[_Waiting, Memory | None] | None:
        if not self._waiting:
            return None
        first = next(iter(self._waiting.values()))
        while first.ticket.done:
            # Given up, and `withdraw` has not come to take it out yet.
            self._unused += first.gathered
            first.gathered = 0
            self._waiting.popitem(last=False)
            if not self._waiting:
                return None
            first = next(iter(self._waiting.values()))
        if first.size == self.buffer_size and self._free:
            # A whole buffer is better than pieces of memory.
            self._unused += first.gathered
            self._waiting.popitem(last=False)
            return first, self._free.pop()
        while self._free and self._unused + first.gathered < first.size:
            self._free.pop()
            self._unused += self.buffer_size
        taken = min(self._unused, first.size - first.gathered)
        self._unused -= taken
        first.gathered += taken
        if first.gathered < first.size:
            return None
        self._waiting.popitem(last=False)
        return first, None

    def _give_back_granted(self, ticket: Ticket[Memory]) -> None:
        try:
            buffer = ticket.result
        except (KafkaError, MemoryError):
            return  # it had failed: there is nothing to return
        self.give_back((buffer,))


def _closed() -> ProducerClosedError:
    return ProducerClosedError("the producer was closed while memory was asked for")
