# SPDX-License-Identifier: Apache-2.0
"""What both simulators tell the person at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any


def say(text: str) -> None:
    """A line for the person at the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tell_replay(report: Any, summary: str) -> int:
    """Print what happened in one seed; the exit code."""
    say("\n".join(report.trace))
    say(f"\nseed {report.seed}: {summary}")
    for problem in report.problems:
        say(f"  {problem}")
    return 1 if report.problems else 0


def show_failure(seed: int, replay: Callable[[], int], command: str) -> int:
    """Run a seed that failed again, for its trace."""
    say(f"\nseed {seed} again:\n")
    if replay() == 0:
        say("it holds now: what it does depends on something besides the seed, a mistake of the simulator")
    say(f"FAILED: see it again with: {command} SEED={seed}")
    return 1


def chunks(start: int, count: int, size: int) -> Iterator[range]:
    """So many seeds, in ranges of at most `size`."""
    for first in range(start, start + count, size):
        yield range(first, min(first + size, start + count))
