# SPDX-License-Identifier: Apache-2.0
"""What the application did and was told: every record, every transaction, every outcome."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from penstock.errors import KafkaError
from penstock.producer.batch._delivery_cy import Delivery
from penstock.types import RecordMetadata


class TxnEnd(enum.Enum):
    """How a transaction ended, as far as the application knows."""

    OPEN = "open"  # no end was ever asked for
    COMMITTED = "committed"
    ABORTED = "aborted"  # a commit was never asked for, or was refused and an abort followed
    UNKNOWN = "unknown"  # a commit was asked for, and no answer came


class Txn:
    """One transaction.

    Attributes:
        offset: the group's position that was made part of it; -1 when none was.
        detached: it was handed over, and ended from elsewhere while others went on.
    """

    __slots__ = ("detached", "end", "entries", "number", "offset")

    def __init__(self, number: int) -> None:
        self.number = number
        self.end = TxnEnd.OPEN
        self.entries: list[Entry] = []
        self.offset = -1
        self.detached = False


class Entry:
    """One record that was sent, or that was refused."""

    __slots__ = (
        "accepted", "appended", "calls", "delivery", "error", "headers", "key", "ledger", "number", "offset",
        "partition", "refused", "sender", "started", "told_in_loop", "topic", "txn", "value", "wanted",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, number: int, sender: int, size: int) -> None:
        self.ledger = ledger
        self.number = number
        self.sender = sender
        self.value = value_of(number, size)
        self.topic = ""
        self.key: bytes | None = None
        self.headers: tuple[tuple[str, bytes], ...] = ()
        self.wanted: int | None = None  # the partition that it was sent to, if not left to the producer
        self.txn: Txn | None = None
        self.accepted = False
        self.refused: BaseException | None = None
        self.delivery: Delivery | None = None
        self.calls = 0
        self.told_in_loop = 0  # likewise, where callbacks run in loops
        self.error: KafkaError | None = None
        self.partition = -1
        self.offset = -1
        self.started = 0.0  # when send() was called
        self.appended = 0.0  # when the record was in a batch

    def on_delivery(self, metadata: RecordMetadata, error: Any) -> None:
        self.calls += 1
        self.error = error
        self.partition = metadata.partition
        self.offset = metadata.offset
        self.ledger.on_outcome(self)

    @property
    def acknowledged(self) -> bool:
        return self.calls > 0 and self.error is None

    def __str__(self) -> str:
        return f"record {self.number} of sender {self.sender}"


class Ledger:
    """All records and transactions of a seed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.txns: list[Txn] = []
        self.accepted = 0
        self.on_outcome: Callable[[Entry], None] = lambda entry: None

    def new_entry(self, sender: int, size: int) -> Entry:
        entry = Entry(self, len(self.entries), sender, size)
        self.entries.append(entry)
        return entry

    def accept(self, entry: Entry, delivery: Delivery) -> None:
        entry.accepted = True
        entry.delivery = delivery
        self.accepted += 1
        if entry.txn is not None:
            entry.txn.entries.append(entry)

    def new_txn(self) -> Txn:
        txn = Txn(len(self.txns))
        self.txns.append(txn)
        return txn


def value_of(number: int, size: int) -> bytes:
    """A value that tells which record it is, and in which every byte is known."""
    head = b"%d:" % number
    return head + bytes([65 + number % 26]) * max(0, size - len(head))


def number_of(value: bytes) -> int:
    return int(value.partition(b":")[0])
