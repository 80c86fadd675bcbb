# SPDX-License-Identifier: Apache-2.0
"""What the producers of a pipeline's tasks did, in words: for the live view, the summary and the report.

A number that is not known is a dash, never a zero. The advice that follows from the numbers is one sentence: the one
that matters most, the glass box's own or one that is true for Spark alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock._counted import counted
from penstock.spark.pipeline.stats import RunStats, bytes_text, count_text
from penstock.spark.producer_numbers import ProducerNumbers, Slowest, ms_text, percent

# From these on a number is worth a sentence; the others are those of the glass box.
_MUCH_WAITING = 0.1  # part of the tasks' time that they waited for memory
_LONG_TASK_MS = 1000
_SKEWED = 2.0  # times its part of the time, if all tasks took the same

_UNKNOWN = "-"


class Row(NamedTuple):
    """One number, with its unit, and what there is to say of it."""

    label: str
    value: str
    note: str = ""


def producer_rows(stats: RunStats) -> list[Row]:
    """The numbers of all tasks; none as long as the sink has not said any."""
    numbers = stats.producers
    if numbers is None:
        return []
    if not numbers.tasks:
        return [Row("tasks", _UNKNOWN, _unknown_text(numbers))]
    again = "record" if numbers.retries == 1 else "records"
    if numbers.retries:
        share = percent(min(1.0, numbers.retries / numbers.records)) if numbers.records else "-"
        again += f", {share} of those sent; last error: {_cause(stats, numbers)}"
    half, most = numbers.latency_ms(0.5), numbers.latency_ms(0.99)
    rows = [
        Row("tasks", count_text(numbers.tasks), slowest_text(numbers.slowest)),
        Row("records sent", count_text(numbers.records), "dead letters included"),
        Row("bytes sent", bytes_text(numbers.bytes), "in batches, as they were sent"),
        Row("batches", count_text(numbers.batches), batches_text(numbers)),
        Row("compression", compression_text(numbers), compression_note(numbers)),
        Row("sent again", count_text(numbers.retries), again),
        Row(
            "request time",
            time_text(most),
            f"for 99 % of {counted(numbers.requests, 'request')}; {time_text(half)} for half of them"
            if numbers.requests
            else "no request was answered",
        ),
        Row("memory wait", ms_text(numbers.memory_ms), _of_time(numbers, numbers.memory_ms)),
        Row("ack wait", ms_text(numbers.ack_ms), _of_time(numbers, numbers.ack_ms, ", after their last row")),
    ]
    if numbers.unknown:
        rows.append(Row("not known", count_text(numbers.unknown), _unknown_text(numbers)))
    return rows


def short_text(numbers: ProducerNumbers) -> str:
    """The numbers in a line that is not long."""
    if not numbers.tasks:
        return _unknown_text(numbers)
    parts = [counted(numbers.tasks, "task"), f"{counted(numbers.batches, 'batch', 'batches')}"]
    if numbers.fill is not None:
        parts[-1] += f" {percent(numbers.fill)} full ({numbers.reasons()})"
    most = numbers.latency_ms(0.99)
    if most is not None:
        parts.append(f"99 % of requests within {ms_text(most)}")
    if numbers.retries:
        parts.append(f"{counted(numbers.retries, 'record')} sent again")
    if numbers.memory_ms:
        parts.append(f"{ms_text(numbers.memory_ms)} waited for memory")
    if numbers.unknown:
        parts.append(f"{counted(numbers.unknown, 'task')} not known")
    return ", ".join(parts)


def producer_note(stats: RunStats) -> str:
    """Of which tasks the numbers are, and of which they are not."""
    words = (
        "Numbers of the tasks that ended well, of committed batches. An attempt that failed, or whose task another "
        "attempt has done, has left none."
    )
    if stats.outcome in ("failed", "stopped"):
        words += " So there are none of a batch that came to no end."
    return words


def advice(stats: RunStats) -> str | None:
    """The sentence that matters most; None where nothing is to be said."""
    numbers = stats.producers
    return None if numbers is None or not numbers.tasks else next(_advice(stats, numbers), None)


def _advice(stats: RunStats, numbers: ProducerNumbers) -> Iterator[str]:
    from penstock.watching.glass_box.advice import LOW_FILL, MANY, RETRIED, SOME_BATCHES, about_leaving

    if numbers.retries > RETRIED * max(1, numbers.records):
        share = percent(min(1.0, numbers.retries / max(1, numbers.records)))
        yield (
            f"{counted(numbers.retries, 'record')} {'was' if numbers.retries == 1 else 'were'} sent again, {share} of "
            "those sent. The last cause: "
            f"{_cause(stats, numbers)}"
        )
    if numbers.ms and numbers.memory_ms >= _MUCH_WAITING * numbers.ms:
        yield (
            f"Tasks waited {percent(numbers.memory_ms / numbers.ms)} of their time for memory: brokers are slower than "
            "Spark. Look at the brokers, or let fewer tasks write at a time; a larger kafka.buffer.memory helps with "
            "bursts only."
        )
    slow = numbers.slowest
    if slow.tasks > 2 and slow.ms >= _LONG_TASK_MS and slow.ms * slow.tasks >= _SKEWED * slow.all_ms:
        yield (
            f"One task took {percent(slow.ms / slow.all_ms)} of the time of the {slow.tasks} tasks of its batch, with "
            f"{percent(slow.records / slow.all_records) if slow.all_records else _UNKNOWN} of the records: spread the "
            "rows evenly (repartition) before they are written."
        )
    flush = numbers.left.get("flush")
    if flush is not None and numbers.batches >= SOME_BATCHES:
        fill = flush.fill / 1e6 / flush.batches if flush.batches else 1.0
        if flush.batches >= MANY * numbers.batches and fill < LOW_FILL:
            yield (
                f"{percent(flush.batches / numbers.batches)} of batches leave because their task has no more rows, "
                f"{percent(fill)} full: fewer partitions of the DataFrame (coalesce), or larger micro-batches (a "
                "longer trigger), would mean fewer and larger requests."
            )
    if numbers.linger_ms is not None and numbers.batch_size is not None:
        state = {
            "leaving": [
                {
                    "reason": reason,
                    "batches": left.batches,
                    "share": left.batches / numbers.batches,
                    "fill": left.fill / 1e6 / left.batches,
                }
                for reason, left in numbers.left.items()
                if left.batches and reason != "flush"  # see above: each task flushes once, and has to
            ],
            "options": {"linger.ms": numbers.linger_ms, "batch.size": numbers.batch_size},
            "counts": {"partitions": len(stats.partitions)},
        }
        yield from (said.text for said in about_leaving(state))


# ---- single numbers, in words


def slowest_text(slowest: Slowest) -> str:
    """How long the slowest task took, and how much of its batch that was."""
    if not slowest.tasks:
        return ""
    took = f"the slowest took {ms_text(slowest.ms)}"
    if slowest.tasks == 1 or not slowest.all_ms:
        return took
    return f"{took}, {percent(slowest.ms / slowest.all_ms)} of the time of the {slowest.tasks} tasks of its batch"


def batches_text(numbers: ProducerNumbers) -> str:
    """How full batches were, and why they left."""
    return "" if numbers.fill is None else f"{percent(numbers.fill)} full; left by {numbers.reasons()}"


def compression_text(numbers: ProducerNumbers) -> str:
    """What a compressed batch is of its size before; a dash where nothing was compressed."""
    if numbers.compression is None or numbers.codec in (None, "none"):
        return _UNKNOWN
    return percent(numbers.compression)


def compression_note(numbers: ProducerNumbers) -> str:
    """What the number before is of."""
    if numbers.codec == "none":
        return "kafka.compression.type=none"
    return "" if numbers.codec is None else f"of the size before, by {numbers.codec}"


def time_text(milliseconds: float | None) -> str:
    """A time; a dash for one that is not known."""
    return _UNKNOWN if milliseconds is None else ms_text(milliseconds)


def _of_time(numbers: ProducerNumbers, milliseconds: int, more: str = "") -> str:
    if not numbers.ms:
        return f"over all tasks{more}"
    return f"over all tasks, {percent(min(1.0, milliseconds / numbers.ms))} of their time{more}"


def _cause(stats: RunStats, numbers: ProducerNumbers) -> str:
    return "not known" if numbers.cause is None else " ".join(stats.pipeline.hide(numbers.cause).split())


def _unknown_text(numbers: ProducerNumbers) -> str:
    tasks = counted(numbers.unknown, "task" if not numbers.tasks else "further task")
    return f"the numbers of {tasks} are not known: do the workers have the version of the driver?"
