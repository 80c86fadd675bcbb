# SPDX-License-Identifier: Apache-2.0
"""The numbers of the producers in Spark's tasks: of one task, of all tasks of a batch, or of all batches of a run.

They are sent as values of JSON: in the message of a task to the driver, and in the file to which the driver appends a
line for each batch. Who reads them checks them, since another release, or anybody, may have written them.

Rules:
1. The number of fields is bounded, and so is each text: a message stays small whatever a task has sent.
2. Everything is a sum, a count for each bucket, or of the slowest task. So numbers can be added in any order.
3. Only a task that has ended well has numbers. What a failed attempt has sent is in no sum.
4. A task that has sent records, and whose numbers are missing or cannot be read, is counted as unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock._counted import counted
from penstock._json_fields import Fields, as_list, as_number, as_text

MILLION: Final = 1_000_000  # ratios are whole numbers: millionths
MOST_BUCKETS: Final = 42  # of the histogram of times, that above its last bound included
LONGEST_CAUSE: Final = 300
_MOST_REASONS = 16
_REASON = re.compile(r"[a-z][a-z-]{0,29}")
_LONGEST_CODEC = 20
_LARGEST = 2**60  # so that a sum of a few of them is a number of 64 bits, and none wraps anywhere


class Left(NamedTuple):
    """The batches that left for one reason.

    Attributes:
        records: in them.
        fill: the sizes over batch.size, added up, in millionths.
    """

    batches: int = 0
    records: int = 0
    fill: int = 0


class Slowest(NamedTuple):
    """The task that took longest: its time and records, and those of all tasks of its batch."""

    ms: int = 0
    records: int = 0
    all_ms: int = 0
    all_records: int = 0
    tasks: int = 0


@dataclass(slots=True)
class ProducerNumbers:
    """What producers did.

    Attributes:
        tasks: whose numbers these are.
        unknown: tasks that have sent records, too, and whose numbers are not known.
        ms: the time of the tasks, from their first row to their last acknowledgement, added up.
        memory_ms: of it, the time that they waited for memory of the producer.
        ack_ms: of it, the time that they waited for acknowledgements, after their last row.
        bytes: of batches, as they were sent; those that were sent again count again.
        sends: of batches; likewise.
        ratio: compressed size over the size before, added up over `sends`, in millionths.
        retries: records that were sent again.
        cause: why, the last time; None where nothing was, or where it is not known.
        left: the batches by the reason why they left, each once.
        latency: produce requests by the time to their answer: a count for each bucket.
        linger_ms: the option, and so are the next ones; None where it is not known.
    """

    tasks: int = 0
    unknown: int = 0
    ms: int = 0
    memory_ms: int = 0
    ack_ms: int = 0
    bytes: int = 0
    sends: int = 0
    ratio: int = 0
    retries: int = 0
    cause: str | None = None
    left: dict[str, Left] = field(default_factory=dict)
    latency: list[int] = field(default_factory=list)
    slowest: Slowest = field(default_factory=Slowest)
    linger_ms: int | None = None
    batch_size: int | None = None
    codec: str | None = None

    @property
    def batches(self) -> int:
        """How many left, each once."""
        return sum(left.batches for left in self.left.values())

    @property
    def records(self) -> int:
        """How many left, each once."""
        return sum(left.records for left in self.left.values())

    @property
    def fill(self) -> float | None:
        """How full batches were, 0 to 1; None without any."""
        fill = sum(left.fill for left in self.left.values())
        return fill / MILLION / self.batches if self.batches else None

    @property
    def compression(self) -> float | None:
        """Compressed size over the size before, the average of batches; None without any."""
        return self.ratio / MILLION / self.sends if self.sends else None

    @property
    def requests(self) -> int:
        """How many were answered."""
        return sum(self.latency)

    def latency_ms(self, fraction: float) -> float | None:
        """The time within which this part of the requests was answered; None without any."""
        from penstock.producer.io.metric_names import TIME_BOUNDS  # only code that shows numbers needs them

        wanted = fraction * self.requests
        seen = 0
        for at, count in enumerate(self.latency[: len(TIME_BOUNDS)]):
            if count and seen + count >= wanted:
                low, high = TIME_BOUNDS[at - 1] if at else 0.0, TIME_BOUNDS[at]
                return float(low + (high - low) * (wanted - seen) / count)
            seen += count
        return float(TIME_BOUNDS[-1]) if self.requests else None

    def add(self, other: ProducerNumbers) -> None:
        """Add numbers of other tasks; of a cause and an option the last one that is known stays."""
        self.tasks += other.tasks
        self.unknown += other.unknown
        self.ms += other.ms
        self.memory_ms += other.memory_ms
        self.ack_ms += other.ack_ms
        self.bytes += other.bytes
        self.sends += other.sends
        self.ratio += other.ratio
        self.retries += other.retries
        for reason, left in other.left.items():
            here = self.left.get(reason, Left())
            self.left[reason] = Left(*(one + more for one, more in zip(here, left, strict=True)))
        self.latency += [0] * (len(other.latency) - len(self.latency))
        for at, count in enumerate(other.latency):
            self.latency[at] += count
        self.slowest = max(self.slowest, other.slowest)
        self.cause = other.cause if other.cause is not None else self.cause
        self.linger_ms = other.linger_ms if other.linger_ms is not None else self.linger_ms
        self.batch_size = other.batch_size if other.batch_size is not None else self.batch_size
        self.codec = other.codec if other.codec is not None else self.codec

    def to_dict(self) -> dict[str, Any]:
        """The numbers as values of JSON."""
        return {
            "tasks": self.tasks,
            "unknown": self.unknown,
            "ms": self.ms,
            "memoryMs": self.memory_ms,
            "ackMs": self.ack_ms,
            "bytes": self.bytes,
            "sends": self.sends,
            "ratio": self.ratio,
            "retries": self.retries,
            "cause": self.cause,
            "left": {reason: list(left) for reason, left in self.left.items()},
            "latency": list(self.latency),
            "slowest": list(self.slowest),
            "lingerMs": self.linger_ms,
            "batchSize": self.batch_size,
            "codec": self.codec,
        }

    @classmethod
    def from_dict(cls, values: Any) -> ProducerNumbers:
        """Read what `to_dict` gave; fields of a later release are left out.

        Raises:
            ValueError: it is something else.
        """
        fields = Fields(values)
        cause, codec = fields.optional_text("cause"), fields.optional_text("codec")
        if len(cause or "") > LONGEST_CAUSE or len(codec or "") > _LONGEST_CODEC:
            raise ValueError("a text is longer than it may be")
        return cls(
            **{name: _amount(fields, json_name) for name, json_name in _AMOUNTS.items()},
            cause=cause,
            left=_left(fields.value("left")),
            latency=_amounts(fields.array("latency"), "latency", MOST_BUCKETS),
            slowest=_slowest(fields.array("slowest")),
            linger_ms=_optional_amount(fields, "lingerMs"),
            batch_size=_optional_amount(fields, "batchSize"),
            codec=codec,
        )

    def __str__(self) -> str:
        """One line, for a log."""
        if not self.tasks:
            return f"the numbers of {counted(self.unknown, 'task')} are not known"
        batches = counted(self.batches, "batch", "batches")
        parts = [
            f"{counted(self.tasks, 'task')} sent {counted(self.records, 'record')} in {batches}, {self.bytes:,} bytes"
        ]
        if self.fill is not None:
            parts.append(f"{percent(self.fill)} full ({self.reasons()})")
        if self.compression is not None and self.codec not in (None, "none"):
            parts.append(f"compressed by {self.codec} to {percent(self.compression)}")
        if self.retries:
            parts.append(
                f"{counted(self.retries, 'record')} sent again (last cause: {self.cause or 'not known'})"
            )
        half, most = self.latency_ms(0.5), self.latency_ms(0.99)
        if half is not None and most is not None:
            parts.append(f"half of the requests answered within {ms_text(half)}, 99 % within {ms_text(most)}")
        parts.append(
            f"waited {ms_text(self.memory_ms)} for memory and {ms_text(self.ack_ms)} for acknowledgements"
        )
        if self.slowest.all_ms:
            share = percent(self.slowest.ms / self.slowest.all_ms)
            parts.append(f"the slowest task took {ms_text(self.slowest.ms)}, {share} of the time of all")
        if self.unknown:
            parts.append(f"the numbers of {counted(self.unknown, 'further task')} are not known")
        return "; ".join(parts)

    def reasons(self) -> str:
        """Why batches left, the most frequent first: "linger 76 %, full 24 %"; empty without any."""
        batches = self.batches
        ordered = sorted(self.left.items(), key=lambda item: (-item[1].batches, item[0]))
        return ", ".join(
            f"{reason} {percent(left.batches / batches)}" for reason, left in ordered if left.batches
        )


_AMOUNTS = {
    "tasks": "tasks",
    "unknown": "unknown",
    "ms": "ms",
    "memory_ms": "memoryMs",
    "ack_ms": "ackMs",
    "bytes": "bytes",
    "sends": "sends",
    "ratio": "ratio",
    "retries": "retries",
}


def of_tasks(numbers: Iterable[ProducerNumbers], unknown: int = 0) -> ProducerNumbers:
    """The numbers of the tasks of one batch, added up.

    Args:
        unknown: how many tasks have sent records, too, and have no numbers.
    """
    total = ProducerNumbers(unknown=unknown)
    for one in numbers:
        total.add(one)
    slowest = total.slowest
    total.slowest = Slowest(slowest.ms, slowest.records, total.ms, total.records, total.tasks)
    return total


def _amount(fields: Fields, name: str) -> int:
    return fields.number(name, 0, _LARGEST)


def _optional_amount(fields: Fields, name: str) -> int | None:
    return None if fields.value(name) is None else _amount(fields, name)


def _amounts(values: Sequence[Any], name: str, most: int) -> list[int]:
    if len(values) > most:
        raise ValueError(f"{name} has {len(values)} values, and {most} at most are expected")
    return [as_number(value, name, 0, _LARGEST) for value in values]


def _left(values: Any) -> dict[str, Left]:
    if not isinstance(values, Mapping) or len(values) > _MOST_REASONS:
        raise ValueError(f"left is not an object of at most {_MOST_REASONS} reasons")
    found = {}
    for reason, numbers in values.items():
        if not _REASON.fullmatch(as_text(reason, "left")):
            raise ValueError(f"left has {reason[:40]!r} where a reason is expected")
        found[reason] = Left(
            *_amounts(as_list(numbers, "left", len(Left._fields)), "left", len(Left._fields))
        )
    return found


def _slowest(values: Any) -> Slowest:
    size = len(Slowest._fields)
    return Slowest(*_amounts(as_list(values, "slowest", size), "slowest", size))


# ---- words


def percent(share: float) -> str:
    """A part of something; what is more than nothing and less than all does not look like it."""
    rounded = math.floor(100 * share + 0.5)
    if share > 0 and rounded == 0:
        return "under 1 %"
    if share < 1 and rounded == 100:
        return "over 99 %"
    return f"{rounded} %"


def ms_text(milliseconds: float) -> str:
    """A time in the unit that suits it."""
    if milliseconds < 10 and milliseconds != int(milliseconds):
        return f"{milliseconds:.1f} ms"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:,.1f} min"
