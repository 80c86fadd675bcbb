# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a call and awaits what they wait for, as `producer.steps.run_steps` blocks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock._loops import Loop, running_loop
from penstock._ticket import Ticket
from penstock._time import Clock
from penstock.producer.steps import Checkpoint, Steps, TimeIsUp

R = TypeVar("R")

_LONG_TURN = 0.005  # seconds after which a call that appends many rows lets other tasks run


class Shield:
    """Keeps cancellations away from a call that must come to its end.

    Args:
        in_steps: the call learns of a cancellation when its wait is over, so that its outcome counts as not told.

    Attributes:
        cancelled: the last cancellation, which is still to be raised.
    """

    def __init__(self, *, in_steps: bool) -> None:
        self.in_steps = in_steps
        self.cancelled: BaseException | None = None

    async def wait(self, loop: Loop, ticket: Ticket[Any], seconds: float) -> bool:
        """Wait for a Ticket; whether it has ended."""
        cancelled = await loop.outlast(ticket, seconds)
        if cancelled is not None:
            if self.in_steps:
                raise cancelled
            self.cancelled = cancelled
        return ticket.done


async def drive(
    steps: Steps[R],
    budget: float,
    clock: Clock,
    on_waited: Callable[[Ticket[Any], float], None] | None = None,
    shield: Shield | None = None,
) -> R:
    """Run steps to their end.

    Args:
        steps: what to run.
        budget: seconds that may be spent waiting, in all; after Checkpoint.PROGRESS all of them again.
        clock: measures the seconds.
        on_waited: called after each wait with the Ticket and the seconds.
        shield: keeps cancellations away.

    Raises:
        Whatever the steps raise; a cancellation comes through, after the steps have given back what they held.
    """
    waited = 0.0
    loop = running_loop()
    turn_began = clock.now()
    try:
        item = next(steps)
        while True:
            started = clock.now()
            try:
                if isinstance(item, Checkpoint):
                    result: Any = None
                    if item is Checkpoint.PROGRESS:
                        waited = 0.0
                        if started - turn_began > _LONG_TURN:
                            await loop.turn()
                            turn_began = clock.now()
                else:
                    seconds = max(0.0, budget - waited)
                    if shield is not None:
                        ended = await shield.wait(loop, item, seconds)
                    else:
                        # If the loop ends in the middle, this code does not run on: what was granted is given back.
                        ended = await loop.wait_for(item, seconds, steps.close)
                    turn_began = clock.now()
                    spent = turn_began - started
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
