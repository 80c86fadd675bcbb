# SPDX-License-Identifier: Apache-2.0
"""Numbers and names of files on the command line: each function reads one, or says what is expected."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

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


def file_name(text: str) -> Path:
    """The name of a file; a `/` at its end would be that of a folder."""
    if text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{text!r} is the name of a folder; name a file in it")
    return Path(text)


def why_no_report(path: Path | None) -> str | None:
    """Why a page cannot be written to a file, which a command has to know before its work; None if it can."""
    if path is None:
        return None
    folder = path.absolute().parent
    if path.is_dir():
        return f"{str(path)!r} is a folder; name a file in it"
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r} to write {path.name!r} to"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return f"this user may not write to {str(path)!r}"
    return None


def _try_whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
