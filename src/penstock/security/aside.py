# SPDX-License-Identifier: Apache-2.0
"""A few threads for work that may block: authentication, key stores, the first look-up of names.

Rules:
1. Work begins in the order in which it was given, on a thread that is free. Where none is free a new thread is started,
   up to four.
2. Work that has gone on for a minute is stuck. Its thread does not count among the four, so that others go on. There
   are few such threads, however: see `Replacements`.
3. Where no thread can be started, and there is none, the work is done by the caller. From 3.12 on Python
   refuses new threads when the program ends, and records may still have to be sent then. So the first thread is started
   with the client.
4. `close` does not wait, and takes no lock: a finalizer may call it, on a thread that holds the lock here, for a
   client that was forgotten. A thread that is stuck ends when its work does, or with the process.
5. The I/O thread takes the lock here, so nobody waits for work, or logs, while he holds it. A thread is started under
   it, so that the threads that are counted are those that there are. At most one thread waits for work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock._escaping import told
from penstock._events import Event, current, tell, work_for
from penstock._locks import Latch, new_lock, serving

logger = logging.getLogger("penstock.security")

MOST_AT_WORK: Final = 4
STUCK_SECONDS: Final = 60.0
MOST_STUCK: Final = 5
FIRST_PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
# What nobody could begin for so long is not wanted any more: who waited for it has given up.
MOST_WAITING: Final = 1000

Work = Callable[[], None]

_IDLE: Final = "a thread of the client that waits for work of the I/O thread"


class Replacements:
    """How many threads may take the place of those that are stuck.

    Five at once. When more are stuck, one more may be started after a pause, which begins with a minute and doubles up
    to an hour: what hangs for ever does not fill the memory, and what works again is found. Its owner's lock guards it.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._next_at = 0.0

    def allow(self, stuck: int, now: float) -> bool:
        """Whether another thread may be started; then it counts as started.

        Args:
            stuck: threads that are stuck now, and will not be used.
            now: monotonic seconds.
        """
        if stuck <= MOST_STUCK:
            self._pause = FIRST_PAUSE
            self._next_at = now + self._pause
            return True
        if now < self._next_at:
            return False
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next_at = now + self._pause
        return True


class Helpers:
    """The threads of one client. `run` is its `NetworkBackend.run_aside`.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._events = current()
        self._lock: Any = new_lock()
        # What the thread waits at that has nothing to do. Written under the lock, read without it by `close`.
        self._idle: Latch | None = None
        self._closed = False  # written without the lock, and only once
        # All below is guarded by the lock; `close` empties the queue without it, in one step of the interpreter.
        self._queue: deque[Work] = deque(maxlen=MOST_WAITING)
        self._busy_since: dict[int, float | None] = {}  # by the number of the thread; None while it waits
        self._replacements = Replacements()
        self._started = 0

    def start(self) -> None:
        """Start the first thread, so that it is there when no other can be started any more."""
        failure = None
        with self._lock:
            if not self._busy_since and not self._closed:
                failure = self._try_start_locked()
        _tell_no_thread(failure)

    def run(self, work: Work) -> None:
        """Have the work done on another thread, soon. After `close` nothing is done."""
        failure = None
        with self._lock:
            if self._closed:
                return
            self._queue.append(work)
            waiting = sum(since is None for since in self._busy_since.values())
            if len(self._queue) > waiting and self._may_start_locked():
                failure = self._try_start_locked()
            is_left_here = not self._busy_since
            if is_left_here:
                self._queue.clear()  # it holds nothing else: the caller did what came before
            idle = self._idle
        if idle is not None:
            idle.set()
        _tell_no_thread(failure)
        if is_left_here:
            _do(work)  # rule 3

    def close(self) -> None:
        """End all threads that are not stuck, without waiting for them. Twice is harmless."""
        # In this order: a thread that goes to wait shows its latch before it looks whether this is closed.
        self._closed = True
        idle = self._idle
        if idle is not None:
            idle.set()
        self._queue.clear()

    def _may_start_locked(self) -> bool:
        now = self._now()
        stuck = sum(since is not None and now - since > STUCK_SECONDS for since in self._busy_since.values())
        if len(self._busy_since) - stuck >= MOST_AT_WORK:
            return False
        return self._replacements.allow(stuck, now)

    def _try_start_locked(self) -> RuntimeError | None:
        """Start a thread; why that cannot be done, where it cannot."""
        number = self._started + 1
        thread = threading.Thread(
            target=self._work, args=(number,), name=f"penstock-aside-{number}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the program ends, or there are too many threads already
            return error
        self._started = number
        self._busy_since[number] = None
        return None

    def _work(self, number: int) -> None:
        work_for(self._events)
        while (work := self._next(number)) is not None:
            _do(work)

    def _next(self, number: int) -> Work | None:
        """What to do; None when this thread has to end."""
        # It counts as free, so that work is left to it: a finalizer that runs here must not wait for what needs it.
        with serving(_IDLE):
            while True:
                idle = Latch()
                with self._lock:
                    work = self._try_take_locked()
                    if work is not None:
                        self._busy_since[number] = self._now()
                        return work
                    self._busy_since[number] = None
                    # The first that has nothing to do stays, for the end of the program; all others would only wait.
                    if self._closed or not self._is_needed_locked(number):
                        del self._busy_since[number]
                        return None
                    self._idle = idle
                if not self._closed:
                    idle.wait()

    def _try_take_locked(self) -> Work | None:
        try:
            return None if self._closed else self._queue.popleft()
        except IndexError:
            return None  # there is none, or `close` has just taken it away

    def _is_needed_locked(self, number: int) -> bool:
        return not any(other != number and since is None for other, since in self._busy_since.items())

    def __repr__(self) -> str:
        return f"<Helpers: {len(self._busy_since)} threads, {len(self._queue)} to be begun>"


def _tell_no_thread(failure: RuntimeError | None) -> None:
    if failure is not None:
        tell(logger, logging.DEBUG, Event.NO_THREAD, "No thread could be started: %s", failure)


def _do(work: Work) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the thread goes on with the work of others
        # Not the text: it may hold a secret.
        tell(
            logger, logging.ERROR, Event.SECURITY_WORK_FAILED, "Work aside failed: %s", told(error),
            each=(), error=error,
        )  # fmt: skip
