# SPDX-License-Identifier: Apache-2.0
"""One broker of a cluster: its files and its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.devbroker import settings
from penstock.devbroker.java_process import STOP_TIMEOUT_SECONDS, JavaHome, JavaProcess
from penstock.devbroker.machine import DevBrokerError
from penstock.devbroker.releases.probe import broker_answers


class Node:
    """A broker of a cluster. Made by ``DevCluster``; used from one thread.

    Attributes:
        node_id: Kafka's ``node.id``.
        port: The port for clients, on 127.0.0.1.
        data_dir: The node's folder: configuration, logs, and Kafka's records in ``log_dir``.
        log_path: The broker's log.
        java: Java and the jars of its release; it may be changed while the broker is down.
    """

    def __init__(self, address: settings.NodeAddress, data_dir: Path, java: JavaHome, heap_mb: int) -> None:
        self.address = address
        self.node_id = address.node_id
        self.port = address.port
        self.data_dir = data_dir
        self.log_dir = data_dir / "kafka-logs"
        self.java = java
        self._heap_mb = heap_mb
        self._process = JavaProcess(f"node {self.node_id} ({settings.HOST}:{self.port})", data_dir)
        self.log_path = self._process.log_path

    def __repr__(self) -> str:
        return f"<Node {self.node_id} {settings.HOST}:{self.port} {self._process.state} pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs, else None."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process.running

    @property
    def formatted(self) -> bool:
        """Whether Kafka's storage has been made already."""
        return (self.log_dir / "meta.properties").is_file()

    def configure(self, properties: Mapping[str, str]) -> None:
        """Write the node's configuration files."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._properties_path.write_text(settings.properties_text(properties), encoding="ascii")
        logging = settings.server_logging(self.log_path, log4j_2=self.java.release.has_log4j_2)
        self._logging_path.write_text(logging, encoding="ascii")

    def format_command(self, cluster_id: str, more: Sequence[str] = ()) -> list[str]:
        """Return the command that makes Kafka's storage for this node, with ``more`` arguments."""
        args = ["format", "--cluster-id", cluster_id, "--config", str(self._properties_path), *more]
        logging = self.data_dir.parent / settings.TOOL_LOGGING_FILE
        return self.java.command(
            settings.FORMAT_CLASS, args, jvm=settings.QUICK_JVM, logging=logging, scratch=self._scratch
        )

    def spawn(self, *, group: int | None) -> None:
        """Start the process, in the process group ``group``, or in a session of its own when None."""
        command = self.java.command(
            settings.SERVER_CLASS,
            [str(self._properties_path)],
            jvm=settings.server_jvm(self._heap_mb),
            logging=self._logging_path,
            scratch=self._scratch,
        )
        self._process.spawn(command, group=group)

    def is_ready(self) -> bool:
        """Say whether the broker has started and answers.

        Raises:
            PortTakenError: It ended because its port is in use.
            DevBrokerError: It ended; the message has the end of its log.
        """
        return self.java.release.has_started(self._process.new_log()) and broker_answers(self.port)

    def start_failure(self, what: str) -> DevBrokerError:
        """Return the error that says ``what`` happened to the start, with the end of the log."""
        return self._process.start_failure(what)

    def terminate(self) -> None:
        """Ask the process to stop, without waiting. Does nothing when it is down."""
        self._process.terminate()

    def wait_stopped(self, timeout: float = STOP_TIMEOUT_SECONDS) -> bool:
        """Wait for the process to end, and kill it when it has not after ``timeout``. Return whether it went itself."""
        return self._process.wait_stopped(timeout)

    def release(self) -> None:
        """Let the process go its own way; this object does not know it any more."""
        self._process.release()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it is gone."""
        self._process.kill()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP); its connections stay open, and nothing is read or written there."""
        self._process.pause()

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._process.resume()

    @property
    def _scratch(self) -> Path:
        return self.data_dir / "tmp"

    @property
    def _properties_path(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def _logging_path(self) -> Path:
        return self.data_dir / "logging.properties"
