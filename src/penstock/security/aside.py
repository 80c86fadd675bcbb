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
4. `close` waits for nobody. A thread that is stuck ends when its work does, or with the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock._escaping import told
from penstock._events import Event, current, tell, work_for

logger = logging.getLogger("penstock.security")

MOST_AT_WORK: Final = 4
STUCK_SECONDS: Final = 60.0
MOST_STUCK: Final = 5
FIRST_PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
# What nobody could begin for so long is not wanted any more: who waited for it has given up.
MOST_WAITING: Final = 1000

Work = Callable[[], None]


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
        self._changed = threading.Condition()
        # All below is guarded by the condition's lock.
        self._queue: deque[Work] = deque(maxlen=MOST_WAITING)
        self._busy_since: dict[int, float | None] = {}  # by the number of the thread; None while it waits
        self._replacements = Replacements()
        self._started = 0
        self._closed = False

    def start(self) -> None:
        """Start the first thread, so that it is there when no other can be started any more."""
        with self._changed:
            if not self._busy_since and not self._closed:
                self._try_start_locked()

    def run(self, work: Work) -> None:
        """Have the work done on another thread, soon. After `close` nothing is done."""
        with self._changed:
            if self._closed:
                return
            self._queue.append(work)
            waiting = sum(since is None for since in self._busy_since.values())
            if len(self._queue) > waiting and self._may_start_locked():
                self._try_start_locked()
            if self._busy_since:
                self._changed.notify()
                return
            self._queue.remove(work)
        _do(work)  # rule 3

    def close(self) -> None:
        """End all threads that are not stuck, without waiting for them. Twice is harmless."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _may_start_locked(self) -> bool:
        now = self._now()
        stuck = sum(since is not None and now - since > STUCK_SECONDS for since in self._busy_since.values())
        if len(self._busy_since) - stuck >= MOST_AT_WORK:
            return False
        return self._replacements.allow(stuck, now)

    def _try_start_locked(self) -> None:
        number = self._started + 1
        thread = threading.Thread(
            target=self._work, args=(number,), name=f"penstock-aside-{number}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the program ends, or there are too many threads already
            tell(logger, logging.DEBUG, Event.NO_THREAD, "No thread could be started: %s", error)
            return
        self._started = number
        self._busy_since[number] = None

    def _work(self, number: int) -> None:
        work_for(self._events)
        while (work := self._next(number)) is not None:
            _do(work)

    def _next(self, number: int) -> Work | None:
        """What to do; None when this thread has to end."""
        with self._changed:
            self._busy_since[number] = None
            # The first that has nothing to do stays, for the end of the program; all others would only wait.
            while not self._queue and not self._closed and self._is_needed_locked(number):
                self._changed.wait()
            if not self._queue or self._closed:
                del self._busy_since[number]
                return None
            self._busy_since[number] = self._now()
            return self._queue.popleft()

    def _is_needed_locked(self, number: int) -> bool:
        return not any(other != number and since is None for other, since in self._busy_since.items())

    def __repr__(self) -> str:
        return f"<Helpers: {len(self._busy_since)} threads, {len(self._queue)} to be begun>"


def _do(work: Work) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the thread goes on with the work of others
        # Not the text: it may hold a secret.
        tell(
            logger, logging.ERROR, Event.SECURITY_WORK_FAILED, "Work aside failed: %s", told(error),
            each=(), error=error,
        )  # fmt: skip
