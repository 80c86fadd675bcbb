# SPDX-License-Identifier: Apache-2.0
"""How `penstock demo` reads back what it sent: with Kafka's own console consumer, not with anything of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from penstock.cli._demo_data import Digester, PartitionDigest
from penstock.cli.options import CommandError
from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM

_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
_IDLE_MS = 15_000  # a consumer that finds no more records for so long gives up: then some are missing
_REPORT_EVERY = 5000  # lines
_PRINTED = ("partition", "offset", "headers", "key", "value")

OnLines = Callable[[int], None]  # how many lines were read so far


def read_topic(cluster: DevCluster, topic: str, count: int, on_lines: OnLines) -> dict[int, PartitionDigest]:
    """Read the first `count` records of a topic and digest what was printed.

    Raises:
        CommandError: the consumer failed, for another reason than that there are fewer records.
    """
    process = cluster.popen_tool(
        _CONSUMER,
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", str(_IDLE_MS)),
        *(word for name in _PRINTED for word in ("--formatter-property", f"print.{name}=true")),
    )
    try:
        digests = _digest_lines(process, on_lines)
        errors = process.stderr.read() if process.stderr is not None else ""
        if process.wait() != 0 and "TimeoutException" not in errors:
            raise CommandError(f"Kafka's console consumer failed on {topic}: {errors.strip()[-500:]}")
        return digests
    finally:
        # Also after Ctrl-C: no process stays behind.
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _digest_lines(process: subprocess.Popen[str], on_lines: OnLines) -> dict[int, PartitionDigest]:
    digester = Digester()
    for number, line in enumerate(process.stdout or (), start=1):
        mark, _, rest = line.rstrip("\n").partition("\t")
        partition = mark.removeprefix("Partition:")
        # What is no record, such as a complaint of the tool, belongs to no partition and makes the counts differ.
        digester.add(int(partition) if partition.isdigit() else -1, rest.encode("utf-8", "surrogateescape"))
        if number % _REPORT_EVERY == 0:
            on_lines(number)
    return digester.digests()


def end_offsets(cluster: DevCluster, pattern: str) -> dict[str, dict[int, int]]:
    """How many records each partition has of the topics that match, as the broker counts them.

    Raises:
        CommandError: the tool failed.
    """
    done = cluster.run_tool(
        _OFFSETS,
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic-partitions", pattern),
        jvm=QUICK_JVM,
    )
    if done.returncode != 0:
        raise CommandError(f"Kafka's offset tool failed: {done.stderr.strip()[-500:]}")
    found: dict[str, dict[int, int]] = {}
    for line in done.stdout.split():
        topic, partition, offset = line.rsplit(":", 2)
        found.setdefault(topic, {})[int(partition)] = int(offset)
    return found
