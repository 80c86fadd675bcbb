# SPDX-License-Identifier: Apache-2.0
"""An open transaction as a value: enough to end it from any process.

A handle is made when a producer detaches its transaction. It may be pickled, written down as JSON, and used as often as
it takes. Two rules are its maker's to keep, and everything that is done with handles stands on them:

1. One (transactional id, producer id, epoch) carries at most one detached transaction. Before Kafka's newer transaction
   protocol a commit does not change the epoch, so a late repetition would commit whatever came next.
2. Every EndTxn of a handle is sent in the version the handle was made with: the protocols answer differently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from penstock._counted import counted

FORMAT = 1

_INT16_MAX, _INT32_MAX, _INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
_MAX_SHOWN = 60  # characters of a wrong value in an error

# Of each number, the smallest and the largest value; -1 is "none" where it is allowed.
_RANGES = {
    "producer_id": (0, _INT64_MAX),
    "producer_epoch": (0, _INT16_MAX),
    "end_txn_version": (0, _INT16_MAX),
    "partition": (-1, _INT32_MAX),
    "offset": (-1, _INT64_MAX),
    "record_count": (0, _INT64_MAX),
    "timeout_ms": (1, _INT32_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TransactionHandle:
    """A transaction that was left open.

    Attributes:
        transactional_id: whose it is.
        producer_id: the id that the coordinator gave to that name.
        producer_epoch: which of the producers with that name.
        end_txn_version: the version of EndTxn in which it must be ended.
        topic: where its first acknowledged batch is, or None; the control record behind it tells how it ended.
        partition: likewise, or -1.
        offset: likewise, the offset of that batch, or -1.
        record_count: how many records were acknowledged.
        timeout_ms: the age at which the coordinator aborts it.
        empty: nothing was ever added to it, so there is nothing to end.

    Raises:
        ValueError: a value cannot be; the text names the field.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    end_txn_version: int
    topic: str | None = None
    partition: int = -1
    offset: int = -1
    record_count: int = 0
    timeout_ms: int
    empty: bool = False

    def __post_init__(self) -> None:
        _check_text("transactional_id", self.transactional_id)
        if self.topic is not None:
            _check_text("topic", self.topic)
        for name, (smallest, largest) in _RANGES.items():
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or not smallest <= number <= largest:
                raise _wrong(name, f"an int from {smallest} to {largest}", number)
        _check_bool("empty", self.empty)
        if self.topic is None and (self.partition, self.offset) != (-1, -1):
            raise ValueError("TransactionHandle.topic: without a topic there is no partition and no offset")
        if self.topic is not None and self.partition < 0:
            raise ValueError(
                f"TransactionHandle.partition: topic {self.topic!r} is given without a partition"
            )
        if self.empty and (self.record_count or self.topic is not None):
            raise ValueError("TransactionHandle.empty: an empty transaction has no records")

    @property
    def has_place(self) -> bool:
        """Whether it is known where in a log to look for its end."""
        return self.topic is not None and self.offset >= 0

    def to_json(self) -> str:
        """The handle as one line of JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({"format": FORMAT, **values}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> TransactionHandle:
        """Read what `to_json` wrote, by this release or a later one that added fields.

        Raises:
            ValueError: the text is no JSON object, a field is missing or wrong (the text names it), or the format is
                one that this release does not know.
        """
        try:
            values = json.loads(text)
        except ValueError as error:  # also what is not UTF-8
            raise ValueError(f"not the JSON of a TransactionHandle: {error}") from error
        except RecursionError:
            raise ValueError("not the JSON of a TransactionHandle: it is nested too deeply") from None
        if not isinstance(values, dict):
            found = type(values).__name__
            raise ValueError(f"not the JSON of a TransactionHandle: {found} instead of an object")  # noqa: TRY004
        written_as = values.get("format")
        if written_as != FORMAT or isinstance(written_as, bool):
            newer = isinstance(written_as, int) and written_as > FORMAT
            why = "it was written by a newer release" if newer else "is this the JSON of a handle?"
            raise ValueError(f"TransactionHandle.format: {written_as!r} is not {FORMAT}: {why}")
        known = [field.name for field in fields(cls)]
        for name in known:
            if name not in values:
                raise ValueError(f"TransactionHandle.{name}: missing")
        return cls(**{name: values[name] for name in known})

    def __repr__(self) -> str:
        if self.empty:
            content = "empty"
        elif self.topic is None:
            content = f"{counted(self.record_count, 'record')}, place not known"
        else:
            offset = "an offset not known" if self.offset < 0 else f"offset {self.offset}"
            content = f"{counted(self.record_count, 'record')} from {self.topic}-{self.partition}, {offset}"
        return (
            f"<TransactionHandle {self.transactional_id}: producer {self.producer_id} epoch {self.producer_epoch}, "
            f"{content}, EndTxn v{self.end_txn_version}, time-out {self.timeout_ms} ms>"
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(name, "a text that is not empty", value)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, "a bool", value)


def _wrong(name: str, wanted: str, value: Any) -> ValueError:
    shown = repr(value)
    if len(shown) > _MAX_SHOWN:  # somebody else may have written it
        shown = f"{shown[:_MAX_SHOWN]}..."
    return ValueError(f"TransactionHandle.{name}: must be {wanted}, not {shown}")
