# SPDX-License-Identifier: Apache-2.0
"""A cluster of real Apache Kafka brokers on this machine, for development and tests.

    with DevCluster() as cluster:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers)

Rules:

1. Everything listens on 127.0.0.1 only.
2. A cluster leaves no process behind, whether it is stopped, forgotten, or its starter is killed
   (``_watchdog``); ``start(detached=True)`` is the exception, and then ``registry`` keeps track of it.
3. A cluster without ``data_dir`` leaves no file behind either.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.control.client import ControlClient
from penstock.control.partition_log import log_end
from penstock.control.steps import LeaderOf, Steps
from penstock.control.topics import create_topic
from penstock.devbroker import settings
from penstock.devbroker.certificates import Certificates
from penstock.devbroker.java_process import STOP_TIMEOUT_SECONDS, JavaHome, PortTakenError
from penstock.devbroker.machine import DevBrokerError, find_java, free_ports, is_free, java_options, with_tail
from penstock.devbroker.node import Node
from penstock.devbroker.releases.fetch import kafka_jars
from penstock.devbroker.releases.probe import unserved
from penstock.devbroker.releases.properties import zookeeper_properties
from penstock.devbroker.releases.release import Release, find_release
from penstock.devbroker.releases.secured import (
    CONFIG_COMMAND,
    JAAS_FILE,
    jaas_options,
    jaas_text,
    listeners_of,
    mechanisms_of,
    old_listener_properties,
    scram_commands,
)
from penstock.devbroker.releases.zookeeper import ZooKeeper
from penstock.devbroker.security import (
    CHOICES,
    Access,
    Listener,
    accesses,
    client_options,
    format_arguments,
    how_to_have,
    listener_properties,
    write_client_files,
)
from penstock.devbroker.settings import KAFKA_VERSION
from penstock.errors import KafkaError

START_TIMEOUT_SECONDS = 180.0  # on a machine that has other work to do
_PORT_ATTEMPTS = 5
_SECURITY_FOLDER = "security"
_TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
_OLD_TOPIC_COMMAND = "kafka.admin.TopicCommand"


class DevCluster:
    """One or more Apache Kafka brokers: each is broker and controller at once; releases before 3.3 have a ZooKeeper.

    Not for use from several threads at once. The environment variable PENSTOCK_JAVA_OPTIONS has further options for
    their Java processes.

    Args:
        nodes: How many brokers.
        data_dir: Where to keep data; it is kept on stop and found again on the next start. None: a temporary
            folder that is deleted on stop.
        heap_mb: Heap of each broker.
        properties: Kafka server properties that win over the ones chosen here.
        log: Called with short messages about what is going on.
        port: The first broker's port, the next ones follow it. None: free ones.
        security: Which secured listeners each broker has beside the plain one: ``tls``, ``mtls``, ``sasl-plain``,
            ``scram``, ``oauth`` or ``all``. None: none. ``client_options`` tells how to use them.
        kafka: Which release, one of ``penstock.devbroker.RELEASES``.

    Raises:
        DevBrokerError: That release cannot be started.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        heap_mb: int = 384,
        properties: Mapping[str, object] | None = None,
        log: Callable[[str], None] | None = None,
        port: int | None = None,
        security: str | None = None,
        kafka: str = KAFKA_VERSION,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster needs at least one node, not {nodes}")
        if security is not None and security not in CHOICES:
            raise ValueError(f"security must be one of {', '.join(CHOICES)}, not {security!r}")
        self.nodes: list[Node] = []
        self.release = find_release(kafka)
        self._size = nodes
        self._given_dir = None if data_dir is None else Path(data_dir).absolute()
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._log = log or (lambda message: None)
        self._first_port = port
        self._listeners = () if security is None else _listeners(self.release, security)
        self._detached = False
        # Set while started.
        self.zookeeper: ZooKeeper | None = None
        self._dir: Path | None = None
        self._java: JavaHome | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._owner_pid = 0

    def __repr__(self) -> str:
        if self._dir is None:
            return f"<DevCluster of {self._size}, stopped>"
        return f"<DevCluster of {self._size} at {self.bootstrap_servers}, data in {self._dir}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as a client wants them."""
        self._require_started()
        return ",".join(f"{settings.HOST}:{node.port}" for node in self.nodes)

    @property
    def data_dir(self) -> Path:
        """The folder of this cluster's data."""
        return self._require_started()

    @property
    def accesses(self) -> list[Access]:
        """Every way to connect to the secured listeners; none without ``security``."""
        return accesses(self._listeners)

    def client_options(self, access: str) -> dict[str, str]:
        """The options with which a client connects that way, by the names of Java's client.

        Args:
            access: The name of one of ``accesses``, such as ``ssl``, ``mtls`` or ``sasl_ssl-scram-sha-256``.

        Raises:
            DevBrokerError: The cluster is not started, or has no such way.
        """
        folder = self._require_started()
        for way in self.accesses:
            if way.name == access:
                return client_options(way, [node.address for node in self.nodes], _certificates(folder))
        known = ", ".join(way.name for way in self.accesses) or "none: it has no secured listener"
        raise DevBrokerError(f"the cluster has no access {access!r}; it has {known}{how_to_have(access)}")

    def client_files(self) -> dict[str, Path]:
        """Write the options of every way to connect as properties files; where they are, by the name of the way."""
        folder = self._require_started()
        addresses = [node.address for node in self.nodes]
        return write_client_files(
            folder / _SECURITY_FOLDER, self._listeners, addresses, _certificates(folder)
        )

    def start(self, *, detached: bool = False) -> None:
        """Fetch Kafka if need be, start every broker and wait until all of them answer.

        Args:
            detached: Let the brokers go on when this process ends.

        Raises:
            DevBrokerError: Something is missing or a broker did not start; the message has the end of its
                log.
        """
        if self._dir is not None:
            raise DevBrokerError("the cluster has been started already")
        self._java = _java_home(self.release)
        self._detached = detached
        self._dir = self._given_dir or Path(tempfile.mkdtemp(prefix="penstock-broker-"))
        self._owner_pid = os.getpid()
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            self._start_watchdog()
            if any(listener.has_tls for listener in self._listeners):
                _certificates(self._dir).ensure(self._java.java, with_store=self.release.needs_zookeeper)
            self._start_brokers(self._dir, self._java)
        except BaseException:
            self.stop()
            raise
        if not self._detached:
            atexit.register(self.stop)
        self._log(f"Apache Kafka {self.release} runs at {self.bootstrap_servers}")

    def stop(self) -> None:
        """Stop every broker and wait until they are gone. A temporary data folder is deleted."""
        # A forked child runs the exit handlers of its parent too; the brokers are not its own.
        if self._dir is None or self._owner_pid != os.getpid():
            return
        atexit.unregister(self.stop)
        for node in self.nodes:
            if self._given_dir is None:
                # Its data is about to be deleted; nothing is gained by closing it in order, and a cluster
                # that loses its quorum while it stops takes seconds to notice.
                node.kill()
            else:
                node.terminate()
        for node in self.nodes:
            if not node.wait_stopped():
                self._log(
                    f"node {node.node_id} was killed: it had not stopped after {STOP_TIMEOUT_SECONDS:.0f} s"
                )
        if self.zookeeper is not None:  # last: a broker that stops in order writes to it
            self.zookeeper.process.kill()
            self.zookeeper = None
        self._stop_watchdog()
        if self._given_dir is None:
            shutil.rmtree(self._dir, ignore_errors=True)
        self._dir = None

    def node(self, node_id: int) -> Node:
        """Return the node with this id."""
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise DevBrokerError(f"there is no node {node_id}; there are {[n.node_id for n in self.nodes]}")

    def kill(self, node_id: int) -> None:
        """Kill a broker (SIGKILL), as a crash of its machine would."""
        self.node(node_id).kill()

    def stop_node(self, node_id: int) -> None:
        """Stop a broker in order (SIGTERM) and wait until it is gone."""
        node = self.node(node_id)
        node.terminate()
        node.wait_stopped()

    def start_node(self, node_id: int) -> None:
        """Start a broker that is down, with the same port and data, and wait until it answers."""
        self._require_started()
        node = self.node(node_id)
        node.spawn(group=self._group)
        _wait_until_ready([node])

    def restart(self, node_id: int) -> None:
        """Stop a broker if it runs, and start it again."""
        self.stop_node(node_id)
        self.start_node(node_id)

    def upgrade(self, node_id: int, kafka: str, properties: Mapping[str, object] | None = None) -> None:
        """Stop a broker in order, and start it with another release, and with other properties if they are given.

        Upgrades from release to release keep what keeps the cluster's state: ZooKeeper, or the brokers themselves.
        """
        folder = self._require_started()
        java = _java_home(find_release(kafka))
        node = self.node(node_id)
        self.stop_node(node_id)
        node.java = self._with_jaas(java, folder)
        if properties is not None:
            self._properties = dict(properties)
        node.configure(self._properties_of(node, [each.address for each in self.nodes], folder))
        self.start_node(node_id)

    def pause(self, node_id: int) -> None:
        """Freeze a broker (SIGSTOP): it accepts connections and bytes, and answers nothing."""
        self.node(node_id).pause()

    def resume(self, node_id: int) -> None:
        """Let a frozen broker go on (SIGCONT)."""
        self.node(node_id).resume()

    def log_dirs(self) -> dict[int, Path]:
        """Return the folder with Kafka's records of each node, by node id."""
        return {node.node_id: node.log_dir for node in self.nodes}

    def tool_command(self, class_name: str, *args: str, jvm: Sequence[str] = settings.TOOL_JVM) -> list[str]:
        """Return the command line that runs a class of Kafka with this cluster's jars."""
        folder = self._require_started()
        if self._java is None:
            raise DevBrokerError("the cluster is not started")
        logging = folder / settings.TOOL_LOGGING_FILE
        return self._java.command(class_name, args, jvm=jvm, logging=logging, scratch=folder / "tmp")

    def run_tool(
        self,
        class_name: str,
        *args: str,
        input: str | None = None,  # noqa: A002 -- as subprocess.run() calls it
        timeout: float = 60.0,
        jvm: Sequence[str] = settings.TOOL_JVM,
    ) -> subprocess.CompletedProcess[str]:
        """Run a class of Kafka, e.g. ``org.apache.kafka.tools.GetOffsetShell``, and return what came out.

        The exit code is the caller's to check. Output is exact: bytes that are no UTF-8 come as lone surrogates, and
        encoding the text again (``surrogateescape``) gives back what the tool wrote.
        """
        done = subprocess.run(
            self.tool_command(class_name, *args, jvm=jvm),
            input=b"" if input is None else input.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        # Decoded here: text mode would also turn every carriage return into a line feed.
        stdout, stderr = (output.decode("utf-8", "surrogateescape") for output in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, stdout, stderr)

    def popen_tool(
        self, class_name: str, *args: str, jvm: Sequence[str] = settings.TOOL_JVM
    ) -> subprocess.Popen[str]:
        """Start a class of Kafka and return the process, its three streams being pipes. The caller ends it."""
        return subprocess.Popen(
            self.tool_command(class_name, *args, jvm=jvm),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
        )

    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic, and return when records can be written to it."""
        if self.zookeeper is not None:
            settings_of_topic = [f"{key}={value}" for key, value in (config or {}).items()]
            self._topic_command(
                *("--create", "--topic", name, "--partitions", str(partitions)),
                *("--replication-factor", str(replication)),
                *(word for setting in settings_of_topic for word in ("--config", setting)),
            )
            self._wait_until_served(name, partitions)
            return
        what = "could not be created"
        try:
            with ControlClient({"bootstrap.servers": self.bootstrap_servers}) as client:
                create_topic(name, partitions, replication, config, config=client)
                # The answer comes before the leaders know the topic, and they would refuse its first records.
                what = "was created, but not every partition has a leader that serves it"
                client.run(_all_served(name, partitions))
        except KafkaError as error:
            raise DevBrokerError(f"topic {name!r} {what}: {error}") from error

    def delete_topic(self, name: str) -> None:
        """Delete a topic, with its records."""
        self._topic_command("--delete", "--topic", name)

    def _topic_command(self, *args: str) -> None:
        tool, servers = _TOPIC_COMMAND, ("--bootstrap-server", self.bootstrap_servers)
        if self.zookeeper is not None:
            tool, servers = _OLD_TOPIC_COMMAND, ("--zookeeper", self.zookeeper.address)
        done = self.run_tool(tool, *servers, *args, jvm=settings.QUICK_JVM)
        if done.returncode != 0:
            output = (done.stdout + done.stderr).splitlines()
            raise DevBrokerError(with_tail(f"the topic command {' '.join(args)} failed", output))

    def _wait_until_served(self, topic: str, partitions: int) -> None:
        """Wait until each partition has a leader that knows the partition."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        ports = {node.node_id: node.port for node in self.nodes}
        while waiting := unserved(ports, topic, partitions):
            if time.monotonic() >= deadline:
                raise DevBrokerError(
                    f"topic {topic!r} was created, but no leader serves its partitions {sorted(waiting)}"
                )
            time.sleep(0.05)

    def _start_brokers(self, folder: Path, java: JavaHome) -> None:
        """Configure, format and start all nodes, with other ports when one was taken meanwhile."""
        cluster_id = self._claim_folder(folder)
        (folder / "tmp").mkdir(exist_ok=True)
        logging = settings.tool_logging(log4j_2=self.release.has_log4j_2)
        (folder / settings.TOOL_LOGGING_FILE).write_text(logging, encoding="ascii")
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            addresses = self._choose_addresses()
            of_nodes = self._with_jaas(java, folder)
            self.nodes = [Node(a, folder / f"node-{a.node_id}", of_nodes, self._heap_mb) for a in addresses]
            for node in self.nodes:
                node.configure(self._properties_of(node, addresses, folder))
            try:
                if self.release.needs_zookeeper:
                    self._start_zookeeper(ZooKeeper(addresses[0].controller_port, folder / "zookeeper", java))
                else:
                    self._format([node for node in self.nodes if not node.formatted], cluster_id)
                for node in self.nodes:
                    node.spawn(group=self._group)
                _wait_until_ready(self.nodes)
                self._add_scram_users()
                return
            except PortTakenError:
                if self._first_port is not None or attempt == _PORT_ATTEMPTS:
                    raise
                for node in self.nodes:
                    node.kill()
                if self.zookeeper is not None:
                    self.zookeeper.process.kill()
                self._log("a port was taken meanwhile; trying others")

    def _properties_of(
        self, node: Node, addresses: Sequence[settings.NodeAddress], folder: Path
    ) -> dict[str, str]:
        if self.release.needs_zookeeper:
            # All brokers have one ZooKeeper, at the first address.
            address = replace(node.address, controller_port=addresses[0].controller_port)
            release = node.java.release
            secured = old_listener_properties(node.address, self._listeners, _certificates(folder))
            extra = {**(secured if self._listeners else {}), **self._properties}
            return zookeeper_properties(release, address, self._size, node.log_dir, extra)
        return settings.server_properties(
            node.address, addresses, node.log_dir, self._secured(node.address, folder)
        )

    def _with_jaas(self, java: JavaHome, folder: Path) -> JavaHome:
        """For a broker with ZooKeeper and SASL: Java with the options that make it read its JAAS file."""
        if not self.release.needs_zookeeper or not mechanisms_of(self._listeners):
            return java
        path = folder / _SECURITY_FOLDER / JAAS_FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(jaas_text(self._listeners), encoding="ascii")
        return replace(java, options=(*java.options, *jaas_options(path)))

    def _add_scram_users(self) -> None:
        if self.zookeeper is None:
            return
        for args in scram_commands(self._listeners, self.zookeeper.address):
            done = self.run_tool(CONFIG_COMMAND, *args, jvm=settings.QUICK_JVM, timeout=START_TIMEOUT_SECONDS)
            if done.returncode != 0:
                output = (done.stdout + done.stderr).splitlines()
                raise DevBrokerError(with_tail("the users of SCRAM could not be added", output))

    def _start_zookeeper(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper
        zookeeper.configure()
        zookeeper.spawn(group=self._group)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not zookeeper.is_ready():
            if time.monotonic() >= deadline:
                raise zookeeper.process.start_failure(f"was not ready after {START_TIMEOUT_SECONDS:.0f} s")
            time.sleep(0.05)

    def _secured(self, address: settings.NodeAddress, folder: Path) -> dict[str, object]:
        """The properties of the secured listeners, and those of the caller, which win."""
        if not self._listeners:
            return self._properties
        return {**listener_properties(address, self._listeners, _certificates(folder)), **self._properties}

    def _claim_folder(self, folder: Path) -> str:
        """Return the cluster id of the data folder, giving it one when it is new."""
        identity = folder / "cluster.json"
        if not identity.exists():
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
            # A leading dash would be read as an option by the tool that formats the storage.
            cluster_id = cluster_id.replace("-", "A")
            made = {"cluster_id": cluster_id, "nodes": self._size, "kafka": self.release.version}
            identity.write_text(json.dumps(made), encoding="ascii")
            return cluster_id
        kept = json.loads(identity.read_text(encoding="ascii"))
        made_by = Release(kept.get("kafka", KAFKA_VERSION))
        if not self.release.can_read_data_of(made_by):
            raise DevBrokerError(
                f"{folder} holds data of Kafka {made_by}, which {self.release} cannot read: "
                f"start that release (--kafka {made_by}), or use another folder (--data), or another --name"
            )
        if kept["nodes"] != self._size:
            raise DevBrokerError(
                f"{folder} holds a cluster of another number of nodes, {kept['nodes']} instead of {self._size}: start "
                f"it with that number (--nodes {kept['nodes']}), or use another folder (--data), or another --name"
            )
        return str(kept["cluster_id"])

    def _choose_addresses(self) -> list[settings.NodeAddress]:
        """Choose the ports of all nodes."""
        first = self._first_port
        if first is None:
            clients = free_ports(self._size)
        else:
            clients = list(range(first, first + self._size))
            for port in clients:
                if not is_free(port):
                    raise PortTakenError(
                        f"port {port} on {settings.HOST} is in use: choose another, or none at all"
                    )
        names = [listener.name for listener in self._listeners]
        others = iter(free_ports(self._size * (1 + len(names)), avoid=clients))
        return [
            settings.NodeAddress(number, port, next(others), {name: next(others) for name in names})
            for number, port in enumerate(clients, start=1)
        ]

    def _format(self, nodes: Sequence[Node], cluster_id: str) -> None:
        """Make Kafka's storage for ``nodes``, all at the same time."""
        running = [
            subprocess.Popen(
                node.format_command(cluster_id, format_arguments()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                process_group=self._group,
            )
            for node in nodes
        ]
        outputs = [process.communicate()[0] for process in running]
        for node, process, output in zip(nodes, running, outputs, strict=True):
            if process.returncode != 0:
                message = f"the storage of node {node.node_id} in {node.data_dir} could not be made"
                raise DevBrokerError(with_tail(message, output.splitlines()))

    @property
    def _group(self) -> int | None:
        return None if self._watchdog is None else self._watchdog.pid

    def _start_watchdog(self) -> None:
        if self._detached:
            return
        folders = [str(self._dir)] if self._given_dir is None else []
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("_watchdog.py")), *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )

    def _stop_watchdog(self) -> None:
        if self._watchdog is None:
            return
        # Had it been killed, the pipe would be broken; there is nothing left for it to end anyway.
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.communicate(b"done")
        self._watchdog.wait()
        self._watchdog = None

    def _require_started(self) -> Path:
        if self._dir is None:
            raise DevBrokerError("the cluster is not started")
        return self._dir


def _listeners(release: Release, security: str) -> tuple[Listener, ...]:
    return listeners_of(release, security) if release.needs_zookeeper else CHOICES[security]


def _java_home(release: Release) -> JavaHome:
    return JavaHome(find_java(), kafka_jars(release), java_options(), release)


def _certificates(folder: Path) -> Certificates:
    return Certificates(folder / _SECURITY_FOLDER)


def _all_served(topic: str, partitions: int) -> Steps[None]:
    for partition in range(partitions):
        yield from log_end(LeaderOf(topic, partition))


def _wait_until_ready(nodes: Sequence[Node]) -> None:
    """Wait until all ``nodes`` answer; the first one that fails ends the wait."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    waiting = list(nodes)
    while waiting:
        waiting = [node for node in waiting if not node.is_ready()]
        if waiting and time.monotonic() >= deadline:
            raise waiting[0].start_failure(f"was not ready after {START_TIMEOUT_SECONDS:.0f} s")
        if waiting:
            time.sleep(0.05)
