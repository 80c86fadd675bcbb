# SPDX-License-Identifier: Apache-2.0
"""The pipeline of `penstock demo` as a process of its own, and what can be seen of it from outside.

How far it has come is read from Spark's checkpoint: a micro-batch has begun when its file is in `offsets`, and is
done when its file is in `commits`. That holds whatever becomes of the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.1  # between two looks at the checkpoint
_DAEMONS_SECONDS = 5.0  # that Spark's Python processes have to notice that Java has gone


class Checkpoint:
    """The files of a streaming query's checkpoint, as they appear."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begun(self) -> dict[int, float]:
        """The micro-batches that have begun, and when."""
        return self._files("offsets")

    def done(self) -> dict[int, float]:
        """The micro-batches that are done, and when."""
        return self._files("commits")

    def _files(self, name: str) -> dict[int, float]:
        found = {}
        try:
            for entry in os.scandir(self._folder / name):
                # Others are checksums, and files that are being written.
                if entry.name.isdecimal():
                    found[int(entry.name)] = entry.stat().st_mtime
        except FileNotFoundError:
            pass  # not made yet; or a file was renamed between listing and looking, and is seen at the next look
        return dict(sorted(found.items()))


class DriverProcess:
    """A process that runs the pipeline, all that it starts in one session. At the end of the `with` block all is gone.

    Args:
        command: the command line.
        environment: variables beyond those of this process.
        log: where its output goes, behind what is there already.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(  # noqa: S603 -- our own command line
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            # A session of its own: Ctrl-C at the terminal reaches the demo alone, which then ends all of this.
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session."""
        return self._process.pid

    def try_wait(self, seconds: float) -> int | None:
        """Wait for a while; the exit code, or None when it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill what is left of it, and wait until all of it has gone."""
        try:
            _kill_group(self.pid)  # the pipeline and Java
            self._process.wait()
            self._wait_for_daemons()
        finally:
            self._log.close()

    def _wait_for_daemons(self) -> None:
        """Wait for Spark's Python daemons: they have groups of their own, and end when Java has."""
        patience = time.monotonic() + _DAEMONS_SECONDS
        while left := _pids_of_session(self.pid):
            if time.monotonic() > patience:
                for pid in left:
                    _kill(pid)
            time.sleep(LOOK_SECONDS)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has gone; some systems say that they do not permit it where only zombies are left


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has gone by itself


def _pids_of_session(session: int) -> set[int]:
    """The living processes of a session; none where the system does not list them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found
