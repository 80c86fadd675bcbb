# SPDX-License-Identifier: Apache-2.0
"""Named clusters that go on running after the command that started them has ended.

One file per cluster under the cache folder says which processes it consists of. A process is only ever
signalled after its id and its start have both been checked, so an old file does no harm. A lock per
name keeps two commands from working on the same cluster at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock._processes import ProcessRef, try_reference
from penstock.devbroker.cluster import DevCluster
from penstock.devbroker.java_process import STOP_TIMEOUT_SECONDS, PortTakenError
from penstock.devbroker.machine import DevBrokerError, is_free
from penstock.devbroker.node import Node
from penstock.devbroker.releases.zookeeper import ZooKeeper
from penstock.devbroker.settings import KAFKA_VERSION, cache_home, clusters_folder

# Where people expect Kafka; used when it is free and nothing else was asked for.
USUAL_PORT = 9092
DEFAULT_HEAP_MB = 384
_PORT_FILE = (
    "port.txt"  # beside the data: clients that were told the address find the cluster after a restart
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class StartRequest:
    """What to start: see the options of ``penstock broker start``. None is what nobody asked for."""

    name: str = "default"
    nodes: int | None = None
    port: int | None = None
    data_dir: Path | None = None
    ephemeral: bool = False
    heap_mb: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    security: str | None = None
    kafka: str | None = None

    def unlike(self, running: ClusterRecord) -> list[str]:
        """The options that a running cluster does not have, or not for sure; it could take them after a stop."""
        differs = {
            "--nodes": self.nodes not in (None, len(running.nodes)),
            "--port": self.port not in (None, running.nodes[0].port),
            "--data": self.data_dir is not None and str(self.data_dir) != running.data_dir,
            "--ephemeral": self.ephemeral and not running.ephemeral,
            "--heap-mb": self.heap_mb is not None,
            "--property": bool(self.properties),
            "--security": self.security not in (None, running.security),
            "--kafka": self.kafka not in (None, running.kafka),
        }
        return [option for option, is_so in differs.items() if is_so]


@dataclass(frozen=True)
class NodeRecord:
    """A broker as the state file remembers it."""

    node_id: int
    port: int
    process: ProcessRef
    log_path: str


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster as the state file remembers it.

    Attributes:
        name: Its name.
        nodes: Its brokers.
        data_dir: Where its data is.
        ephemeral: Whether that is deleted on stop.
        started_at: Wall-clock time, in seconds since 1970.
        security: Which secured listeners it has.
        client_files: Properties files for clients, by the names of the ways to connect.
        kafka: The release that it runs.
        zookeeper: Its ZooKeeper, if that release needs one.
    """

    name: str
    nodes: tuple[NodeRecord, ...]
    data_dir: str
    ephemeral: bool
    started_at: float
    security: str | None = None
    client_files: Mapping[str, str] = field(default_factory=dict, hash=False)
    kafka: str = KAFKA_VERSION
    zookeeper: ProcessRef | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as a client wants them."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def state(self) -> str:
        """``up``, ``dead``, or how many of the brokers are up."""
        up = sum(node.process.alive for node in self.nodes)
        if up and self.zookeeper is not None and not self.zookeeper.alive:
            return f"{up} of {len(self.nodes)} up, without its ZooKeeper"
        if up == len(self.nodes):
            return "up"
        return "dead" if up == 0 else f"{up} of {len(self.nodes)} up"

    @property
    def settings(self) -> str:
        """What it was started with, for people."""
        count = len(self.nodes)
        return ", ".join(
            (
                f"Kafka {self.kafka}",
                f"{count} node{'' if count == 1 else 's'} at {self.bootstrap_servers}",
                "no secured listeners" if self.security is None else f"--security {self.security}",
                f"data in {self.data_dir}{', deleted on stop' if self.ephemeral else ''}",
            )
        )

    def to_json(self) -> str:
        """Return the record as the text of a state file."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> ClusterRecord:
        """Read the text of a state file."""
        raw: dict[str, Any] = json.loads(text)
        nodes = tuple(NodeRecord(**{**n, "process": ProcessRef(**n["process"])}) for n in raw.pop("nodes"))
        zookeeper = raw.pop("zookeeper", None)
        return cls(nodes=nodes, zookeeper=zookeeper and ProcessRef(**zookeeper), **raw)


class Registry:
    """The named clusters of one user.

    Args:
        home: The cache folder; ``cache_home()`` when None.
        log: Called with short messages about what is going on.
    """

    def __init__(self, home: Path | None = None, log: Callable[[str], None] | None = None) -> None:
        self._home = cache_home() if home is None else home
        self._folder = clusters_folder(self._home)
        self._log = log or (lambda message: None)

    def records(self) -> list[ClusterRecord]:
        """Return all clusters that were started and not stopped, dead ones too, by name."""
        found = (self.try_read(path.stem) for path in sorted(self._folder.glob("*.json")))
        return [record for record in found if record is not None]

    def try_read(self, name: str) -> ClusterRecord | None:
        """Return the record of cluster ``name``, or None when it was not started or was stopped."""
        path = self._state_path(name)
        try:
            return ClusterRecord.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise DevBrokerError(
                f"the state file {path} cannot be read ({error}); delete it to go on"
            ) from error

    def start(self, request: StartRequest) -> tuple[ClusterRecord, bool]:
        """Start a cluster unless it runs. Return its record, and whether it was started now.

        Raises:
            DevBrokerError: It runs, but not as it is asked for; or it does not start.
        """
        with self._lock(request.name):
            known = self.try_read(request.name)
            if known is not None and known.state == "up":
                if unlike := request.unlike(known):
                    raise DevBrokerError(
                        f"cluster {request.name!r} runs already, so that {', '.join(unlike)} would have no effect. It "
                        f"has {known.settings}. To use it as it is, leave that out; to change it, stop it first with "
                        f"`penstock broker stop --name {request.name}`; or start another one with another --name"
                    )
                return known, False
            if known is not None:
                self._log(f"cluster {request.name!r} is {known.state}; starting it anew")
                self._end(known)
                self._forget(known)
            record = self._start_detached(request)
            self._write(record)
            return record, True

    def stop(self, name: str, *, delete_data: bool = False) -> ClusterRecord | None:
        """Stop cluster ``name`` and forget it. Return what it was, or None when there was nothing to stop.

        The data stays, unless the cluster is ephemeral or ``delete_data`` is set.
        """
        with self._lock(name):
            record = self.try_read(name)
            if record is not None:
                self._end(record)
                self._forget(record)
            if delete_data:
                delete_cluster_data(
                    Path(record.data_dir) if record is not None else self._default_data_dir(name)
                )
            return record

    def _start_detached(self, request: StartRequest) -> ClusterRecord:
        data_dir = request.data_dir or self._default_data_dir(request.name)
        if request.ephemeral:
            data_dir = Path(tempfile.mkdtemp(prefix=f"penstock-{request.name}-"))
        is_new = request.ephemeral or not data_dir.exists()
        try:
            cluster = self._start_on_some_port(request, data_dir)
        except BaseException:
            if is_new:  # the error has the end of the log
                shutil.rmtree(data_dir, ignore_errors=True)
            raise
        nodes = tuple(_node_record(node) for node in cluster.nodes)
        _keep_port(data_dir, [node.port for node in nodes])
        zookeeper = None if cluster.zookeeper is None else _zookeeper_record(cluster.zookeeper)
        for node in cluster.nodes:
            node.release()
        if cluster.zookeeper is not None:
            cluster.zookeeper.process.release()
        files = {name: str(path) for name, path in cluster.client_files().items()}
        return ClusterRecord(
            request.name,
            nodes,
            str(data_dir),
            request.ephemeral,
            time.time(),
            request.security,
            files,
            cluster.release.version,
            zookeeper,
        )

    def _start_on_some_port(self, request: StartRequest, data_dir: Path) -> DevCluster:
        """Start on the port asked for; else on that of the last start, on the usual one, or anywhere."""
        nodes = request.nodes or 1
        wanted: list[int | None] = [request.port]
        if request.port is None:
            known = dict.fromkeys(port for port in (_try_kept_port(data_dir), USUAL_PORT) if port is not None)
            wanted = [port for port in known if all(is_free(port + i) for i in range(nodes))]
            wanted.append(None)
        while True:
            cluster = DevCluster(
                nodes,
                data_dir=data_dir,
                heap_mb=request.heap_mb or DEFAULT_HEAP_MB,
                properties=request.properties,
                log=self._log,
                port=wanted.pop(0),
                security=request.security,
                kafka=request.kafka or KAFKA_VERSION,
            )
            try:
                cluster.start(detached=True)
                return cluster
            except PortTakenError:
                if not wanted:
                    raise

    def _end(self, record: ClusterRecord) -> None:
        """End what still runs of a cluster: asked first, killed when that does not help."""
        self._end_processes(record, [node.process for node in record.nodes])
        if record.zookeeper is not None:  # last: a broker that stops in order writes to it
            self._end_processes(record, [record.zookeeper])

    def _end_processes(self, record: ClusterRecord, processes: Sequence[ProcessRef]) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        if not record.ephemeral:
            for process in processes:
                process.send(signal.SIGTERM)
                # A paused process takes the signal only once it runs again.
                process.send(signal.SIGCONT)
            while any(process.alive for process in processes) and time.monotonic() < deadline:
                time.sleep(0.05)
        for process in processes:
            if process.send(signal.SIGKILL) and not record.ephemeral:
                self._log(
                    f"process {process.pid} was killed: it had not stopped after {STOP_TIMEOUT_SECONDS:.0f} s"
                )
        while any(process.alive for process in processes):
            if time.monotonic() > deadline + STOP_TIMEOUT_SECONDS:
                raise DevBrokerError(f"cluster {record.name!r} still runs although it was killed")
            time.sleep(0.02)

    def _forget(self, record: ClusterRecord) -> None:
        if record.ephemeral:
            delete_cluster_data(Path(record.data_dir))
        self._state_path(record.name).unlink(missing_ok=True)

    def _write(self, record: ClusterRecord) -> None:
        """Write the state file whole: a reader sees the old text or the new one, never half of it."""
        path = self._state_path(record.name)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(record.to_json(), encoding="utf-8")
        os.replace(scratch, path)

    def _state_path(self, name: str) -> Path:
        check_name(name)
        return self._folder / f"{name}.json"

    def _default_data_dir(self, name: str) -> Path:
        return self._home / "data" / name

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        path = self._state_path(name).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def check_name(name: str) -> None:
    """See that a cluster can have that name, which is also the name of files.

    Raises:
        DevBrokerError: It cannot.
    """
    if not _NAME.fullmatch(name):
        raise DevBrokerError(
            f"{name!r} is no name for a cluster: letters, digits, '.', '_' and '-' make one, at most 64 of them, and a "
            "letter or digit is first"
        )


def delete_cluster_data(folder: Path) -> None:
    """Delete what a cluster has put into ``folder``, and the folder itself if nothing else is in it.

    The folder may be one that the user has named, with files of theirs beside ours.
    """
    for path in folder.glob("node-*"):
        if (path / "server.properties").exists():
            shutil.rmtree(path)
    if (folder / "zookeeper" / "zoo.cfg").exists():
        shutil.rmtree(folder / "zookeeper")
    for name in ("tmp", "security"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("cluster.json", "tools.properties", _PORT_FILE):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _keep_port(folder: Path, ports: Sequence[int]) -> None:
    """Note the first port for the next start; none if the others do not follow it."""
    first = ports[0]
    path = folder / _PORT_FILE
    if list(ports) == list(range(first, first + len(ports))):
        path.write_text(f"{first}\n", encoding="ascii")
    else:
        path.unlink(missing_ok=True)


def _try_kept_port(folder: Path) -> int | None:
    """The first port of the last start; None if it is not known."""
    try:
        port = int((folder / _PORT_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):  # never started, not noted, or somebody has changed the file
        return None
    return port if 0 < port < 1 << 16 else None


def _node_record(node: Node) -> NodeRecord:
    process = None if node.pid is None else try_reference(node.pid)
    if process is None:
        raise node.start_failure("ended right after its start")
    return NodeRecord(node.node_id, node.port, process, str(node.log_path))


def _zookeeper_record(zookeeper: ZooKeeper) -> ProcessRef:
    pid = zookeeper.process.pid
    process = None if pid is None else try_reference(pid)
    if process is None:
        raise zookeeper.process.start_failure("ended right after its start")
    return process
