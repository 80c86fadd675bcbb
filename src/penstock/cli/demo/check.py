# SPDX-License-Identifier: Apache-2.0
"""Reads what `penstock demo` has written to Kafka, and compares it with what must be there: each event once, unchanged.

The topics are read with Kafka's own console consumer, read-committed, not with anything of ours. How far there is to
read cannot be told from offsets, because the markers of transactions have offsets too. So one more record is put behind
all others in each partition, and the consumer has read everything when it has met all of these. A transaction that was
left open holds a read-committed consumer back; then the ends are not met, and the demo says so.

Rules of the comparison:

1. It knows nothing of what the pipeline did, only the numbers of the events and `orders`.
2. Every record that is read counts: as an event of its topic, once or again, or as none of the events.
3. "Exactly once" is said only when nothing at all differs.
"""

from __future__ import annotations

import subprocess
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from penstock.cli.demo.orders import Order, customer_partitions, number_in, order, value_of
from penstock.cli.options import CommandError
from penstock.devbroker import DevCluster

_SHOWN = 3  # examples of what differs
_FIELDS = 5  # time, partition, headers, key and value

HeadersOf = Callable[[Order], str]


@dataclass(frozen=True)
class TopicFigures:
    """What was found in one topic."""

    topic: str
    expected: int
    read: int
    missing: int  # events of which there is no record
    duplicates: int  # records of events beyond the first of each
    strangers: int  # records that belong to no event, or to one of another topic
    misplaced: int  # in another partition than the key's
    changed: int  # with another key, value, header or time than the event's
    by_partition: Counter[int] = field(default_factory=Counter)
    examples: tuple[str, ...] = ()

    @property
    def exactly_once(self) -> bool:
        """Whether every event is there once, in its place and unchanged, and nothing else is."""
        differing = (self.missing, self.duplicates, self.strangers, self.misplaced, self.changed)
        return self.read == self.expected and not any(differing)


class TopicTally:
    """Takes the records of one topic, in any order, and counts.

    Args:
        topic: its name.
        partitions: how many it has.
        events: how many events there are, over all topics; they are numbered from 0.
        wanted: whether an event belongs to this topic.
        headers: the headers of an event's record, as the consumer prints them.
    """

    def __init__(
        self, topic: str, partitions: int, events: int, wanted: Callable[[Order], bool], headers: HeadersOf
    ) -> None:
        self.topic = topic
        self._partitions = customer_partitions(partitions)
        self._wanted = wanted
        self._headers = headers
        self._seen = array("H", bytes(2 * events))  # how often each event was met
        self._by_partition: Counter[int] = Counter()
        self._strangers = self._misplaced = self._changed = 0
        self._examples: list[str] = []

    def add(self, line: str) -> None:
        """Take the line that the consumer printed for a record."""
        fields = line.split("\t")
        number = number_in(fields[-1]) if len(fields) == _FIELDS else -1
        if not 0 <= number < len(self._seen):
            self._strangers += 1
            self._note(f"a record of no event: {line[:120]}")
            return
        time, partition, headers, key, value = fields
        found = order(number)
        self._seen[number] += 1
        self._by_partition[int(partition.removeprefix("Partition:"))] += 1
        if partition != f"Partition:{self._partitions[found.customer]}":
            self._misplaced += 1
            self._note(f"event {number} of {found.customer} is in the wrong partition: {partition}")
        if (
            value != value_of(number, found)
            or key != found.customer
            or headers != self._headers(found)
            or time != f"CreateTime:{found.timestamp_ms}"
        ):
            self._changed += 1
            self._note(f"event {number} is not as it was made: {line[:200]}")

    def figures(self) -> TopicFigures:
        """What was found; to be asked once, at the end."""
        expected = missing = duplicates = elsewhere = 0
        for number, count in enumerate(self._seen):
            if self._wanted(order(number)):
                expected += 1
                if count == 0:
                    missing += 1
                    self._note(f"event {number} is missing")
                elif count > 1:
                    duplicates += count - 1
                    self._note(f"event {number} is there {count} times")
            elif count:
                elsewhere += count
                self._note(f"event {number} does not belong into {self.topic}")
        return TopicFigures(
            self.topic,
            expected=expected,
            read=sum(self._by_partition.values()) + self._strangers,
            missing=missing,
            duplicates=duplicates,
            strangers=self._strangers + elsewhere,
            misplaced=self._misplaced,
            changed=self._changed,
            by_partition=self._by_partition,
            examples=tuple(self._examples),
        )

    def _note(self, text: str) -> None:
        if len(self._examples) < _SHOWN:
            self._examples.append(f"{self.topic}: {text}")


def exactly_once(found: Sequence[TopicFigures]) -> bool:
    """Whether all topics hold what they must, and no more."""
    return bool(found) and all(figures.exactly_once for figures in found)


def table(found: Sequence[TopicFigures]) -> str:
    """The figures, a line for each topic, and examples of what is not as it must be."""
    width = max(len("topic"), *(len(figures.topic) for figures in found))
    head = (
        f"{'topic':<{width}} {'expected':>10} {'read':>10} {'missing':>9} {'duplicates':>10} "
        f"{'strangers':>9} {'misplaced':>9} {'changed':>9}"
    )
    lines = [head]
    lines += [
        f"{one.topic:<{width}} {one.expected:>10,} {one.read:>10,} {one.missing:>9,} {one.duplicates:>10,} "
        f"{one.strangers:>9,} {one.misplaced:>9,} {one.changed:>9,}"
        for one in found
    ]
    lines += [f"  {example}" for one in found for example in one.examples]
    return "\n".join(lines)


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
