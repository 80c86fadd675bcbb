# SPDX-License-Identifier: Apache-2.0
"""A fixed amount of record memory, shared fairly. Compiled if possible.

A batch takes its memory in chunks as it grows. Chunks of batch.size, and of powers of two below it, are kept and used
again; any other size is only counted. A caller that finds no memory gets a Ticket. Tickets are served strictly in order
of arrival, and the first one gathers the memory that comes back until it has enough, so that a large record is not
starved by small ones.

Rules:
1. available + handed out + gathered by the waiting Tickets == total, at every moment the lock is free.
2. Memory is charged by `len(chunk)`, used or not; `give_back` of the same chunk restores it, to the byte.
3. Tickets are completed outside the lock: what follows may call the pool again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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

# Bytes with which a batch of small records begins, so that thousands of partitions have room in buffer.memory.
SMALLEST_CHUNK = 1024


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
        buffer_size: the size of the largest chunks that are kept for reuse.
        new_buffer: makes memory; replaced in tests.
        now: the monotonic clock.
        smallest: the size of the smallest chunks, if `buffer_size` is not smaller.
    """

    total = cython.declare(cython.Py_ssize_t, visibility="readonly")
    buffer_size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    smallest = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _now = cython.declare(object)
    _new_buffer = cython.declare(object)
    _lock = cython.declare(object, visibility="public")
    _free: dict
    _free_whole: list
    _kept: cython.Py_ssize_t
    _unused: cython.Py_ssize_t
    _waiting = cython.declare(object, visibility="readonly")
    _closed: cython.bint

    def __init__(
        self,
        total: int,
        buffer_size: int,
        new_buffer: NewBuffer = bytearray,
        now: Callable[[], float] = time.monotonic,
        smallest: int = SMALLEST_CHUNK,
    ) -> None:
        self._now = now
        self.total = total
        self.buffer_size = buffer_size
        self.smallest = max(1, min(smallest, buffer_size))
        self._new_buffer = new_buffer
        self._lock = new_lock()  # guards all below; never taken with a partition lock held
        sizes = [self.smallest]
        while sizes[0] < buffer_size:
            sizes.insert(0, sizes[0] * 2)
        sizes[0] = buffer_size
        # By size, the largest first.
        self._free: dict[int, list[Memory]] = {size: [] for size in sizes}
        self._free_whole = self._free[buffer_size]
        self._kept = 0  # bytes in `_free`
        self._unused = total  # bytes that exist neither as a free chunk nor outside
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
                free = self._free_of(size)
                if free:
                    # Not by pop(): Ctrl-C comes after calls, and would find the buffer in nobody's hands.
                    buffer = free[-1]
                    del free[-1]
                    self._kept -= size
                elif not self._make_room_locked(size):
                    return None
                else:
                    self._unused -= size
                    charged = True
        except BaseException:
            if buffer is not None:
                self.give_back((buffer,))
            elif charged:
                self._uncharge(size)
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

    def give_back(self, buffers: Iterable[Memory]) -> None:
        """Return memory."""
        size: cython.Py_ssize_t
        with self._lock:
            for buffer in buffers:
                size = len(buffer)
                free = None if self._closed else self._free_of(size)
                if free is None:
                    self._unused += size
                else:
                    self._kept += size
                    free.append(buffer)
            somebody_waits = bool(self._waiting)
        if somebody_waits:
            self._serve()

    def _uncharge(self, size: int) -> None:
        """Nothing came of memory that was charged."""
        with self._lock:
            self._unused += size
        self._serve()

    @cython.ccall
    def available(self) -> cython.Py_ssize_t:
        """Bytes that nobody holds; another thread may be about to change that."""
        # No lock: a metric must not wait. At worst it misses a buffer that is changing hands.
        return self._unused + self._kept

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
            self._break_up_locked(self.total)
        for one in waiting:
            one.ticket.fail(_closed())

    def _take_waiting_locked(self) -> list[_Waiting]:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._unused += sum(one.gathered for one in waiting)
        return waiting

    @cython.cfunc
    def _free_of(self, size: cython.Py_ssize_t) -> list | None:  # type: ignore[type-arg]
        """The free chunks of a size; None if those are not kept."""
        return self._free_whole if size == self.buffer_size else self._free.get(size)

    @cython.cfunc
    def _make_room_locked(self, size: cython.Py_ssize_t) -> cython.bint:
        """Break up free chunks until `size` bytes are unused; False if there is less."""
        if self._unused + self._kept < size:
            return False
        self._break_up_locked(size)
        return True

    @cython.cfunc
    def _break_up_locked(self, size: cython.Py_ssize_t) -> Any:
        """Break up free chunks until `size` bytes are unused, or none is left."""
        if self._unused >= size:
            return
        # The largest first: what is left of one serves smaller ones, and the machine's memory is not cut into pieces.
        for each, free in self._free.items():
            while free and self._unused < size:
                self._kept -= each
                self._unused += each
                del free[-1]

    def _make(self, size: int) -> Memory:
        try:
            return self._new_buffer(size)
        except BaseException:
            # The machine has no memory although the pool has: what was charged goes back.
            self._uncharge(size)
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
                self._uncharge(waiting.size)
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
        free = self._free_of(first.size)
        if free:
            # A chunk that is there is better than pieces of memory.
            self._unused += first.gathered
            self._waiting.popitem(last=False)
            self._kept -= first.size
            return first, free.pop()
        self._break_up_locked(first.size - first.gathered)
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
