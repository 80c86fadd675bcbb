# SPDX-License-Identifier: Apache-2.0
"""What a tree of processes has cost so far: a Spark application is a Python driver, a JVM, and Python workers."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One line of the account.

    Attributes:
        cpu_seconds: user and system time, its own and that of children that ended and were waited for.
    """

    pid: int
    parent: int
    cpu_seconds: float


def tree(root: int) -> list[Process]:
    """A process and everything below it. Who has ended is left out: its time is its parent's, who waited for it."""
    children: dict[int, list[Process]] = defaultdict(list)
    found: list[Process] = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (one := _try_read(folder)) is not None:
            children[one.parent].append(one)
            if one.pid == root:
                found.append(one)
    for one in found:  # grows while the loop runs over it
        found.extend(children[one.pid])
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of a whole tree, so far."""
    return sum(one.cpu_seconds for one in tree(root))


def python_workers_peak(root: int) -> int:
    """The most memory that any Python process below `root` ever had, in bytes; 0 when there is none.

    They live on between the jobs of a session, so a look after each job finds them all.
    """
    peaks = [_peak_rss(one.pid) for one in tree(root) if one.pid != root and _is_python(one.pid)]
    return max(peaks, default=0)


def _try_read(folder: Path) -> Process | None:
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in the second field may hold spaces and brackets.
    fields = text.rpartition(")")[2].split()
    return Process(int(folder.name), int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)


def _is_python(pid: int) -> bool:
    try:
        program = (_PROC / str(pid) / "cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False
    return program.rpartition(b"/")[2].startswith(b"python")


def _peak_rss(pid: int) -> int:
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
