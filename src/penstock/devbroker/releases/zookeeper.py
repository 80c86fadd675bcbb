# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper that the brokers of a release before 3.3 need: one server, beside them, from the same jars."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from penstock.devbroker import settings
from penstock.devbroker.java_process import JavaHome, JavaProcess

_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
# Sessions last for at least two ticks.
_TICK_MS = 1000


class ZooKeeper:
    """A ZooKeeper server of a cluster. Made by ``DevCluster``; used from one thread.

    Attributes:
        port: Its port, on 127.0.0.1.
        process: The process.
    """

    def __init__(self, port: int, folder: Path, java: JavaHome) -> None:
        self.port = port
        self.process = JavaProcess(f"ZooKeeper ({settings.HOST}:{port})", folder)
        self._folder = folder
        self._java = java

    @property
    def address(self) -> str:
        """What brokers and tools write as ``zookeeper.connect``."""
        return f"{settings.HOST}:{self.port}"

    def configure(self) -> None:
        """Write its configuration files."""
        (self._folder / "tmp").mkdir(parents=True, exist_ok=True)
        properties = {
            "dataDir": str(self._folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": settings.HOST,
            "tickTime": str(_TICK_MS),
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        (self._folder / "zoo.cfg").write_text(settings.properties_text(properties), encoding="ascii")
        logging = settings.server_logging(self.process.log_path, log4j_2=self._java.release.has_log4j_2)
        (self._folder / "logging.properties").write_text(logging, encoding="ascii")

    def spawn(self, *, group: int | None) -> None:
        """Start the process, in the process group ``group``, or in a session of its own when None."""
        command = self._java.command(
            _CLASS,
            [str(self._folder / "zoo.cfg")],
            jvm=_JVM,
            logging=self._folder / "logging.properties",
            scratch=self._folder / "tmp",
        )
        self.process.spawn(command, group=group)

    def is_ready(self) -> bool:
        """Say whether it answers.

        Raises:
            PortTakenError: It ended because its port is in use.
            DevBrokerError: It ended; the message has the end of its log.
        """
        self.process.new_log()
        return _says_ok(self.port)


def _says_ok(port: int, *, timeout: float = 1.0) -> bool:
    try:
        with contextlib.closing(
            socket.create_connection((settings.HOST, port), timeout=timeout)
        ) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
    except OSError:
        return False
