# SPDX-License-Identifier: Apache-2.0
"""Starts, kills and stops the producer processes of a run. They end with this process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from chaos.worker import WorkerPlan

_TESTS = Path(__file__).resolve().parent.parent
_STOP_SECONDS = 200.0


class WorkerFailed(Exception):
    """A producer process ended by itself, or not at all."""


class WorkerProcess:
    """One producer process, and those that took its place after it was killed."""

    def __init__(self, plan: WorkerPlan, folder: Path) -> None:
        self.plan = plan
        self.kills = 0
        self._errors = folder / f"{plan.name}.err"
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
        with open(self._errors, "ab") as errors:
            # It watches the pipe: when this process is gone, the pipe closes, and it leaves.
            return subprocess.Popen(
                [sys.executable, "-m", "chaos.worker", self.plan.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
            )

    def signal_kill(self) -> None:
        """SIGKILL, without waiting: may be called from an armed action."""
        os.kill(self._process.pid, signal.SIGKILL)

    def replace(self) -> None:
        """After `signal_kill`: see it off, and start another with the same plan."""
        self._process.wait(60)
        self._close_pipe()
        self.kills += 1
        self._process = self._start()

    def check(self) -> None:
        """Raise when it has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise WorkerFailed(f"{self.plan.name} ended with {code}: {self.complaints()[-2000:]}")

    def begin_stop(self) -> None:
        """Ask it to settle and leave.

        Raises:
            WorkerFailed: it has left before.
        """
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(b"stop\n")
        self._process.stdin.flush()

    def end_stop(self) -> None:
        """Wait until it has left.

        Raises:
            WorkerFailed: it did not, or with an error.
        """
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(f"{self.plan.name} did not settle within {_STOP_SECONDS:.0f} s") from None
        if code != 0:
            raise WorkerFailed(f"{self.plan.name} ended with {code}: {self.complaints()[-2000:]}")

    def end(self) -> None:
        """Make sure that it is gone."""
        self._process.kill()
        self._process.wait()
        self._close_pipe()

    def complaints(self) -> str:
        """What it wrote to standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it was killed with a line unread
