# SPDX-License-Identifier: Apache-2.0
"""How `penstock demo` reads the topics: with Kafka's own console consumer, read-committed, not with anything of ours.

How far there is to read cannot be told from offsets, because the marks of transactions have offsets too. So one more
record is put behind all others in each partition, and the consumer has read everything when it has met all of these.
A transaction that was left open holds a read-committed consumer back; then the ends are not met, and the demo says so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from penstock.cli.demo.compare import TopicTally
from penstock.cli.options import CommandError
from penstock.devbroker import DevCluster

_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_IDLE_MS = 60_000  # a consumer that finds no more records for so long gives up: then something holds it back
_REPORT_EVERY = 5000  # lines
_PRINTED = ("timestamp", "partition", "headers", "key", "value")
_END = "the end of the demo"

OnLines = Callable[[int], None]  # how many lines were read so far


def mark_ends(bootstrap_servers: str, topics: Mapping[str, int]) -> None:
    """Put the last record into each partition of the topics, which are given with their numbers of partitions.

    Raises:
        KafkaError: one was not delivered.
    """
    from penstock import Producer

    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        deliveries = [
            producer.send(topic, _END.encode("ascii"), partition=partition)
            for topic, partitions in topics.items()
            for partition in range(partitions)
        ]
        for delivery in deliveries:
            delivery.result(30)


def read_topics(cluster: DevCluster, wanted: Iterable[tuple[TopicTally, int]], on_lines: OnLines) -> None:
    """Read topics to their marked ends and let the tallies count.

    Args:
        cluster: where they are.
        wanted: for each topic its tally and its number of partitions.
        on_lines: is told how many records were read so far.

    Raises:
        CommandError: a consumer did not come to the end.
    """
    with ExitStack() as stack:
        # All start now, and the first is read first; those behind it wait in their pipes.
        running = [
            (tally, partitions, stack.enter_context(_consumer(cluster, tally.topic)))
            for tally, partitions in wanted
        ]
        count = 0
        for tally, partitions, process in running:
            for line in _lines_before_ends(process, tally.topic, partitions):
                tally.add(line)
                count += 1
                if count % _REPORT_EVERY == 0:
                    on_lines(count)


@contextmanager
def _consumer(cluster: DevCluster, topic: str) -> Iterator[subprocess.Popen[str]]:
    process = cluster.popen_tool(
        _CONSUMER,
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", str(_IDLE_MS)),
        *(word for name in _PRINTED for word in ("--formatter-property", f"print.{name}=true")),
    )
    try:
        yield process
    finally:
        # Also after Ctrl-C: no process stays behind.
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _lines_before_ends(process: subprocess.Popen[str], topic: str, partitions: int) -> Iterator[str]:
    """The lines of all records but the ends; returns when each partition's end was met."""
    ends: set[str] = set()
    for line in process.stdout or ():
        text = line.rstrip("\n")
        if not text.endswith(_END):
            yield text
            continue
        ends.add(text.split("\t")[1])
        if len(ends) == partitions:
            return
    errors = process.stderr.read().strip() if process.stderr is not None else ""
    if "TimeoutException" in errors:
        raise CommandError(
            f"{topic}: a read-committed consumer met the ends of {len(ends)} of {partitions} partitions only and found "
            f"nothing more for {_IDLE_MS // 1000} s: a transaction is still open there"
        )
    raise CommandError(f"Kafka's console consumer failed on {topic}: {errors[-500:]}")
