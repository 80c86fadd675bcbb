# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine that were noted in a file: whether one still runs, and is not another one with its id."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"

ENDED_STATES = ("Z", "X", "x")


@dataclass(frozen=True)
class ProcessRef:
    """A process: its id, and a text that tells when it started.

    An id alone is recycled; together with the start it identifies one process.
    """

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return try_read_start(self.pid) == self.started

    def send(self, signal_number: signal.Signals) -> bool:
        """Send a signal if this very process still runs. Return whether it was sent."""
        if not hasattr(os, "pidfd_open"):
            return self._send_by_id(signal_number)
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:
            # The kernel is older than the call.
            return self._send_by_id(signal_number)
        try:
            # The handle is held before the check, so the process cannot be replaced between check and signal.
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, signal_number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def _send_by_id(self, signal_number: signal.Signals) -> bool:
        if not self.alive:
            return False
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        return True


def try_reference(pid: int) -> ProcessRef | None:
    """Return a reference to the process that has ``pid`` now, or None when there is none."""
    started = try_read_start(pid)
    return None if started is None else ProcessRef(pid, started)


def try_read_start(pid: int) -> str | None:
    """Return a text that tells when process ``pid`` started; None when it does not run (a zombie does not).

    A process that this user may not look at counts as none: it is another user's.

    Raises:
        OSError: it cannot be told here.
    """
    if _BOOT_ID.exists():
        try:
            stat = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
            found = parse_proc_stat(stat, _BOOT_ID.read_text(encoding="ascii").strip())
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            return None
        return None if found.state in ENDED_STATES else found.started
    # One -o for each: where POSIX is taken at its word, all behind the first = would be a heading.
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    # In one time zone and language: the start is compared by processes that may have others.
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        listed = subprocess.run(  # noqa: S603 - a fixed command, and a number
            command, capture_output=True, text=True, check=False, timeout=10, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(
            f"ps did not tell within {error.timeout:.0f} s when process {pid} started"
        ) from error
    state, _, started = listed.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


class ProcStat(NamedTuple):
    """What ``/proc/<pid>/stat`` tells of a process.

    Attributes:
        command: The program's name.
        state: One letter; see `ENDED_STATES`.
        parent: The id of the process that started it.
        threads: How many it has.
        started: When it started. That counts from the machine's boot, hence the boot's id is in it.
    """

    command: str
    state: str
    parent: int
    threads: int
    started: str


def parse_proc_stat(stat: str, boot_id: str) -> ProcStat:
    """Return what a line of ``/proc/<pid>/stat`` tells.

    The second field is the program's name in parentheses and may hold spaces and parentheses itself, so
    fields are counted from the last closing one.
    """
    before, _, after = stat.rpartition(")")
    fields = after.split()
    command = before.partition("(")[2]
    return ProcStat(command, fields[0], int(fields[1]), int(fields[17]), f"{boot_id}:{fields[19]}")
