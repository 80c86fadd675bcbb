# SPDX-License-Identifier: Apache-2.0
"""The pipeline of `penstock demo` as a process of its own, and what can be seen of it from outside.

How far it has come is read from Spark's checkpoint: a micro-batch has begun when its file is in `offsets`, and is
done when its file is in `commits`. That holds whatever becomes of the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.1  # between two looks at the checkpoint
_FOLLOW_SECONDS = 10.0  # that Java and its Python processes have to follow the pipeline
_PR_SET_PDEATHSIG = 1
_MARK_VARIABLE = "PENSTOCK_DEMO_DRIVER"


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
    """A process that runs the pipeline. At the end of the `with` block it has gone, and so has all that it started.

    Args:
        command: the command line.
        environment: variables beyond those of this process.
        folder: where it runs, and has its temporary files: what is killed cannot tidy up.
        log: where its output goes, behind what is there already.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        # Spark's processes are of several sessions and groups, and lose their parents when these are killed. But all
        # of them inherit the environment, so they are known by this.
        self._mark = f"{_MARK_VARIABLE}={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self._mark.partition("=")
        self._log = log.open("ab")
        self._process = subprocess.Popen(  # noqa: S603 -- our own command line
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **_temporary_files_in(folder), **environment, name: value},
            # A session of its own: Ctrl-C at the terminal reaches the demo alone, which then ends all of this.
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 -- the demo has one thread
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Its process id."""
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
            # After a good end the rest is about to go, too; else nothing is worth waiting for.
            patience = time.monotonic() + (_FOLLOW_SECONDS if self._process.poll() == 0 else 0)
            self._process.kill()
            self._process.wait()
            while left := _pids_with(self._mark):
                if time.monotonic() >= patience:
                    for pid in left:
                        _kill(pid)
                time.sleep(LOOK_SECONDS / 2)
        finally:
            self._log.close()


def _die_with_parent() -> None:
    """Let the system kill this process when its parent is killed, where it can; Java ends when its Python has."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # not Linux: then the pipeline goes on until it finds that there is no Kafka any more


def _temporary_files_in(folder: Path) -> dict[str, str]:
    """Variables that make Python, Java and Spark keep their temporary files there."""
    return {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={folder} -XX:-UsePerfData",
    }


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has gone by itself


def _pids_with(mark: str) -> set[int]:
    """The living processes with this setting in their environment; none where the system does not tell."""
    wanted = mark.encode("ascii")
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found
