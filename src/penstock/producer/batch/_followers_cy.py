# SPDX-License-Identifier: Apache-2.0
"""The followers of a batch's result, and the threads that wait for it. Compiled if possible.

A done callback of a record, the tasks of an event loop, and a flush are followers: they are called. A thread that asks
for the outcome of a record waits. `Followers` keeps both, and tells them when the result has ended: when it is done or
was split. It does not refer to the result, which refers to it.

Rules:
1. Any thread may follow, wait, or quit. Only the I/O thread releases, once.
2. There is no lock. A thread first adds an entry to a list, and then checks whether the result has ended. The I/O
   thread first sets that the result has ended, and then takes the entries. The second of the two sees what the first
   did, so no entry is forgotten.
3. An entry is taken once: by the I/O thread, or by the thread that has added it and sees that the result has ended.
   Single operations on lists and dicts are atomic, loops over them are not: entries are taken one at a time.
4. After a split each follower is added to the result that has its record now. A waiting thread looks for that result.
5. Callbacks run on the I/O thread; one that is added after the end runs at once, on the thread that adds it. A user's
   function that was added in an event loop runs in that loop: `_done_callbacks` passes it on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from penstock._done_callbacks import DoneCallback
from penstock._events import Event, tell_error
from penstock._locks import Latch
from penstock._ticket import Countdown
from penstock.producer.owner import on_io_thread

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

log = logging.getLogger("penstock.producer")

# With another name, so that Cython checks the user's value instead of converting it.
Seconds = float
E = TypeVar("E")


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class Follower:
    """A function that is called when a record is done.

    Args:
        delivery: the record's Delivery, or a `WholeResult`; the function gets it.
        callback: the function.
    """

    __slots__ = ("callback", "delivery")

    def __init__(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        self.delivery = delivery
        self.callback = callback

    def is_for(self, delivery: Any, fn: object) -> bool:
        """Whether it is a done callback of this record, and calls this function."""
        return (
            self.delivery is delivery and isinstance(self.callback, DoneCallback) and self.callback.fn == fn
        )

    def call(self) -> None:
        try:
            self.callback(self.delivery)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not on_io_thread():
                raise  # the record was done already, and Ctrl-C belongs to the thread that adds the callback
            tell_error(log, Event.CALLBACK_FAILED, "a done callback of a delivery raised", error=error)


class WholeResult:
    """All records of a result, as if they were one Delivery. A flush and an event loop follow all of them.

    Args:
        result: the BatchResult.
    """

    __slots__ = ("result",)
    _index = -1  # in place of the index of a record

    def __init__(self, result: Any) -> None:
        self.result = result

    def _answered_by(self) -> Any:
        return self.result  # also after a split: these followers are told of the split

    def after(self, callback: Callable[[], None]) -> None:
        """Call back when the result, and all pieces into which it was split, are done."""
        pieces = self.result.pieces
        if not pieces:
            callback()
            return
        countdown = Countdown(len(pieces), callback)
        for _, piece in pieces:
            piece.when_settled(countdown.one_less)


class LoopNotice:
    """Notifies the tasks of an event loop that a result is done or was split.

    Args:
        waiting: the tasks that wait, with the mailbox of their loop.
    """

    __slots__ = ("waiting",)

    def __init__(self, waiting: Any) -> None:
        self.waiting = waiting

    def __call__(self, whole: WholeResult) -> None:
        if whole.result.owner is None:
            self.waiting.happened()
        else:
            whole.result.owner.post(self.waiting.mailbox, self.waiting)


@cython.final
@cython.cclass
class Followers:
    """The followers of one result, and its waiting threads. `BatchResult.followers` makes it for the first of them.

    Attributes:
    waiting: the waiting tasks of the event loop that joined last: the next task of that loop need not search for
    them. None once the result has ended, before they are told.
    """

    waiting = cython.declare(object, visibility="readonly")
    _has_ended: cython.bint
    _waiters: list
    _by_record: dict

    def __init__(self) -> None:
        self.waiting = None
        self._has_ended = False  # the result is done, or was split
        self._waiters: list[Latch] = []
        # By the index of the record in the batch that it was accepted in; -1: followers of all records. A key with an
        # empty list does no harm.
        self._by_record: dict[int, list[Follower]] = {}

    @property
    def entries(self) -> list[Follower]:
        """The followers that were not called yet."""
        return [entry for entries in list(self._by_record.values()) for entry in entries]

    @property
    def waiters(self) -> list[Latch]:
        """The latches of the waiting threads."""
        return list(self._waiters)

    def add(self, follower: Follower) -> None:
        """Call a follower when its record is done; at once if it is done already."""
        entries: list = self._by_record.setdefault(follower.delivery._index, [])
        entries.append(follower)
        if self._has_ended and _take(entries, follower):
            self._tell(follower)

    def remove(self, delivery: Any, fn: object) -> int:
        """Forget the done callbacks of a record that have this function; how many."""
        entries: list = self._by_record.get(delivery._index, [])
        return sum(entry.is_for(delivery, fn) and _take(entries, entry) for entry in list(entries))

    def wait(self, seconds: Seconds | None) -> None:
        """Block until the result has ended, or the time is up; None: there is no limit. Ctrl-C interrupts."""
        released = Latch()
        try:
            self._waiters.append(released)
            if not self._has_ended:
                released.wait(seconds)
        finally:
            _take(self._waiters, released)  # without this, entries would collect if a program asks repeatedly

    def join(self, waiting: Any, whole: WholeResult) -> None:
        """Add all waiting tasks of one event loop as one follower of the whole result; see `_waiting_cy`."""
        waiting.follower = Follower(whole, LoopNotice(waiting))
        self.add(waiting.follower)
        self.waiting = waiting
        if self._has_ended:
            self.waiting = None

    def quit(self, waiting: Any) -> None:
        """Remove the follower of a loop: no task waits in it any more."""
        if self.waiting is waiting:
            self.waiting = None
        _take(self._by_record.get(WholeResult._index, []), waiting.follower)

    def end(self) -> None:
        """The result has ended: a follower that is added from now on is called at once. Any thread; may be repeated."""
        self._has_ended = True

    def release(self) -> None:
        """The result has ended: call all followers, and release all waiting threads. I/O thread only."""
        self._has_ended = True
        self.waiting = None
        # One at a time: a thread that adds an entry takes it back itself, if it sees the end before this loop sees it.
        while (waiter := _take_first(self._waiters)) is not None:
            waiter.set()
        while self._by_record:
            for index in list(self._by_record):  # as it is now: others may add to it
                entries: list = self._by_record[index]
                while (entry := _take_first(entries)) is not None:
                    self._tell(entry)  # which may remove one behind it
                del self._by_record[index]

    def _tell(self, follower: Follower) -> None:
        """Call a follower; after a split, add it to the piece that has its record."""
        followers: Any = follower.delivery._answered_by().followers
        if followers is self:
            follower.call()
        else:
            followers.add(follower)


def _take(entries: list[Any], entry: object) -> bool:
    """Remove an entry; False if another thread has taken it."""
    try:
        entries.remove(entry)
    except ValueError:
        return False
    return True


def _take_first(entries: list[E]) -> E | None:
    """Remove the first entry; None when there is none."""
    try:
        return entries.pop(0)
    except IndexError:
        return None
