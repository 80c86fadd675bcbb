# SPDX-License-Identifier: Apache-2.0
"""Reads a topic back with another client, as a read-committed consumer, and holds it against the journals.

The reader is librdkafka, which shares nothing with this package; every partition is read to the end that a reader of
everything sees, so that a transaction that was left open cannot hide what lies behind it.
"""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.journal import KnownState, SentNote, TransactionHistory

_READ_SECONDS = 240.0
_EXAMPLES = 20


@dataclass
class Findings:
    """What the log holds, against what it should hold; everything below `records` should be 0.

    Attributes:
        records: how many a read-committed reader sees.
        transactions: how many of them are whole and to be seen.
        lost: acknowledged, or committed, and not there.
        duplicated: there more than once.
        reordered: behind a record of the same process that was sent later.
        torn: transactions of which only a part can be seen.
        ghosts: transactions that can be seen although they were aborted, or never to be committed.
        misplaced: records that are not at the offset that was acknowledged.
        unknown: records that nobody has sent.
        examples: a few of each, for people.
    """

    records: int = 0
    transactions: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    torn: int = 0
    ghosts: int = 0
    misplaced: int = 0
    unknown: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def faultless(self) -> bool:
        return not (
            self.lost
            + self.duplicated
            + self.reordered
            + self.torn
            + self.ghosts
            + self.misplaced
            + self.unknown
        )

    def example(self, text: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


class _NumberedReader:
    """The records of one process in one partition, which are numbered from 0."""

    def __init__(self, where: str, found: Findings) -> None:
        self._where = where
        self._found = found
        self._next = 0
        self.missing: set[int] = set()
        self.offsets: array[int] = array("q")

    def see(self, number: int, offset: int) -> None:
        if number == self._next:
            self._next += 1
        elif number > self._next:
            self.missing.update(range(self._next, number))
            self._next = number + 1
        elif number in self.missing:
            self.missing.discard(number)
            self._found.reordered += 1
            self._found.example(f"{self._where}: {number} at offset {offset} comes after {self._next - 1}")
        else:
            self._found.duplicated += 1
            self._found.example(f"{self._where}: {number} again at offset {offset}")
            self._found.example(f"{self._where}: {number} was at offset {self.offsets[number]} before")
            return
        if number >= len(self.offsets):
            self.offsets.extend([-1] * (number + 1 - len(self.offsets)))
        self.offsets[number] = offset

    def absent(self, sent: int) -> set[int]:
        """The numbers below `sent` that were not seen."""
        return self.missing | set(range(self._next, sent))


class Checker:
    """Takes the records one by one, then says what is wrong.

    Args:
        plain: the notes of the processes without transactions, by name.
        transactional: the histories of the others, by name.
    """

    def __init__(
        self, plain: Mapping[str, SentNote], transactional: Mapping[str, TransactionHistory]
    ) -> None:
        self.found = Findings()
        self._plain = plain
        self._transactional = transactional
        self._numbered: dict[tuple[str, int], _NumberedReader] = {}
        self._seen: defaultdict[tuple[str, int], int] = defaultdict(int)  # bit i: record i was seen
        self._last: dict[tuple[str, int], tuple[int, int]] = {}

    def see(self, partition: int, offset: int, value: bytes) -> None:
        """A record, in the order of its partition."""
        self.found.records += 1
        words = value.rstrip(b".").split()
        name = words[0].decode() if words else ""
        if words and words[-1] == b"@%d" % partition:
            del words[-1]  # it is where it was sent to
        if name in self._plain and len(words) == 2:
            self._see_plain(name, partition, int(words[1]), offset)
        elif name in self._transactional and len(words) == 3:
            self._see_transactional(name, partition, (int(words[1]), int(words[2])), offset)
        else:
            self.found.unknown += 1
            self.found.example(f"partition {partition}, offset {offset}: {value[:40]!r}")

    def _see_plain(self, name: str, partition: int, number: int, offset: int) -> None:
        reader = self._numbered.get((name, partition))
        if reader is None:
            reader = _NumberedReader(f"{name}, partition {partition}", self.found)
            self._numbered[name, partition] = reader
        reader.see(number, offset)

    def _see_transactional(self, name: str, partition: int, place: tuple[int, int], offset: int) -> None:
        number, index = place
        bit = 1 << index
        if self._seen[name, number] & bit:
            self.found.duplicated += 1
            self.found.example(
                f"{name}: record {index} of transaction {number} again at {partition}-{offset}"
            )
            return
        self._seen[name, number] |= bit
        if place <= self._last.get((name, partition), (-1, -1)):
            self.found.reordered += 1
            self.found.example(f"{name}: {place} at {partition}-{offset} after {self._last[name, partition]}")
        else:
            self._last[name, partition] = place

    def conclude(self) -> Findings:
        """All records were seen."""
        for name, note in self._plain.items():
            for partition, sent in enumerate(note.sent):
                self._conclude_plain(name, partition, sent, note)
        for name, history in self._transactional.items():
            for number, transaction in history.transactions.items():
                whole = (1 << transaction.records) - 1
                self._conclude_transaction(name, number, transaction.state, whole)
        return self.found

    def _conclude_plain(self, name: str, partition: int, sent: int, note: SentNote) -> None:
        reader = self._numbered.get((name, partition)) or _NumberedReader(name, self.found)
        lost = reader.absent(sent) - set(note.failed.get(partition, ()))
        self.found.lost += len(lost)
        for number in sorted(lost)[:3]:
            self.found.example(f"{name}, partition {partition}: {number} of {sent} is lost")
        told = note.offsets[partition]
        for number, offset in enumerate(reader.offsets):
            if number >= sent:
                self.found.unknown += 1
            elif -1 not in (told[number], offset) and told[number] != offset:
                self.found.misplaced += 1
                self.found.example(
                    f"{name}, partition {partition}: {number} was acknowledged at {told[number]} and is at {offset}"
                )

    def _conclude_transaction(self, name: str, number: int, state: KnownState, whole: int) -> None:
        seen = self._seen[name, number]
        self.found.transactions += seen == whole
        if seen & ~whole:
            self.found.unknown += (seen & ~whole).bit_count()
        if state is KnownState.COMMITTED and seen != whole:
            self.found.lost += (whole & ~seen).bit_count()
            self.found.torn += seen != 0
            self.found.example(f"{name}: of transaction {number} (committed) {bin(seen)} is there")
        elif state in (KnownState.BEGUN, KnownState.ABORTED) and seen:
            self.found.ghosts += 1
            self.found.example(f"{name}: transaction {number} ({state.value}) can be seen")
        elif state is KnownState.COMMITTING and seen not in (0, whole):
            self.found.torn += 1
            self.found.example(f"{name}: transaction {number} (committing) is torn: {bin(seen)}")


def read_committed(servers: str, topic: str, partitions: int) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of every record that a read-committed consumer sees, in order per partition.

    Raises:
        TimeoutError: the end was not reached; perhaps a transaction is still open.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    ends = _end_offsets(servers, topic, partitions)
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": "chaos-check",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.queue.backoff.ms": 10,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    open_partitions = {number for number, end in ends.items() if end > 0}
    deadline = time.monotonic() + _READ_SECONDS
    try:
        while open_partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the ends {ends} were not reached in {sorted(open_partitions)}")
            for message in consumer.consume(10_000, 0.5):
                error = message.error()
                if error is None:
                    yield message.partition(), message.offset(), message.value()
                elif error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
                elif message.offset() >= ends[message.partition()]:
                    open_partitions.discard(message.partition())
    finally:
        consumer.close()


def _end_offsets(servers: str, topic: str, partitions: int) -> dict[int, int]:
    """Where the log of each partition ends, for a reader of everything."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "chaos-ends", "isolation.level": "read_uncommitted"}
    )
    try:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=20)[1]
            for number in range(partitions)
        }
    finally:
        consumer.close()
