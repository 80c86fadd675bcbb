# SPDX-License-Identifier: Apache-2.0
"""A Java process of a cluster, a broker or ZooKeeper: its command, its life, its signals and its log."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.devbroker import settings
from penstock.devbroker.machine import DevBrokerError, with_tail
from penstock.devbroker.releases.release import NEWEST, Release

STOP_TIMEOUT_SECONDS = 15.0
_PORT_TAKEN = ("Address already in use", "java.net.BindException")


class PortTakenError(DevBrokerError):
    """A process did not start because another one has its port."""


@dataclass(frozen=True)
class JavaHome:
    """What it takes to run a class of Kafka: Java, the jars of a release, and options of the user's own."""

    java: Path
    jars: Path
    options: tuple[str, ...] = ()
    release: Release = NEWEST

    def command(
        self, class_name: str, args: Sequence[str], *, jvm: Sequence[str], logging: Path, scratch: Path
    ) -> list[str]:
        """Return the command line that runs a class; see ``settings.java_command``."""
        jvm = (*jvm, *self.options)
        return settings.java_command(
            self.java, self.jars, class_name, args, jvm=jvm, logging=logging, scratch=scratch
        )


class JavaProcess:
    """A process that may be started, signalled and ended many times. Used from one thread.

    Args:
        title: What it is, for errors, such as ``node 1 (127.0.0.1:9092)``.
        folder: Where it runs and keeps its files.
    """

    def __init__(self, title: str, folder: Path) -> None:
        self.title = title
        self.folder = folder
        self.log_path = folder / "server.log"
        self.console_path = folder / "console.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self._paused = False

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def state(self) -> str:
        return "down" if not self.running else "paused" if self._paused else "running"

    def spawn(self, command: Sequence[str], *, group: int | None) -> None:
        """Start it, in the process group ``group``, or in a session of its own when None."""
        if self.running:
            raise DevBrokerError(f"{self.title} runs already (pid {self.pid})")
        self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._paused = False
        with open(self.console_path, "wb") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=group is None,
                process_group=group,
            )

    def new_log(self) -> str:
        """Return what the log has gained since the process was spawned.

        Raises:
            PortTakenError: It ended because its port is in use.
            DevBrokerError: It ended; the message has the end of its log.
        """
        if not self.running:
            raise self.start_failure("ended while starting")
        return self._read_log()

    def start_failure(self, what: str) -> DevBrokerError:
        """Return the error that says ``what`` happened to the start, with the end of the log."""
        console = (
            self.console_path.read_text(encoding="utf-8", errors="replace")
            if self.console_path.exists()
            else ""
        )
        text = self._read_log() + console
        message = with_tail(f"{self.title} {what}", text.splitlines())
        taken = any(mark in text for mark in _PORT_TAKEN)
        return PortTakenError(message) if taken else DevBrokerError(message)

    def terminate(self) -> None:
        """Ask the process to stop, without waiting. Does nothing when it is down."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            # A paused process takes the signal only once it runs again.
            self._process.send_signal(signal.SIGCONT)

    def wait_stopped(self, timeout: float = STOP_TIMEOUT_SECONDS) -> bool:
        """Wait for the process to end, and kill it when it has not after ``timeout``. Return whether it went itself."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def release(self) -> None:
        """Let the process go its own way; this object does not know it any more."""
        if self._process is not None:
            # Popen warns about a child that is left running, unless it has recorded the exit of the child.
            self._process.returncode = 0
            self._process = None

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP); its connections stay open, and nothing is read or written there."""
        self._require_running().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._require_running().send_signal(signal.SIGCONT)
        self._paused = False

    def _require_running(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise DevBrokerError(f"{self.title} does not run")
        return self._process

    def _read_log(self) -> str:
        try:
            with open(self.log_path, "rb") as log:
                # Smaller than before: the log was rolled, so all of it is new.
                log.seek(self._log_offset if os.fstat(log.fileno()).st_size >= self._log_offset else 0)
                return log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
