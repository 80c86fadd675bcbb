# SPDX-License-Identifier: Apache-2.0
"""Records that failed and that nobody asked about: counted, and told in the log.

A caller that gives send() a callback, or asks a Delivery for its outcome, hears of a failure. A caller that does
neither and drops the Delivery would not. So the result of a batch that failed gets an `UnseenRecords`, which notes
each look at a record. It is freed together with the result, when the last Delivery of the batch is dropped, and then
says how many records were never looked at. A batch that was written gets none: a record that succeeds pays nothing for
this. A bulk has an `UnseenRows` for its lost rows.

Rules:
1. `UnseenFailures.note` is called by finalizers, in the middle of any code and on any thread: it waits for no lock of
   the producer. The I/O thread writes to the log; once it has ended, the thread that notes a failure does.
2. One warning per cause and minute. The first comes at once. Those of the next minute are counted, and logged together.
   When the I/O thread ends, all that was counted is logged, and the first failure after that is logged at once again.
3. After the end of the I/O thread no timer is left: failures that were counted then are logged with the next one after
   the minute, of any producer, or when the program ends. At that time all failures of one producer and cause make one
   warning, also of a producer whose I/O thread did not end because code of the application holds it.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from penstock._events import SECONDS_BETWEEN, Event, current, tell
from penstock._time import FOREVER
from penstock._weak import WeakBag
from penstock.errors import KafkaError
from penstock.producer.owner import process

log = logging.getLogger("penstock.producer")

_TOPICS_NAMED = 3
_SOON = 1.0  # seconds until the next try where another thread was at it
EACH_ROWS_OWN = ""  # in place of a topic: rows that could not be sent name it themselves, or fail to


class UnseenRecords:
    """Which records of a failed batch nobody has asked about.

    Args:
        topic: the batch's.
        count: how many records it has.
        error: why they failed.
        record_errors: why some of them did, by index, where that is another reason.

    Attributes:
        report_to: who is told when this is freed; None: nobody need be.
    """

    __slots__ = ("__weakref__", "_error", "_pid", "_record_errors", "_seen", "_topic", "report_to")

    def __init__(
        self, topic: str, count: int, error: KafkaError, record_errors: Mapping[int, KafkaError]
    ) -> None:
        self._topic = topic
        self._seen = bytearray(count)  # by index; any thread sets one, which is one step
        self._error = error
        self._record_errors = record_errors
        self._pid = process.id  # a fork's copy has nothing to tell: the parent does
        self.report_to: UnseenFailures | None = None

    def look(self, first: int, count: int = 1) -> None:
        """Somebody is told of these records."""
        last = min(first + count, len(self._seen))
        self._seen[first:last] = b"\1" * max(0, last - first)

    def tell(self) -> None:
        """Report what nobody has looked at. Once; later calls do nothing."""
        seen, self._seen = self._seen, bytearray()
        report_to, count = self.report_to, seen.count(0)
        if count and report_to is not None and self._pid == process.id:
            report_to.note(self._topic, self._record_errors.get(seen.index(0), self._error), count)

    def __del__(self) -> None:
        self.tell()


class UnseenRows:
    """Rows of one bulk that were lost, and that nobody has asked about.

    Args:
        report_to: who is told when this is freed; None: nobody need be.
    """

    __slots__ = ("__weakref__", "_report_to", "_rows")

    def __init__(self, report_to: UnseenFailures | None) -> None:
        self._report_to = report_to
        self._rows: list[tuple[str, Exception, int]] = []  # topic, why, how many

    def add(self, topic: str, error: Exception, count: int) -> None:
        """Rows were lost."""
        if not self._rows and self._report_to is not None:
            _watched.add(self)
        self._rows.append((topic, error, count))

    def clear(self) -> None:
        """Somebody has asked."""
        self._rows.clear()

    def tell(self) -> None:
        """Report what nobody has asked about. Once; later calls do nothing."""
        rows, self._rows = self._rows, []
        if self._report_to is not None:
            for topic, error, count in rows:
                self._report_to.note(topic, error, count)

    def __del__(self) -> None:
        self.tell()


class _Cause:
    """What is to be told of one cause."""

    __slots__ = ("count", "error", "quiet_until", "topics")

    def __init__(self) -> None:
        self.quiet_until = -FOREVER
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.error: Exception | None = None  # the first
        self.topics: dict[str, None] = {}  # the first few, in order

    def add(self, topic: str, error: Exception, count: int) -> None:
        self.count += count
        self.error = self.error or error
        if len(self.topics) <= _TOPICS_NAMED:  # one more than is named says that there are others
            self.topics[topic] = None


class UnseenFailures:
    """Tells in the log of the failures that nobody has looked at; one for each producer.

    Args:
        wake: wakes the I/O thread.
        now: the monotonic clock.
    """

    def __init__(self, wake: Callable[[], object], now: Callable[[], float]) -> None:
        self._wake = wake
        self._now = now
        self._noted: deque[tuple[str, Exception, int]] = deque()  # appended to by any thread
        self._causes: dict[tuple[type[Exception], int], _Cause] = {}  # for the thread that has the token
        # The thread that has taken the token counts and logs; one that finds none does not wait, since a finalizer may
        # run in the middle of that, on any thread.
        self._token: deque[None] = deque([None])
        self.has_news = False  # something was noted, or some cause has a count; read in every turn
        self._all_is_due = False  # the next thread with the token logs what the minute would hold back
        self._ended = False
        self._pid = process.id
        self.events = current()  # those of the client; for the threads of others
        _all.add(self)

    def watch(self, records: UnseenRecords | None) -> None:
        """Hear of those records of a failed batch that nobody will have looked at. I/O thread."""
        if records is not None:
            records.report_to = self
            _watched.add(records)

    def note(self, topic: str, error: Exception, count: int) -> None:
        """Record failures that no caller can look at any more. Perhaps from a finalizer."""
        if self._pid != process.id:
            return  # a fork's copy: the parent tells
        self._noted.append((topic, error, count))
        self.has_news = True
        if not self._ended and not _exit.is_over:
            self._wake()
            return
        _late.add(self)  # until it is logged: Ctrl-C may come before that
        if _exit.is_over:
            self.tell_all()
        elif not _exit.sums_up:
            for failures in (self, *(_late - {self})):  # no timer does it for the others
                failures.tell_due()

    def tell_due(self) -> None:
        """Log what is due. A fork's copy has nothing to tell."""
        if self._pid == process.id:
            self.maybe_tell(self._now())

    def maybe_tell(self, now: float) -> float:
        """Write to the log what is due; seconds until more will be. I/O thread; after it, or at exit, any thread."""
        while True:
            taken: list[None] = []
            try:
                try:
                    # One step: after the end this may be the main thread, and Ctrl-C must not lose the token.
                    taken.extend(map(_take, (self._token,)))
                except IndexError:
                    return _SOON  # the thread that has it sees what was noted
                self.has_news = False  # first: a note that comes meanwhile sets it again
                while self._noted:
                    topic, error, count = self._noted.popleft()
                    key = (type(error), getattr(error, "code", 0))
                    self._causes.setdefault(key, _Cause()).add(topic, error, count)
                delay = self._tell_due(now)
                if self._ended:
                    (_late.add if self.has_news else _late.discard)(self)
            finally:
                self._token.extend(taken)
            if not self._noted and not self._all_is_due:
                return delay

    def end(self) -> None:
        """The I/O thread ends: log all that is left. Later failures are logged by the threads that note them."""
        self._ended = True
        self.tell_all()

    def tell_all(self) -> None:
        """Log all that was counted, whenever the last warning was."""
        self._all_is_due = True
        self.tell_due()

    def _tell_due(self, now: float) -> float:
        delay = FOREVER
        all_is_due, self._all_is_due = self._all_is_due, False
        for cause in list(self._causes.values()):
            if all_is_due:
                cause.quiet_until = -FOREVER
            if not cause.count:
                continue
            if now < cause.quiet_until:
                delay = min(delay, cause.quiet_until - now)
                continue
            count, error, topics = cause.count, cause.error, list(cause.topics)
            if not all_is_due:
                cause.quiet_until = now + SECONDS_BETWEEN
            tell(
                log, logging.WARNING, Event.RECORDS_UNSEEN,
                "%d record%s for %s failed, and the program did not ask for the outcome: there was no callback, and "
                "result() or exception() of the Delivery was not called. The first error: %s. To get such errors, give "
                "send() an on_delivery, or keep what the call returns and call its result() or exception(). (This is "
                "logged at most once a minute for each kind of error.)",
                count, "" if count == 1 else "s", name_topics(topics, are_all=False), _described(error),
                of=self.events, records=count, topic=topics[0] if len(topics) == 1 else None, error=error,
            )  # fmt: skip
            cause.clear()
        if delay != FOREVER:
            self.has_news = True
        return delay


_take = deque.pop


class _Exit:
    """How far the end of the program is.

    Attributes:
        sums_up: failures are counted first, and then logged together.
        is_over: that was done, and nothing else will be: each later failure is logged at once.
    """

    sums_up = False
    is_over = False


_exit = _Exit()
# Failures that are still held: when the program ends, no caller will look at them any more.
_watched: WeakBag[UnseenRecords | UnseenRows] = WeakBag()
# Those that have failures to log although their I/O thread has ended; a strong reference, or the count would be lost.
_late: set[UnseenFailures] = set()
# All of them: at exit the I/O thread of one may still be held by code of the application.
_all: WeakBag[UnseenFailures] = WeakBag()


def tell_at_exit() -> None:
    """Log the failed records whose Deliveries were kept until the program ends and never looked at, and late ones."""
    _exit.sums_up = True
    try:
        for failures_held in _watched:
            failures_held.tell()
    finally:
        _exit.sums_up = False
        with ExitStack() as stack:  # Ctrl-C while one is logged keeps no other from the log
            for failures in {*_late.copy(), *_all}:
                stack.callback(failures.tell_all)


def _end_of_exit() -> None:
    _exit.is_over = True


atexit.register(_end_of_exit)  # runs after `tell_at_exit`, which is registered later


def name_topics(topics: Sequence[str], *, are_all: bool = True) -> str:
    """The first few of them in a sentence, and how many others there are.

    Args:
        topics: the topics.
        are_all: False if there may be more than these, so that the others cannot be counted.
    """
    if topics == [EACH_ROWS_OWN]:
        return "topics that the rows name"
    named = ", ".join(repr(topic) for topic in topics[:_TOPICS_NAMED])
    text = f"{'topic' if len(topics) == 1 else 'topics'} {named}"
    others = len(topics) - _TOPICS_NAMED
    if others <= 0:
        return text
    if not are_all:
        return f"{text} and others"
    return f"{text} and {others} other{'' if others == 1 else 's'}"


def _described(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}"
