# SPDX-License-Identifier: Apache-2.0
"""Until when nothing is due, in one number that costs no call to read. Compiled if possible."""

from __future__ import annotations

import math

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class QuietTime:
    """The time before which its owner need not be asked for anything, unless something happens first.

    Whatever happens takes it back, with `end`. It may be read without a lock: such a reader was merely a little early,
    or is woken and asks again.

    Attributes:
        until: monotonic seconds.
    """

    def __init__(self) -> None:
        self.until = -math.inf

    def end(self) -> None:
        """End the quiet time, because something has happened: its owner must be asked again."""
        self.until = -math.inf
