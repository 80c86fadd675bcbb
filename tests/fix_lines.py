# SPDX-License-Identifier: Apache-2.0
"""Something that happens before a chosen line, as a finalizer or a signal handler may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class BeforeLine:
    """While it is entered, the action runs on this thread before one line of a function, or of what that calls.

    Args:
        number: of the line, as they are run, from 0.
        function: the name of the function, and of its caller.
        action: runs at most once.
    """

    def __init__(self, number: int, function: tuple[str, str], action: Callable[[], object]) -> None:
        self._left = number
        self._function = function
        self._action = action
        self._before: Any = None
        self.reached = False

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.reached or not self._is_below(frame):
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.reached = True
                self._action()
                return None
        return self._trace

    def _is_below(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_back is not None:
            if (frame.f_code.co_name, frame.f_back.f_code.co_name) == self._function:
                return True
            frame = frame.f_back
        return False
