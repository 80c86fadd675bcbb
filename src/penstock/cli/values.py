# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line: each function reads one, or says what is expected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

_LAST_PORT = 65535


def at_least(least: int) -> Callable[[str], int]:
    """A reader of whole numbers.

    Args:
        least: the smallest one that is allowed.
    """

    def read(text: str) -> int:
        number = _try_whole(text)
        if number is None or number < least:
            raise argparse.ArgumentTypeError(f"it must be a whole number, at least {least}, not {text!r}")
        return number

    return read


def port(text: str) -> int:
    """The number of a port."""
    number = _try_whole(text)
    if number is None or not 1 <= number <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"it must be a port, 1 to {_LAST_PORT}, not {text!r}")
    return number


def rate(text: str) -> float:
    """A number of things a second."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"it must be a number, such as 1000 or 0.5, not {text!r}")
    return number


def _try_whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
