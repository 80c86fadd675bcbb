# SPDX-License-Identifier: Apache-2.0
"""What the cases run on: a real broker of a release, or a server that implements Kafka's protocol and is not Kafka."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition

from brokers.segments import Entry, end_offset, stored
from penstock.devbroker import DevCluster

ROOT = Path(__file__).resolve().parent.parent.parent
_LIMIT = 60.0
_BUILD_LIMIT = 900.0
# librdkafka says in lines of its own how it finds out what a server can do.
QUIET = {"log_level": 3, "enable.metrics.push": False}


class NoServer(Exception):
    """A server could not be started."""


class CannotBe(Exception):
    """A case makes no sense on a server; the text says why."""


class Server(Protocol):
    """One server with one topic of one partition."""

    @property
    def bootstrap_servers(self) -> str: ...

    def entries(self, topic: str) -> list[Entry] | None:
        """What it has stored, read from its files; None where it has no files."""

    def end(self, topic: str) -> int:
        """The offset of the next record."""

    def restart(self) -> None:
        """Stop it in order, and start it again with its data."""

    def options(self, access: str) -> dict[str, str]:
        """What a client writes to connect to a secured listener."""

    def check_restart(self) -> None:
        """Raise CannotBe where it cannot be started again with its data."""


class RealBroker:
    """A broker of Apache Kafka, whose log files can be read."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self._node = cluster.nodes[0]

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def entries(self, topic: str) -> list[Entry]:
        return stored(self._node.log_dir, topic)

    def end(self, topic: str) -> int:
        return end_offset(self.entries(topic))

    def restart(self) -> None:
        self.cluster.restart(self._node.node_id)

    def check_restart(self) -> None:
        """Accept every case: a real broker can always be restarted."""

    def options(self, access: str) -> dict[str, str]:
        if access not in [each.name for each in self.cluster.accesses]:
            raise CannotBe(f"Kafka {self.cluster.release} has no listener {access}")
        return self.cluster.client_options(access)


class Kfake:
    """franz-go's fake cluster in Go: a process that ends with its standard input. It has no files to read."""

    def __init__(self, address: str) -> None:
        self.bootstrap_servers = address

    def entries(self, topic: str) -> None:
        return None

    def end(self, topic: str) -> int:
        reader = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "ends", **QUIET})
        try:
            _low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=_LIMIT)
        finally:
            reader.close()
        return int(high)

    def restart(self) -> None:
        self.check_restart()

    def check_restart(self) -> None:
        raise CannotBe("kfake keeps its records in memory")

    def options(self, access: str) -> dict[str, str]:
        raise CannotBe("kfake is started without secured listeners")


@contextlib.contextmanager
def started_kfake(topic: str) -> Iterator[Kfake]:
    """Build it, if need be, and run it.

    Raises:
        NoServer: Go is missing, or it does not build.
    """
    program = _built()
    process = subprocess.Popen([program, topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise NoServer("kfake ended at once")
        yield Kfake(address)
    finally:
        process.communicate()  # which ends its standard input


def _built() -> Path:
    go = shutil.which("go")
    if go is None:
        raise NoServer(
            "kfake (the Go module github.com/twmb/franz-go/pkg/kfake) is built with Go, which is not on the PATH: "
            "install it, for example the package golang-go in a version of 1.26 or later"
        )
    program = ROOT / "build" / "brokers" / "kfake"
    done = subprocess.run(
        [go, "build", "-o", program, "."],
        cwd=Path(__file__).parent / "kfake",
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_LIMIT,
    )
    if done.returncode != 0:
        raise NoServer(f"kfake does not build: {done.stderr.strip()}")
    return program
