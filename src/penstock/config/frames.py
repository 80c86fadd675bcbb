# SPDX-License-Identifier: Apache-2.0
"""Keeps secrets that were read from files out of tracebacks.

Tools that report errors show the local variables of every frame of a traceback. Those of the code that reads options
hold passwords in the clear. So where a ConfigError leaves that code, the frames inside are dropped: its text says all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def without_inner_frames(call: Callable[P, R]) -> Callable[P, R]:
    """Let every ConfigError of a function look as if it was raised where the function is called."""

    @wraps(call)
    def called(*args: P.args, **named: P.kwargs) -> R:
        handled = sys.exc_info()[1]  # what the caller is busy with is none of ours
        try:
            return call(*args, **named)
        except ConfigError as error:
            wrong = error
        _drop_frames(wrong, handled)
        try:
            raise wrong
        finally:
            del wrong  # its traceback has this frame

    return called


def _drop_frames(error: BaseException, handled: BaseException | None) -> None:
    left = [error]
    seen = {id(handled)}
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [behind for behind in (each.__cause__, each.__context__) if behind is not None]
