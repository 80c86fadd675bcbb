# SPDX-License-Identifier: Apache-2.0
"""Progress of a download: one line that updates itself on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

# A pipe or a CI log keeps every line, so there a line is due only this often.
_PLAIN_INTERVAL = 5.0
_TERMINAL_INTERVAL = 0.1


def progress_text(title: str, *, jars: int, megabytes: float, seconds: float, note: str = "") -> str:
    """Return what a progress line says, e.g. ``Fetching Kafka: 12 jars, 8.3 MB, 10 s``."""
    parts = [f"{jars} jar{'' if jars == 1 else 's'}", f"{megabytes:.1f} MB", f"{seconds:.0f} s"]
    if note:
        parts.append(note)
    return f"{title}: {', '.join(parts)}"


class ProgressLine:
    """Writes progress to a stream, no more often than a reader can use.

    Args:
        stream: Where to write; standard error when None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._next_due: float | None = None
        self._width = 0

    def update(self, text: str, now: float) -> None:
        """Show ``text`` unless something was shown a moment before ``now``."""
        if self._next_due is not None and now < self._next_due:
            return
        self._next_due = now + (_TERMINAL_INTERVAL if self._is_terminal else _PLAIN_INTERVAL)
        if self._is_terminal:
            self._rewrite(text)
        else:
            self._write(text + "\n")

    def finish(self, text: str) -> None:
        """Show ``text`` in any case, and end the line."""
        if self._is_terminal:
            self._rewrite(text)
            self._write("\n")
            self._width = 0
        else:
            self._write(text + "\n")

    def _rewrite(self, text: str) -> None:
        padding = " " * max(0, self._width - len(text))
        self._write(f"\r{text}{padding}")
        self._width = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
