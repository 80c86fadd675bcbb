# SPDX-License-Identifier: Apache-2.0
"""How far a command has come, on a terminal: a bar where rich is installed, else one line that is rewritten.

Where standard error is no terminal nothing is drawn: a log file has no use for it.
"""

from __future__ import annotations

import shutil
import sys
from typing import Protocol, TextIO

INTERVAL = 0.1  # seconds between two updates: short enough to look steady, and cheap enough beside the work


class Progress(Protocol):
    """A display of work that goes on."""

    def update(self, done: int, text: str) -> None:
        """Show that `done` of the total is reached, and a few words."""
        ...

    def finish(self) -> None:
        """Take the display away, so that what is printed next stands alone. May be called twice."""
        ...


def open_progress(total: int | None, stream: TextIO | None = None, *, wanted: bool = True) -> Progress:
    """The best display for the stream (standard error unless told); `total` is None where the end is not known."""
    target = sys.stderr if stream is None else stream
    if not wanted or not target.isatty():
        return NoProgress()
    try:
        return RichProgress(total, target)
    except ImportError:
        return PlainProgress(total, target)


class NoProgress:
    """A Progress that shows nothing."""

    def update(self, done: int, text: str) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""


class PlainProgress:
    """One line, rewritten in place."""

    def __init__(self, total: int | None, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._shown = 0  # width of what stands on the line now

    def update(self, done: int, text: str) -> None:
        """Write the line again, over the one before."""
        if self._total:
            text = f"{min(100, 100 * done // self._total):3d} %  {text}"
        # A line that wraps could not be rewritten.
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text.ljust(self._shown))
        self._stream.flush()
        self._shown = len(text)

    def finish(self) -> None:
        """Overwrite the line with blanks."""
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
            self._shown = 0


class RichProgress:
    """A bar, drawn by rich.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, total: int | None, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            BarColumn(bar_width=16),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(file=stream),
            transient=True,
        )
        self._task = self._bars.add_task("", total=total)
        self._bars.start()

    def update(self, done: int, text: str) -> None:
        """Move the bar to `done`."""
        from rich.markup import escape

        self._bars.update(self._task, completed=done, description=escape(text))

    def finish(self) -> None:
        """Remove the bar."""
        self._bars.stop()
