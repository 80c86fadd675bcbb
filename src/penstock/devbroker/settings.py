# SPDX-License-Identifier: Apache-2.0
"""What a development broker starts with, and where its files are: properties, logging, command lines of Java, folders.

Nothing here touches a file or a process; all of it is text made from values, so that it can be tested without
Java.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SERVER_CLASS = "kafka.Kafka"
FORMAT_CLASS = "kafka.tools.StorageTool"
HOST = "127.0.0.1"
TOOL_LOGGING_FILE = "tools.properties"

# For tools that live for a second: the optimising compiler would cost them more than it gives. Never for the
# broker, whose speed benchmarks depend on.
QUICK_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# For tools that are measured, such as Kafka's own producer benchmark.
TOOL_JVM = ("-Xmx512m",)

# The newest release that can be started, and the one that is started unless another is asked for.
KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"


@dataclass(frozen=True)
class NodeAddress:
    """Which ports a node listens on, for clients and for the other controllers.

    Attributes:
        node_id: Kafka's ``node.id``.
        port: For clients, in the clear.
        controller_port: For the other controllers.
        secured_ports: For clients with TLS or SASL, by the names of the listeners.
    """

    node_id: int
    port: int
    controller_port: int
    secured_ports: Mapping[str, int] = field(default_factory=dict, hash=False)


def server_properties(
    node: NodeAddress, cluster: Sequence[NodeAddress], log_dir: Path, extra: Mapping[str, object]
) -> dict[str, str]:
    """Return the properties of one node that is broker and controller at once.

    Args:
        node: The node.
        cluster: All nodes of the cluster, this one among them.
        log_dir: Where Kafka keeps its records.
        extra: Properties of the caller; they win over the ones chosen here.
    """
    size = len(cluster)
    copies = min(3, size)
    in_sync = min(2, size)
    chosen: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.node_id,
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        # A static quorum: its ports are configuration only, so a cluster may come back on other ones.
        "controller.quorum.voters": ",".join(f"{n.node_id}@{HOST}:{n.controller_port}" for n in cluster),
        "log.dirs": log_dir,
        "auto.create.topics.enable": "true",
        "group.initial.rebalance.delay.ms": 0,
        # Kafka waits 9 s before it takes a broker for gone, and a killed one may not come back before
        # that.
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        # Kafka's 50 partitions of each internal topic take seconds to create, and one machine has no use for so many.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.num.partitions": 4,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    }
    return {name: str(value) for name, value in {**chosen, **extra}.items()}


def properties_text(properties: Mapping[str, str]) -> str:
    """Return ``properties`` as a Java properties file."""
    return "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(text: str, *, key: bool = False) -> str:
    """Escape what Java's properties format gives a meaning to; the file is ASCII then."""
    marks = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if key:
        marks |= {"=": "\\=", ":": "\\:", " ": "\\ ", "#": "\\#", "!": "\\!"}
    escaped = "".join(marks.get(char, char) for char in text)
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    units = escaped.encode("utf-16-be")
    pairs = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in pairs)


def server_logging(log_path: Path, *, log4j_2: bool = True) -> str:
    """Return a configuration of log4j that writes the broker's log to ``log_path``, with a bound on its size."""
    if not log4j_2:
        return _logging_of_log4j_1(
            {
                "log4j.appender.main": "org.apache.log4j.RollingFileAppender",
                "log4j.appender.main.File": str(log_path),
                "log4j.appender.main.MaxFileSize": "50MB",
                "log4j.appender.main.MaxBackupIndex": "1",
            },
            level="INFO",
        )
    return _logging(
        {
            "appender.main.type": "RollingFile",
            "appender.main.fileName": str(log_path),
            "appender.main.filePattern": f"{log_path}.%i",
            "appender.main.policies.type": "Policies",
            "appender.main.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.main.policies.size.size": "50MB",
            "appender.main.strategy.type": "DefaultRolloverStrategy",
            "appender.main.strategy.max": "1",
        },
        level="info",
    )


def tool_logging(*, log4j_2: bool = True) -> str:
    """Return a configuration of log4j for tools: warnings only, to standard error, so that output stays output."""
    if not log4j_2:
        console = {
            "log4j.appender.main": "org.apache.log4j.ConsoleAppender",
            "log4j.appender.main.Target": "System.err",
        }
        return _logging_of_log4j_1(console, level="WARN")
    return _logging({"appender.main.type": "Console", "appender.main.target": "SYSTEM_ERR"}, level="warn")


def _logging(appender: Mapping[str, str], *, level: str) -> str:
    return properties_text(
        {
            "status": "error",
            **appender,
            "appender.main.name": "main",
            "appender.main.layout.type": "PatternLayout",
            "appender.main.layout.pattern": "[%d] %p %m (%c)%n",
            "rootLogger.level": level,
            "rootLogger.appenderRef.main.ref": "main",
        }
    )


def _logging_of_log4j_1(appender: Mapping[str, str], *, level: str) -> str:
    return properties_text(
        {
            "log4j.rootLogger": f"{level}, main",
            **appender,
            "log4j.appender.main.layout": "org.apache.log4j.PatternLayout",
            "log4j.appender.main.layout.ConversionPattern": "[%d] %p %m (%c)%n",
        }
    )


def java_command(
    java: Path,
    jars: Path,
    class_name: str,
    args: Sequence[str],
    *,
    jvm: Sequence[str],
    logging: Path,
    scratch: Path,
) -> list[str]:
    """Return the command line that runs ``class_name`` with Kafka's jars.

    Args:
        java: The Java executable.
        jars: The folder of the jars.
        class_name: The class whose ``main`` runs.
        args: Its arguments.
        jvm: Options of the virtual machine.
        logging: The configuration file of log4j; which of the two generations reads it depends on the jars.
        scratch: Where native libraries are unpacked; a killed process leaves them there, and not in ``/tmp``.
    """
    return [
        str(java),
        *jvm,
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={logging}",
        f"-Dlog4j.configuration=file:{logging}",
        *("-cp", f"{jars}/*"),
        class_name,
        *args,
    ]


def server_jvm(heap_mb: int) -> tuple[str, ...]:
    """Return the virtual machine's options for a broker with ``heap_mb`` megabytes of heap."""
    return (
        f"-Xms{min(heap_mb, 128)}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        # A broker that ran out of memory and goes on makes the tests against it misleading.
        "-XX:+ExitOnOutOfMemoryError",
    )


# ---- folders


def cache_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder of this user. It need not exist.

    ``$PENSTOCK_HOME``, else ``$XDG_CACHE_HOME/penstock``, else ``~/.cache/penstock``. Everything that is
    downloaded goes below it, the caches of the download tools too, so that the second start needs no network even
    with an empty home.
    """
    env = os.environ if environ is None else environ
    if env.get("PENSTOCK_HOME"):
        return Path(env["PENSTOCK_HOME"]).expanduser().absolute()
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]).expanduser().absolute() / "penstock"
    return Path("~/.cache/penstock").expanduser().absolute()


def clusters_folder(home: Path) -> Path:
    """Return the folder in which named clusters keep their state and, unless told otherwise, their data."""
    return home / "clusters"
