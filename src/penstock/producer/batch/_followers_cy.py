# SPDX-License-Identifier: Apache-2.0
"""Who follows the result of a batch, and who waits for it. Compiled if possible.

A done callback of a record, the tasks of an event loop, and a flush follow: they are called. A thread that asks for the
outcome of a record waits. `Followers` keeps both, and tells them once the result is done, or was split: it has ended.
It does not refer to the result, which refers to it.

Rules:
1. Any thread may follow, wait, or quit. Only the I/O thread releases, once.
2. There is no lock. Who comes puts an entry into a list and then looks whether the result has ended; the I/O thread
   says that it has ended and then takes the lists apart. The second of the two sees what the first did, so nobody is
   forgotten.
3. An entry is taken once: by the I/O thread, or by who has added it and sees that the result has ended. Single
   operations on lists and dicts are atomic, loops over them are not: entries are taken one at a time.
4. After a split each follower goes on to the result that answers for its record now. Who waits looks for it anew.
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

# By another name, so that Cython looks at what users give instead of converting it.
Seconds = float
E = TypeVar("E")


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class Follower:
    """One who is called when a record is done.

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
                raise  # the record was done already: this is the thread that added the callback
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
        return self.result  # also after a split: who follows the whole is told of it

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
    """Who follows one result, and who waits for it. `BatchResult.followers` makes it for the first of them.

    Attributes:
        waiting: those who wait in the event loop that joined last: the next in that loop need not look for them. None
            once the result has ended, before they are told.
    """

    waiting = cython.declare(object, visibility="readonly")
    _has_ended: cython.bint
    _waiters: list
    _by_record: dict

    def __init__(self) -> None:
        self.waiting = None
        self._has_ended = False  # the result is done, or was split
        self._waiters: list[Latch] = []
        # By the index of the record in the batch that it was accepted in; -1: who follows all of them. A key that is
        # left with an empty list does no harm.
        self._by_record: dict[int, list[Follower]] = {}

    @property
    def entries(self) -> list[Follower]:
        """Who follows, and was not called yet."""
        return [entry for entries in list(self._by_record.values()) for entry in entries]

    @property
    def waiters(self) -> list[Latch]:
        """What threads wait at."""
        return list(self._waiters)

    def add(self, follower: Follower) -> None:
        """Call this one when its record is done; at once if it is."""
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
            _take(self._waiters, released)  # a program may ask again and again: no entry may stay behind

    def join(self, waiting: Any, whole: WholeResult) -> None:
        """Let those who wait in one event loop follow the whole result, as one follower; see `_waiting_cy`."""
        waiting.follower = Follower(whole, LoopNotice(waiting))
        self.add(waiting.follower)
        self.waiting = waiting
        if self._has_ended:
            self.waiting = None

    def quit(self, waiting: Any) -> None:
        """Take their follower back: nobody waits in that loop any more."""
        if self.waiting is waiting:
            self.waiting = None
        _take(self._by_record.get(WholeResult._index, []), waiting.follower)

    def end(self) -> None:
        """The result has ended: from now on whoever comes is told at once. Any thread, as often as it likes."""
        self._has_ended = True

    def release(self) -> None:
        """The result has ended: tell all. I/O thread only."""
        self._has_ended = True
        self.waiting = None
        # One by one: who comes takes its own entry back, if it sees the end before we see the entry.
        while (waiter := _take_first(self._waiters)) is not None:
            waiter.set()
        while self._by_record:
            for index in list(self._by_record):  # as it is now: others may add to it
                entries: list = self._by_record[index]
                while (entry := _take_first(entries)) is not None:
                    self._tell(entry)  # which may remove one behind it
                del self._by_record[index]

    def _tell(self, follower: Follower) -> None:
        """Call a follower; after a split, let it follow the piece that answers for its record."""
        followers: Any = follower.delivery._answered_by().followers
        if followers is self:
            follower.call()
        else:
            followers.add(follower)


def _take(entries: list[Any], entry: object) -> bool:
    """Remove an entry; False when somebody else has taken it."""
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
