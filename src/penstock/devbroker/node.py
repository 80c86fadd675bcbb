# SPDX-License-Identifier: Apache-2.0
"""One broker process: its files, its life and its signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.devbroker import settings
from penstock.devbroker.machine import DevBrokerError, broker_answers, with_tail

STOP_TIMEOUT_SECONDS = 15.0
_STARTED = "Kafka Server started"
_PORT_TAKEN = ("Address already in use", "java.net.BindException")


class PortTakenError(DevBrokerError):
    """A broker did not start because another process has its port."""


@dataclass(frozen=True)
class JavaHome:
    """What it takes to run a class of Kafka: Java, the jars, and options of the user's own."""

    java: Path
    jars: Path
    options: tuple[str, ...] = ()


class Node:
    """A broker of a cluster. Made by ``DevCluster``; used from one thread.

    Attributes:
        node_id: Kafka's ``node.id``.
        port: The port for clients, on 127.0.0.1.
        data_dir: The node's folder: configuration, logs, and Kafka's records in ``log_dir``.
        log_path: The broker's log.
    """

    def __init__(self, address: settings.NodeAddress, data_dir: Path, java: JavaHome, heap_mb: int) -> None:
        self.address = address
        self.node_id = address.node_id
        self.port = address.port
        self.data_dir = data_dir
        self.log_dir = data_dir / "kafka-logs"
        self.log_path = data_dir / "server.log"
        self.console_path = data_dir / "console.log"
        self._java = java
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self._paused = False

    def __repr__(self) -> str:
        state = "down" if not self.running else "paused" if self._paused else "running"
        return f"<Node {self.node_id} {settings.HOST}:{self.port} {state} pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs, else None."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def formatted(self) -> bool:
        """Whether Kafka's storage has been made already."""
        return (self.log_dir / "meta.properties").is_file()

    def configure(self, properties: Mapping[str, str]) -> None:
        """Write the node's configuration files."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._properties_path.write_text(settings.properties_text(properties), encoding="ascii")
        self._logging_path.write_text(settings.server_logging(self.log_path), encoding="ascii")

    def format_command(self, cluster_id: str, more: Sequence[str] = ()) -> list[str]:
        """Return the command that makes Kafka's storage for this node, with ``more`` arguments."""
        args = ["format", "--cluster-id", cluster_id, "--config", str(self._properties_path), *more]
        return self._command(settings.FORMAT_CLASS, args, settings.QUICK_JVM)

    def spawn(self, *, group: int | None) -> None:
        """Start the process, in the process group ``group``, or in a session of its own when None."""
        if self.running:
            raise DevBrokerError(f"node {self.node_id} runs already (pid {self.pid})")
        self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._paused = False
        command = self._command(
            settings.SERVER_CLASS, [str(self._properties_path)], settings.server_jvm(self._heap_mb)
        )
        with open(self.console_path, "wb") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                start_new_session=group is None,
                process_group=group,
            )

    def is_ready(self) -> bool:
        """Say whether the broker has started and answers.

        Raises:
            PortTakenError: It ended because its port is in use.
            DevBrokerError: It ended; the message has the end of its log.
        """
        if not self.running:
            raise self.start_failure("ended while starting")
        return _STARTED in self._new_log() and broker_answers(self.port)

    def start_failure(self, what: str) -> DevBrokerError:
        """Return the error that says ``what`` happened to the start, with the end of the log."""
        console = (
            self.console_path.read_text(encoding="utf-8", errors="replace")
            if self.console_path.exists()
            else ""
        )
        text = self._new_log() + console
        message = with_tail(f"node {self.node_id} ({settings.HOST}:{self.port}) {what}", text.splitlines())
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
            # Popen warns about a child that is left running, unless it believes to have seen the end of it.
            self._process.returncode = 0
            self._process = None

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop the process in its tracks (SIGSTOP); its connections stay open and silent."""
        self._require_running().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._require_running().send_signal(signal.SIGCONT)
        self._paused = False

    def _require_running(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise DevBrokerError(f"node {self.node_id} does not run")
        return self._process

    def _command(self, class_name: str, args: list[str], jvm: tuple[str, ...]) -> list[str]:
        is_server = class_name == settings.SERVER_CLASS
        logging = self._logging_path if is_server else self.data_dir.parent / settings.TOOL_LOGGING_FILE
        return settings.java_command(
            self._java.java,
            self._java.jars,
            class_name,
            args,
            jvm=(*jvm, *self._java.options),
            logging=logging,
            scratch=self._scratch,
        )

    def _new_log(self) -> str:
        """Return what the log has gained since the process was spawned."""
        try:
            with open(self.log_path, "rb") as log:
                # Smaller than before: the log was rolled, so all of it is new.
                log.seek(self._log_offset if os.fstat(log.fileno()).st_size >= self._log_offset else 0)
                return log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    @property
    def _scratch(self) -> Path:
        return self.data_dir / "tmp"

    @property
    def _properties_path(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def _logging_path(self) -> Path:
        return self.data_dir / "log4j2.properties"
