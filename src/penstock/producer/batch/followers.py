# SPDX-License-Identifier: Apache-2.0
"""Who is told that a record, or a whole batch, is done: see `BatchResult.add_follower`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock._done_callbacks import DoneCallback
from penstock.producer.owner import on_io_thread

log = logging.getLogger("penstock.producer")


class Teller:
    """Tells a loop, on the I/O thread, that a result is done."""

    __slots__ = ("waiting",)

    def __init__(self, waiting: Any) -> None:
        self.waiting = waiting

    def __call__(self, whole: Any) -> None:
        if whole.result.owner is None:
            self.waiting.happened()
        else:
            whole.result.owner.post(self.waiting.mailbox, self.waiting)


class Follower:
    """A callback that is to be called when a record is done."""

    __slots__ = ("callback", "delivery")

    def __init__(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        self.delivery = delivery
        self.callback = callback

    def is_for(self, delivery: Any, fn: object) -> bool:
        """Whether it is a done callback of a record, and calls this function."""
        return (
            self.delivery is delivery and isinstance(self.callback, DoneCallback) and self.callback.fn == fn
        )

    def call(self) -> None:
        try:
            self.callback(self.delivery)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not on_io_thread():
                raise  # the record was done already: this is the thread that added the callback
            log.exception("a done callback of a delivery raised")
