# SPDX-License-Identifier: Apache-2.0
"""Calls of the real `Producer` that block, in virtual time.

A generator cannot stand in the middle of `Producer.close`. So such a call runs on a thread of its own, in lock-step: it
goes on only while the simulator does nothing but wait for it, and where it would block it hands over what it waits for.
Which of the two runs is never left to the operating system, so that a seed stays what it is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

from penstock._ticket import Ticket
from simulation.scheduler import DONE, INTERRUPTED, Interrupted, Wait

_mine = threading.local()  # .call: the BlockingCall whose thread this is


class _Abandoned(BaseException):
    """The simulation is over, and the call with it."""


class BlockingCall:
    """One call on its own thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._go = threading.Semaphore(0)
        self._handed_over = threading.Semaphore(0)
        self._item: Wait | str | None = None
        self._answer: str | None = None
        self._error: BaseException | None = None
        self._abandoned = False

    def steps(self) -> Generator[Any, Any, None]:
        """As a program of an application thread; raises what the call raises."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            self._handed_over.acquire()
            while self._item is not None:
                self._answer = yield self._item
                self._item = None
                self._go.release()
                self._handed_over.acquire()
        finally:
            if thread.is_alive() and self._item is not None:
                self._abandoned = True
                self._go.release()
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        _mine.call = self
        try:
            self._work()
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self._item = None
        self._handed_over.release()

    def hand_over(self, item: Wait | str) -> str | None:
        """On the call's thread: let the others go on; how a wait ended."""
        if self._abandoned:
            raise _Abandoned
        self._item = item
        self._handed_over.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned
        if self._answer == INTERRUPTED:
            raise Interrupted
        return self._answer


def pause(name: str) -> None:
    """Let others run now, if this is the thread of a blocking call."""
    call: BlockingCall | None = getattr(_mine, "call", None)
    if call is not None:
        call.hand_over(name)


class SimTicket(Ticket[None]):
    """A Ticket that is waited for in virtual time."""

    def wait(self, timeout: float | None = None) -> bool:
        if self.done:
            return True
        call: BlockingCall = _mine.call  # nobody else may wait here
        return call.hand_over(Wait(self, math.inf if timeout is None else timeout)) == DONE


class SimThread:
    """The I/O thread, which the simulator runs itself."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self.name = name
        self._target, self._args = target, args

    def start(self) -> None:
        """Do nothing: the simulator runs the work itself."""

    def run(self) -> None:
        """Do the work that the thread was made for."""
        self._target(*self._args)

    def join(self, timeout: float | None = None) -> None:
        """The time-out of the thread that waits for its event is over."""

    def is_alive(self) -> bool:
        return False


# What a producer finds in place of the module.
THREADING = SimpleNamespace(**{**vars(threading), "Thread": SimThread})
