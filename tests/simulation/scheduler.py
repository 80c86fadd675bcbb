# SPDX-License-Identifier: Apache-2.0
"""Application threads as generators, and who runs when.

A thread yields a checkpoint (a string: let others run), `Wait` (for a Ticket, at most so long) or `Sleep`. It is
answered with how the wait ended. The seed's random source chooses the thread that runs next.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from penstock._ticket import Ticket

Program = Generator[Any, Any, Any]


class Wait(NamedTuple):
    """Wait for a Ticket."""

    ticket: Ticket[Any]
    seconds: float


class Sleep(NamedTuple):
    """A step: wait so many seconds of virtual time."""

    seconds: float


class Interrupted(BaseException):
    """What Ctrl-C does to a thread that waits."""


# How a wait ended.
DONE, TIME_IS_UP, INTERRUPTED = "done", "time is up", "interrupted"
OVERSLEPT = "overslept"  # not an answer: an alarm for one who has its answer


class AppThread:
    """One application thread.

    Attributes:
        ended: granted when the program has returned.
    """

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.ended: Ticket[None] = Ticket(f"the end of {name}")
        self.waits_for = ""
        self.answer: str | None = None
        self.turn = 0  # which wait it is in; a late alarm of an earlier one is ignored


class Scheduler:
    """Runs application threads, one step at a time.

    Args:
        rng: chooses.
        now: virtual time.
        on_crash: told when a program ends with an exception.
    """

    def __init__(
        self,
        rng: random.Random,
        now: Callable[[], float],
        on_crash: Callable[[AppThread, BaseException], None],
    ) -> None:
        self.rng = rng
        self.interrupts = 0.0  # how many of the waits are interrupted
        self.threads: list[AppThread] = []
        self.runnable: list[AppThread] = []
        self._now = now
        self._on_crash = on_crash
        self._alarms: list[tuple[float, int, AppThread, int, str]] = []
        self._numbers = itertools.count()

    def spawn(self, name: str, program: Program) -> AppThread:
        thread = AppThread(name, program)
        self.threads.append(thread)
        self.runnable.append(thread)
        return thread

    def next_alarm(self) -> float:
        return self._alarms[0][0] if self._alarms else math.inf

    def ring(self, now: float) -> None:
        """Wake those whose time is up."""
        while self._alarms and self._alarms[0][0] <= now:
            _, _, thread, turn, answer = heapq.heappop(self._alarms)
            if answer == OVERSLEPT:
                self.runnable.append(thread)
            elif answer == TIME_IS_UP and self.rng.random() < 0.4:
                self._oversleep(thread, turn)
            else:
                self._wake(thread, turn, answer)

    def step(self) -> None:
        """Let one of the runnable threads run until it yields."""
        runnable = self.runnable
        at = int(self.rng.random() * len(runnable))
        thread = runnable[at]
        runnable[at] = runnable[-1]
        runnable.pop()
        self._run(thread)

    def _run(self, thread: AppThread) -> None:
        answer, thread.answer = thread.answer, None
        thread.turn += 1
        thread.waits_for = ""
        try:
            item = thread.program.send(answer)
        except StopIteration:
            self._end(thread)
            return
        except BaseException as error:
            self._end(thread)
            self._on_crash(thread, error)
            return
        if isinstance(item, str):
            if self.interrupts and self.rng.random() < self.interrupts:
                thread.answer = INTERRUPTED
            self.runnable.append(thread)
        elif isinstance(item, Sleep):
            self._alarm(thread, item.seconds, DONE)
        else:
            self._wait(thread, item)

    def _wait(self, thread: AppThread, item: Wait) -> None:
        turn = thread.turn
        thread.waits_for = item.ticket.what
        if self.interrupts and self.rng.random() < self.interrupts:
            self._alarm(thread, self.rng.random() * min(item.seconds, 1.0), INTERRUPTED)
        elif item.seconds < math.inf:
            self._alarm(thread, item.seconds, TIME_IS_UP)
        item.ticket.on_done(lambda _: self._wake(thread, turn, DONE))

    def _alarm(self, thread: AppThread, seconds: float, answer: str) -> None:
        heapq.heappush(
            self._alarms, (self._now() + seconds, next(self._numbers), thread, thread.turn, answer)
        )

    def _wake(self, thread: AppThread, turn: int, answer: str) -> None:
        if thread.turn == turn and thread.answer is None:
            thread.answer = answer
            self.runnable.append(thread)

    def _oversleep(self, thread: AppThread, turn: int) -> None:
        """Its time is up, but it comes to run only later: what it waited for may be granted meanwhile."""
        if thread.turn == turn and thread.answer is None:
            thread.answer = TIME_IS_UP
            self._alarm(thread, self.rng.random() * 0.03, OVERSLEPT)

    def _end(self, thread: AppThread) -> None:
        self.threads.remove(thread)
        thread.ended.complete(None)
