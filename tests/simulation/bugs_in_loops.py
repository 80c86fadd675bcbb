# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the way of an AsyncProducer: see `bugs`. Only tasks in event loops come across them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from simulation.planting import Changes, around


def cancelled_waiter_keeps_its_memory() -> Changes:
    """A task that is cancelled while it waits does not tell the steps that wait for it."""
    kept: list[Any] = []  # else the garbage collector would do it

    class IgnoresCancellation:
        def __init__(self, steps: Any) -> None:
            self.send, self.close, self._steps = steps.send, steps.close, steps

        def __next__(self) -> Any:
            return next(self._steps)

        def throw(self, error: BaseException) -> Any:
            if isinstance(error, asyncio.CancelledError):
                kept.append(self._steps)
                raise error
            return self._steps.throw(error)

    def drive(original: Any, steps: Any, *args: Any, **options: Any) -> Any:
        return original(IgnoresCancellation(steps), *args, **options)

    return around("AsyncProducer's module", "drive", drive)


def closed_loop_is_told() -> Changes:
    """An outcome is told to a loop that has been closed."""

    def waker_of(_: Any, loop: Any) -> Callable[[Any], None]:
        def wake(look: Any) -> None:
            loop().call_soon_threadsafe(look)

        return wake

    return around("loops' module", "_waker_of", waker_of)


def abandoned_await_is_told_twice() -> Changes:
    """An await that is abandoned leaves its follower behind; the next one adds another."""

    def quit_(original: Any, followers: Any, waiting: Any) -> None:
        """Leave the follower where it is."""

    return around("Followers", "quit", quit_)


def failure_untold_in_the_loop() -> Changes:
    """A callback that is to run in a loop does not run for a record that has failed."""

    def call(original: Any, callback: Any, metadata: Any, error: Exception | None) -> None:
        if error is None:
            original(callback, metadata, error)

    return around("LoopCallback", "__call__", call)


ALL = (
    cancelled_waiter_keeps_its_memory,
    closed_loop_is_told,
    abandoned_await_is_told_twice,
    failure_untold_in_the_loop,
)
