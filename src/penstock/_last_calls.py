# SPDX-License-Identifier: Apache-2.0
"""Calls that end objects of the application: each is made once, whatever Ctrl-C interrupts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple


class LastCall(NamedTuple):
    """One of them.

    Attributes:
        call: code of the application.
        on_error: called with what it has raised.
    """

    call: Callable[[], object]
    on_error: Callable[[Exception], object]


class LastCalls:
    """Makes the calls, one after another. One thread at a time.

    The interpreter raises Ctrl-C after a call, and where a function of Python begins. So no call may stand between the
    line that counts one as made and the call itself.

    Args:
        calls: in order.

    Attributes:
        left: how many were not made yet.
    """

    def __init__(self, calls: Sequence[LastCall]) -> None:
        self._calls = tuple(calls)
        self.left = len(self._calls)

    def make(self) -> None:
        """Make those that are left, also where Ctrl-C comes in one. Where it comes elsewhere, some may be left."""
        with ExitStack() as stack:
            for _ in range(self.left):
                stack.callback(self._make_next)

    def _make_next(self) -> None:
        call, on_error = self._calls[-self.left]
        try:
            self.left -= 1
            call()
        except Exception as error:  # noqa: BLE001 - it is logged
            on_error(error)
