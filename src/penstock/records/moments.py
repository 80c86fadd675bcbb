# SPDX-License-Identifier: Apache-2.0
"""A moment of a table as people read it: what the table has, not what became of it."""

from __future__ import annotations

import datetime
from typing import Final

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NANOSECONDS: Final = {"days": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def moment_text(number: int, unit: str) -> str:
    """A number of units since the epoch, with the date where the calendar has one.

    Args:
        number: how many.
        unit: days, s, ms, us or ns.
    """
    given = f"{number} {unit} since 1970"
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=number * _NANOSECONDS[unit] // 1000)
    except OverflowError:
        return given
    return f"{moment.isoformat().removesuffix('+00:00')}Z ({given})"
