# SPDX-License-Identifier: Apache-2.0
"""Drives steps by blocking the calling thread: the face that `Producer` shows.

Only waiting counts against the time allowed; serializers, partitioners and interceptors do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from penstock._ticket import Ticket
from penstock._time import Clock
from penstock.producer.batch.appending import PROGRESS, TimeIsUp
from penstock.producer.owner import check_may_wait

R = TypeVar("R")


def run_steps(
    steps: Generator[Ticket[Any] | str, Any, R],
    budget: float,
    clock: Clock,
    call: str,
    on_waited: Callable[[Ticket[Any], float], None] | None = None,
    owner: object = None,
) -> R:
    """Run steps to their end.

    Args:
        steps: what to run.
        budget: seconds that may be spent waiting, in all; steps that say PROGRESS begin anew.
        clock: measures them.
        call: the user's call, for the error when it would have to wait on the I/O thread.
        on_waited: told what was waited for, and for how many seconds.
        owner: whose I/O thread must not wait here.

    Raises:
        Whatever the steps raise; KeyboardInterrupt comes through, after the steps have given back what they held.
    """
    waited = 0.0
    try:
        item = next(steps)
        while True:
            if isinstance(item, str):
                if item is PROGRESS:
                    waited = 0.0
                item = next(steps)
                continue
            started = clock.now()
            try:
                if not item.done:
                    check_may_wait(call, owner)
                ended = item.wait(min(max(0.0, budget - waited), threading.TIMEOUT_MAX))
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
