# SPDX-License-Identifier: Apache-2.0
"""What a producer process notes of its records, so that it can be held against the log afterwards.

A transactional process may be killed at any moment, so each of its lines is with the operating system before the next
step is taken. A process that is never killed writes once, at its end.
"""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class KnownState(Enum):
    """What is known of a transaction, by the last line about it."""

    BEGUN = "begun"  # nobody asked for a commit: nothing of it may be seen
    COMMITTING = "committing"  # a commit was asked for, its outcome was not told: all or nothing
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class TransactionNote:
    """A transaction in the journal."""

    records: int
    state: KnownState = KnownState.BEGUN
    seconds: float = 0.0


class TransactionJournal:
    """Written by the process: one line for each step of each transaction."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, number: int, state: KnownState, detail: object = "") -> None:
        """The transaction has come so far; `detail` is its number of records, then its seconds."""
        self.line(f"{state.value} {number} {detail}")

    def line(self, text: str) -> None:
        """One line, written at once."""
        os.write(self._file, text.encode() + b"\n")


@dataclass
class TransactionHistory:
    """Read back by the checker.

    Attributes:
        transactions: by number.
        troubles: errors that the process met, as texts.
    """

    transactions: dict[int, TransactionNote] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> TransactionHistory:
        history = cls()
        if not path.exists():
            return history
        for line in path.read_text(encoding="utf-8").splitlines():
            word, _, rest = line.partition(" ")
            if word == "trouble":
                history.troubles.append(rest)
                continue
            number, _, detail = rest.partition(" ")
            state = KnownState(word)
            if state is KnownState.BEGUN:
                history.transactions[int(number)] = TransactionNote(int(detail))
            else:
                note = history.transactions[int(number)]
                note.state = state
                note.seconds = float(detail or note.seconds)
        return history

    @property
    def last_number(self) -> int:
        """The youngest transaction; -1 without any."""
        return max(self.transactions, default=-1)


@dataclass
class SentNote:
    """What became of the records of a process without transactions.

    Attributes:
        sent: how many records went to each partition, numbered from 0.
        failed: the numbers of those that failed, by partition.
        errors: the same, by the error's text.
        longest_stall: seconds between two acknowledgements while something waited for one.
        offsets: where each acknowledged record is, by partition and number; -1 where that was not told.
    """

    sent: list[int]
    failed: dict[int, list[int]]
    errors: dict[str, int]
    longest_stall: float
    offsets: list[array[int]]

    def write(self, path: Path) -> None:
        """Write all of it to `path`, and the offsets beside it."""
        for partition, offsets in enumerate(self.offsets):
            path.with_suffix(f".{partition}.offsets").write_bytes(offsets.tobytes())
        values = {
            "sent": self.sent,
            "failed": self.failed,
            "errors": self.errors,
            "longest_stall": self.longest_stall,
        }
        path.write_text(json.dumps(values), encoding="ascii")

    @classmethod
    def read(cls, path: Path) -> SentNote:
        values = json.loads(path.read_text(encoding="ascii"))
        offsets = []
        for partition in range(len(values["sent"])):
            column: array[int] = array("q")
            column.frombytes(path.with_suffix(f".{partition}.offsets").read_bytes())
            offsets.append(column)
        failed = {int(partition): numbers for partition, numbers in values["failed"].items()}
        return cls(values["sent"], failed, values["errors"], values["longest_stall"], offsets)
