# SPDX-License-Identifier: Apache-2.0
"""What follows the result of a batch: the callback of a record, the notice for an event loop, and what flush waits for.

Callbacks run on the I/O thread. One that is added after the record is done runs at once, on the thread that adds it.
A user's function that was added in an event loop runs in that loop: `_done_callbacks` passes it on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock._done_callbacks import DoneCallback
from penstock._events import Event, tell_error
from penstock._ticket import Countdown
from penstock.producer.owner import on_io_thread

log = logging.getLogger("penstock.producer")


class LoopNotice:
    """Notifies the tasks of an event loop that a result is done or was split.

    Args:
        waiting: the tasks that wait, with the mailbox of their loop.
    """

    __slots__ = ("waiting",)

    def __init__(self, waiting: Any) -> None:
        self.waiting = waiting

    def __call__(self, whole: Any) -> None:
        if whole.result.owner is None:
            self.waiting.happened()
        else:
            whole.result.owner.post(self.waiting.mailbox, self.waiting)


class RecordCallback:
    """A function that is called when one record is done.

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
    """All records of a result, as if they were one Delivery. A flush and an event loop wait for all of them.

    Args:
        result: the BatchResult.
    """

    __slots__ = ("result",)
    _index = -1  # in place of the index of a record

    def __init__(self, result: Any) -> None:
        self.result = result

    def _answered_by(self) -> Any:
        return self.result

    def after(self, callback: Callable[[], None]) -> None:
        """Call back when the result, and all pieces into which it was split, are done."""
        pieces = self.result.pieces
        if not pieces:
            callback()
            return
        countdown = Countdown(len(pieces), callback)
        for _, piece in pieces:
            piece.when_settled(countdown.one_less)
