# SPDX-License-Identifier: Apache-2.0
"""The processes of a Spark job: the Java process above a Python one, and all of a session, so that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark.faults.rules import wait_until

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessRow:
    """A line of the process table."""

    pid: int
    name: str
    state: str
    parent: int
    session: int


def try_row(pid: int) -> ProcessRow | None:
    """The process, or None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may hold anything.
    head, _, tail = text.rpartition(")")
    state, parent, _group, session = tail.split()[:4]
    return ProcessRow(pid, head.partition("(")[2], state, int(parent), int(session))


def java_above(pid: int) -> int:
    """The nearest Java process among the ancestors.

    Raises:
        LookupError: there is none.
    """
    row = try_row(pid)
    while row is not None and row.parent > 0:
        row = try_row(row.parent)
        if row is not None and row.name == "java":
            return row.pid
    raise LookupError(f"no Java process above {pid}")


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and was not waited for does not."""
    row = try_row(pid)
    return row is not None and row.state not in "ZX"


def of_session(session: int) -> Iterator[ProcessRow]:
    """All processes of a session that run."""
    for path in _PROC.iterdir():
        row = try_row(int(path.name)) if path.name.isdecimal() else None
        if row is not None and row.session == session and row.state not in "ZX":
            yield row


def kill_session(session: int) -> None:
    """End whatever is left of a session that was started here, stopped processes as well."""

    def killed() -> bool:
        rows = list(of_session(session))
        for row in rows:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row.pid, signal.SIGKILL)
        return not rows

    wait_until(killed, f"the processes of session {session} to end", 30)
