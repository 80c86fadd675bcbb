# SPDX-License-Identifier: Apache-2.0
"""What `penstock demo` tells while it runs: a line for all that happens, and on a terminal what is waited for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from penstock.cli.progress import NoProgress, PlainProgress, Progress


class Event(NamedTuple):
    """Something that happened: seconds since the demo began, and the words for it."""

    at: float
    text: str


@dataclass(frozen=True)
class BatchTime:
    """A micro-batch that is done; times are seconds since the demo began."""

    batch: int
    events: int
    begun: float
    done: float

    @property
    def seconds(self) -> float:
        """How long it took, a restart included."""
        return max(self.done - self.begun, 0.001)

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


class Story:
    """Tells what happens, and keeps it for the report page.

    Args:
        stream: where to; standard error unless told.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._waiting: Progress = PlainProgress(None, self._stream) if self._stream.isatty() else NoProgress()
        self._started = time.time()  # the files of Spark's checkpoint have times of this clock
        self.events: list[Event] = []

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.time() - self._started

    def since_start(self, at: float) -> float:
        """A time of the system's clock as seconds since the demo began."""
        return at - self._started

    def say(self, text: str, at: float | None = None) -> None:
        """Tell what happened, now unless told otherwise (in seconds since the demo began)."""
        event = Event(self.seconds if at is None else at, text)
        self.events.append(event)
        self._waiting.finish()
        print(f"{event.at:6.1f} s  {text}", file=self._stream, flush=True)

    def show(self, lines: Sequence[str]) -> None:
        """Show what somebody else has said."""
        self._waiting.finish()
        for line in lines:
            print(f"    | {line}", file=self._stream, flush=True)

    def wait_for(self, text: str) -> None:
        """Show what is waited for, until something is said."""
        self._waiting.update(0, f"{self.seconds:6.1f} s  {text}")

    def close(self) -> None:
        """Leave nothing on the terminal that is no longer true."""
        self._waiting.finish()
