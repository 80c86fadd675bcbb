# SPDX-License-Identifier: Apache-2.0
"""``penstock broker start|stop|status``: a real Apache Kafka for development, from the command line."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.values import at_least, port
from penstock.devbroker import RELEASES, DevBrokerError
from penstock.devbroker.certificates import Certificates
from penstock.devbroker.machine import is_free
from penstock.devbroker.registry import (
    DEFAULT_HEAP_MB,
    USUAL_PORT,
    ClusterRecord,
    NodeRecord,
    Registry,
    StartRequest,
    check_name,
)
from penstock.devbroker.releases.probe import broker_answers
from penstock.devbroker.security import CHOICES, USERS
from penstock.devbroker.settings import KAFKA_VERSION

if TYPE_CHECKING:
    # argparse has no public name for it.
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

_DESCRIPTION = f"""\
Start, stop and list real Apache Kafka brokers for development, on 127.0.0.1: {KAFKA_VERSION}, or another release
that is asked for.

The first start of a release fetches its jars (12 to 60 MB) into the cache folder: $PENSTOCK_HOME, else
$XDG_CACHE_HOME/penstock, else ~/.cache/penstock. It needs Java 17 or newer, and PySpark or Maven.
"""
_START_DESCRIPTION = """\
Start a cluster in the background and print its address. A cluster that runs already is left alone;
options that it does not have are refused.
Data is kept across stop and start, unless the cluster is ephemeral; so is the port, if it is still free.
"""


def add_parser(subparsers: SubParsers) -> None:
    """Add the ``broker`` command."""
    plain = argparse.RawDescriptionHelpFormatter
    broker = subparsers.add_parser(
        "broker", help="a real Apache Kafka for development", description=_DESCRIPTION, formatter_class=plain
    )
    actions = broker.add_subparsers(dest="action", metavar="ACTION", required=True)

    start = actions.add_parser(
        "start",
        help="start a cluster in the background",
        description=_START_DESCRIPTION,
        formatter_class=plain,
    )
    _add_name(start)
    start.add_argument(
        "--kafka",
        choices=RELEASES,
        metavar="RELEASE",
        help=f"which Kafka: {', '.join(RELEASES)} (default: {KAFKA_VERSION}); those before 3.3 come with a ZooKeeper",
    )
    start.add_argument("--nodes", type=at_least(1), metavar="N", help="number of brokers (default: 1)")
    start.add_argument(
        "--port",
        type=port,
        metavar="P",
        help="port of the first broker, the others follow it (default: that of the last start with this data, else "
        "9092, else any: the first that is free)",
    )
    place = start.add_mutually_exclusive_group()
    place.add_argument(
        "--data", type=Path, metavar="DIR", help="where to keep the data (default: the cache folder)"
    )
    place.add_argument("--ephemeral", action="store_true", help="keep no data: it is deleted on stop")
    start.add_argument(
        "--heap-mb", type=at_least(1), metavar="MB", help=f"heap per broker (default: {DEFAULT_HEAP_MB})"
    )
    start.add_argument(
        "--security",
        choices=list(CHOICES),
        help="secured listeners beside the plain one, with certificates and users made for it: TLS, TLS with client "
        "certificates, SASL with passwords, SCRAM or tokens (each over TLS and without), or all of them; "
        "prints a file of options for each way to connect",
    )
    start.add_argument(
        "--property",
        type=_property,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Kafka server property; may be given several times",
    )

    stop = actions.add_parser(
        "stop", help="stop a cluster", description="Stop a cluster and wait until it is gone."
    )
    chosen = stop.add_mutually_exclusive_group()
    _add_name(chosen)
    chosen.add_argument("--all", action="store_true", help="stop every cluster")
    stop.add_argument("--delete-data", action="store_true", help="delete the data too")

    actions.add_parser("status", help="list the clusters", description="List the clusters and their brokers.")
    broker.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks. Return the exit code: 0, or 1 when it failed."""
    registry = Registry(log=lambda message: print(message, file=sys.stderr))
    actions = {"start": _start, "stop": _stop, "status": _status}
    try:
        return actions[args.action](registry, args)
    except DevBrokerError as error:
        print(f"penstock broker {args.action}: {error}", file=sys.stderr)
        return 1


def _start(registry: Registry, args: argparse.Namespace) -> int:
    request = StartRequest(
        name=args.name,
        nodes=args.nodes,
        port=args.port,
        data_dir=None if args.data is None else args.data.absolute(),
        ephemeral=args.ephemeral,
        heap_mb=args.heap_mb,
        properties=dict(args.property),
        security=args.security,
        kafka=args.kafka,
    )
    record, started = registry.start(request)
    print(f"cluster {record.name!r} {'is up' if started else 'runs already'}")
    print(f"  release            Apache Kafka {record.kafka}")
    print(f"  bootstrap servers  {record.bootstrap_servers}")
    print(f"  data               {record.data_dir}{' (deleted on stop)' if record.ephemeral else ''}")
    if record.nodes[0].port != USUAL_PORT:
        print(f"  to use it          penstock produce -b {record.bootstrap_servers} TOPIC")
    for line in _secured_text(record):
        print(line)
    print(f"  to stop it         penstock broker stop{_name_option(record.name)}")
    if started and args.port is None and record.nodes[0].port != USUAL_PORT:
        print(f"penstock broker start: {_why_not_the_usual_port(record, registry)}", file=sys.stderr)
    return 0


def _why_not_the_usual_port(record: ClusterRecord, registry: Registry) -> str:
    told = f"where clients write that are not told another address: name {record.bootstrap_servers} to them"
    if is_free(USUAL_PORT):
        return (
            f"the cluster has the port of its last start, which is not {USUAL_PORT}, {told}; or stop it, and start it "
            f"with --port {USUAL_PORT}"
        )
    return f"port {USUAL_PORT} is in use by {_who_uses(USUAL_PORT, registry)}, and that is {told}"


def _secured_text(record: ClusterRecord) -> list[str]:
    """How to connect to the secured listeners."""
    if not record.client_files:
        return []
    lines = ["  secured            one file of options for each way to connect:"]
    lines += [f"    {name:<28} {path}" for name, path in record.client_files.items()]
    first = next(iter(record.client_files.values()))
    made = Certificates(Path(first).parent)
    lines.append(f"  certificates       {made.authority} to trust, {made.client} for mTLS")
    if any(name.endswith(("-plain", "-256", "-512")) for name in record.client_files):
        lines.append(
            "  passwords          " + ", ".join(f"{user}: {secret}" for user, secret in USERS.items())
        )
    lines.append(f"  to use one         penstock produce --config {first} TOPIC")
    lines.append(f"  from Python        Producer({first!r})")
    return lines


def _who_uses(port: int, registry: Registry) -> str:
    for record in registry.records():
        if port in [node.port for node in record.nodes]:
            return f"cluster {record.name!r}"
    return "something else"


def _stop(registry: Registry, args: argparse.Namespace) -> int:
    names = [record.name for record in registry.records()] if args.all else [args.name]
    if not names:
        print("no cluster is running")
    for name in names:
        known = registry.try_read(name)
        was_dead = known is not None and known.state == "dead"
        record = registry.stop(name, delete_data=args.delete_data)
        if record is None:
            others = ", ".join(repr(each.name) for each in registry.records())
            hint = f"; running: {others} (choose with --name)" if others else ""
            print(f"cluster {name!r} is not running{hint}")
        else:
            gone = record.ephemeral or args.delete_data
            done = "was dead already" if was_dead else "is stopped"
            print(
                f"cluster {name!r} {done}; its data {'is deleted' if gone else f'stays in {record.data_dir}'}"
            )
    return 0


def _status(registry: Registry, args: argparse.Namespace) -> int:
    records = registry.records()
    if not records:
        print("no cluster is running; start one with: penstock broker start")
    for record in records:
        print(status_text(record, time.time()))
    return 0


def status_text(record: ClusterRecord, wall_now: float) -> str:
    """Return what ``status`` says about a cluster, with a line for each broker."""
    kept = " (deleted on stop)" if record.ephemeral else ""
    count = f"{len(record.nodes)} node{'' if len(record.nodes) == 1 else 's'}"
    age = f", for {duration_text(wall_now - record.started_at)}" if record.state != "dead" else ""
    lines = [
        f"{record.name}: {record.state}, {count}{age}",
        f"  release            Apache Kafka {record.kafka}",
        f"  bootstrap servers  {record.bootstrap_servers}",
        f"  data               {record.data_dir}{kept}",
        *_secured_text(record),
        *(
            f"  node {node.node_id:<13} port {node.port}, pid {node.process.pid}, {_node_state(node)}"
            for node in record.nodes
        ),
    ]
    return "\n".join(lines)


def duration_text(seconds: float) -> str:
    """Return a length of time in its two largest units, e.g. ``2 h 5 min``."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def _node_state(node: NodeRecord) -> str:
    if not node.process.alive:
        return f"dead (log: {node.log_path})"
    return "up" if broker_answers(node.port) else f"up, but does not answer (log: {node.log_path})"


def _name_option(name: str) -> str:
    return "" if name == "default" else f" --name {name}"


def _add_name(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--name", type=_name, default="default", help="name of the cluster (default: default)"
    )


def _name(text: str) -> str:
    try:
        check_name(text)
    except DevBrokerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _property(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        # What was written is not shown: it may be a password behind the wrong separator.
        raise argparse.ArgumentTypeError("it must be KEY=VALUE, for example auto.create.topics.enable=false")
    return name, value
