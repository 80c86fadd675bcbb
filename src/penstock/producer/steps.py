# SPDX-License-Identifier: Apache-2.0
"""Steps: work that may have to wait, as a generator. `run_steps` runs it and blocks the calling thread.

A step yields a Ticket to wait for, or a Checkpoint. The code that runs the steps decides how to wait. Only waiting
counts against the time allowed. Serializers, partitioners and interceptors do not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Any, TypeVar

from penstock._ticket import Ticket
from penstock._time import Clock

R = TypeVar("R")


class Checkpoint(StrEnum):
    """A place in the steps that is not a wait. Tests and the simulator let other threads run there."""

    METADATA = "metadata"  # the topic is not known: its metadata will be requested
    MEMORY = "memory"  # no open batch has room: memory for a new one will be requested
    SECOND_LOOK = "second look"  # the memory is there: the open batch is tried again
    PROGRESS = "progress"  # something was accepted: the time allowed for waiting starts again


Steps = Generator[Ticket[Any] | Checkpoint, Any, R]


class TimeIsUp(Exception):
    """Thrown into waiting steps when the time allowed for waiting is used up."""

    def __init__(self, waited_ms: int) -> None:
        super().__init__(f"{waited_ms} ms")
        self.waited_ms = waited_ms


def run_steps(
    steps: Steps[R],
    budget: float,
    clock: Clock,
    before_wait: Callable[[], None] | None = None,
    on_waited: Callable[[Ticket[Any], float], None] | None = None,
) -> R:
    """Run steps to their end.

    Args:
        steps: what to run.
        budget: seconds that may be spent waiting, in all; after Checkpoint.PROGRESS all of them again.
        clock: measures the seconds.
        before_wait: called before each wait; raises where the calling thread must not wait.
        on_waited: called after each wait with the Ticket and the seconds.

    Raises:
        Whatever the steps raise; KeyboardInterrupt comes through, after the steps have given back what they held.
    """
    waited = 0.0
    try:
        item = next(steps)
        while True:
            if isinstance(item, Checkpoint):
                if item is Checkpoint.PROGRESS:
                    waited = 0.0
                item = next(steps)
                continue
            started = clock.now()
            try:
                if before_wait is not None and not item.done:
                    before_wait()
                ended = item.wait(max(0.0, budget - waited))
                spent = clock.now() - started
                waited += spent
                if on_waited is not None:
                    on_waited(item, spent)
                if not ended:
                    raise TimeIsUp(round(waited * 1000))
                result = item.result
            except BaseException as error:  # noqa: BLE001 - the steps give back what they hold, and raise it again
                item = steps.throw(error)
            else:
                item = steps.send(result)
    except StopIteration as stop:
        result_of_steps: R = stop.value
        return result_of_steps
