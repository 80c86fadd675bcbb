# SPDX-License-Identifier: Apache-2.0
"""The order events of `penstock demo`: the files that the pipeline reads, and what must be in Kafka afterwards.

The pipeline `orders.toml` makes the events in SQL, from their numbers. Here the same is said a second time, in Python
and with nothing of the package: what each event's record must look like, which events are to be rejected, and the
partition that Kafka's hash of the key gives. Neither side knows of the other, so a mistake in one of them shows.

Keys, headers and values are plain ASCII without tabs and line ends: the consumer that reads them prints one line of
text for each record, with tabs in between, and with such data its text is exact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CUSTOMERS = 5000
FILES_PER_BATCH = 4  # as maxFilesPerTrigger in orders.toml
LARGEST_BATCH = 500_000
SMALLEST_COUNT_OF_BATCHES = 5  # one before, between and after the two kills

_LINE_ORDERS = 10_000  # one line of a file becomes so many rows
FIRST_MS = 1_767_225_600_000  # 2026-01-01 in UTC
_STEP_MS = 250


class Order(NamedTuple):
    """One event, and the record it must become."""

    customer: str
    sku: str
    quantity: int
    cents: int
    total: int
    timestamp_ms: int
    trace: str

    @property
    def rejected(self) -> bool:
        """Whether it breaks the expectation of the pipeline."""
        return self.quantity == 0


def order(number: int) -> Order:
    """The event with this number."""
    mixed = number * 2654435761 % 4294967296
    quantity = mixed // 5000 % 50
    cents = 199 + mixed // 250_000 % 9800
    return Order(
        customer=f"customer-{mixed % CUSTOMERS}",
        sku=f"pump-{mixed % 97}",
        quantity=quantity,
        cents=cents,
        total=quantity * cents,
        timestamp_ms=FIRST_MS + number * _STEP_MS,
        trace=f"{mixed:x}",
    )


def value_of(number: int, found: Order) -> str:
    """The value of the event's record."""
    return (
        f'{{"order_id":{number},"customer":"{found.customer}","sku":"{found.sku}","quantity":{found.quantity},'
        f'"cents":{found.cents},"total":{found.total}}}'
    )


def number_in(value: str) -> int:
    """The number of the event that a value names; -1 where it names none."""
    head, _, _ = value.partition(",")
    digits = head.removeprefix('{"order_id":')
    return int(digits) if digits.isdecimal() and digits.isascii() else -1


@dataclass(frozen=True)
class Batches:
    """How the events are divided among the micro-batches: as evenly as can be, in the order of their numbers."""

    events: int
    count: int

    @classmethod
    def of(cls, events: int) -> Batches:
        """As few batches of at most half a million events as the demo can do with."""
        return cls(events, max(SMALLEST_COUNT_OF_BATCHES, -(-events // LARGEST_BATCH)))

    def numbers(self, batch: int) -> range:
        """The events of a batch."""
        return range(self.events * batch // self.count, self.events * (batch + 1) // self.count)


def write_input(folder: Path, batches: Batches) -> None:
    """Write the files that the pipeline reads: in each line the first and the last number of a run of orders.

    A file source takes the oldest files first, so their times are set apart: then it is known which events are in which
    micro-batch.
    """
    folder.mkdir()
    for batch in range(batches.count):
        numbers = batches.numbers(batch)
        for part in range(FILES_PER_BATCH):
            first = len(numbers) * part // FILES_PER_BATCH
            last = len(numbers) * (part + 1) // FILES_PER_BATCH
            file = batch * FILES_PER_BATCH + part
            path = folder / f"till-{file:05d}.json"
            path.write_text("".join(_lines(numbers[first:last])), encoding="ascii")
            os.utime(path, (FIRST_MS // 1000 + file, FIRST_MS // 1000 + file))


def _lines(numbers: range) -> Iterator[str]:
    for start in range(0, len(numbers), _LINE_ORDERS):
        run = numbers[start : start + _LINE_ORDERS]
        yield json.dumps({"first": run[0], "last": run[-1]}) + "\n"


def customer_partitions(partitions: int) -> dict[str, int]:
    """The partition of each customer's key, as Kafka's clients place it."""
    names = (f"customer-{number}" for number in range(CUSTOMERS))
    return {name: (_murmur2(name.encode("ascii")) & 0x7FFFFFFF) % partitions for name in names}


def _murmur2(data: bytes) -> int:
    """The 32 bits of Kafka's hash of a key. The producer has its own; here it is written down a second time."""
    length, factor, mask = len(data), 0x5BD1E995, 0xFFFFFFFF
    result = 0x9747B28C ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        result = result * factor & mask ^ word
    if rest := data[whole:]:
        result = (result ^ int.from_bytes(rest, "little")) * factor & mask
    result = (result ^ result >> 13) * factor & mask
    return result ^ result >> 15
