# SPDX-License-Identifier: Apache-2.0
"""Numbers of producers: added up in any order, checked where they are read, and exact in words."""

from __future__ import annotations

import base64
import json
import logging
import pickle
from itertools import permutations
from typing import Any

import pytest

from penstock._events import ClientEvents
from penstock.producer.io.metric_names import LEAVING_REASONS, TIME_BOUNDS
from penstock.spark import partition_sender
from penstock.spark.partition_sender import PartitionSums, TaskMessage, TaskReport, numbers_of
from penstock.spark.producer_numbers import (
    LONGEST_CAUSE,
    MILLION,
    MOST_BUCKETS,
    Left,
    ProducerNumbers,
    Slowest,
    ms_text,
    of_tasks,
    percent,
)

# As it was written before there were such numbers: three rows, and no word of the producer.
OLD_MESSAGE = (
    "gASV6gAAAAAAAACMH3BlbnN0b2NrLnNwYXJrLnBhcnRpdGlvbl9zZW5kZXKUjAtUYXNrTWVzc2FnZZSTlCmBlH2UKIwGcmVwb3J0lGgAjApUYXNr"
    "UmVwb3J0lJOUKYGUTn2UKIwEcm93c5RLA4wFYnl0ZXOUSx6MDGRlYWRfbGV0dGVyc5RLAIwKcGFydGl0aW9uc5R9lIwGb3JkZXJzlH2USwBoAIwN"
    "UGFydGl0aW9uU3Vtc5STlCmBlE59lChoCksDjAplbmRfb2Zmc2V0lEsHdYaUYnNzdYaUYowHb3V0Y29tZZROjAdza2lwcGVklIl1Yi4="
)


def task(ms: int = 1000, records: int = 100, **changed: Any) -> ProducerNumbers:
    """The numbers of a task: four batches, one of them by linger."""
    return ProducerNumbers(
        **{
            "tasks": 1,
            "ms": ms,
            "memory_ms": 10,
            "ack_ms": 20,
            "bytes": 10 * records,
            "sends": 4,
            "ratio": MILLION,
            "left": {"full": Left(3, records - 1, 3 * MILLION), "linger": Left(1, 1, MILLION // 5)},
            "latency": [0, 0, 2, 2],
            "slowest": Slowest(ms, records, ms, records, 1),
            "linger_ms": 5,
            "batch_size": 16384,
            "codec": "zstd",
        }
        | changed
    )


def message(numbers: Any, rows: int = 100) -> TaskMessage:
    return TaskMessage(TaskReport(rows=rows, partitions={"t": {0: PartitionSums(rows)}}), numbers=numbers)


def test_the_numbers_of_tasks_add_up_in_any_order() -> None:
    parts = [
        task(),
        task(3000, 700, retries=7, cause="gone", latency=[1, 0, 0, 0, 5]),
        task(500, 1, left={"flush": Left(1, 1, MILLION)}, latency=[]),
    ]
    for order in permutations(parts):
        total = of_tasks(order)
        assert (total.tasks, total.unknown, total.ms, total.memory_ms, total.ack_ms) == (3, 0, 4500, 30, 60)
        assert (total.records, total.batches, total.bytes, total.sends) == (801, 9, 8010, 12)
        assert (total.retries, total.cause) == (7, "gone")
        assert total.left["full"] == Left(6, 798, 6 * MILLION)
        assert total.latency == [1, 0, 2, 2, 5]
        assert total.fill == pytest.approx((6 + 0.4 + 1) / 9)
        assert total.compression == pytest.approx(0.25)
        assert total.slowest == Slowest(3000, 700, 4500, 801, 3)


def test_the_slowest_task_of_a_run_is_told_with_its_own_batch() -> None:
    total = ProducerNumbers()
    for batch in ([task(3000), task(1000)], [task(2000), task(2000), task(2000)]):
        total.add(of_tasks(batch))
    assert total.tasks == 5
    assert total.slowest == Slowest(3000, 100, 4000, 200, 2)


def test_percentiles_come_from_all_tasks_together() -> None:
    slow, quick = [0] * 20, [0] * 20
    quick[3], slow[19] = 99, 1
    total = of_tasks([task(latency=quick), task(latency=slow)])
    assert total.requests == 100
    half, most, all_of_them = (total.latency_ms(part) for part in (0.5, 0.99, 1.0))
    assert half is not None
    assert most is not None
    assert TIME_BOUNDS[2] < half < most == TIME_BOUNDS[3]
    assert all_of_them == TIME_BOUNDS[19]
    above = task(latency=[0] * len(TIME_BOUNDS) + [1])
    assert above.latency_ms(0.5) == TIME_BOUNDS[-1]


def test_what_nobody_counted_is_not_zero() -> None:
    nothing = ProducerNumbers(tasks=1)
    assert (nothing.fill, nothing.compression, nothing.latency_ms(0.5)) == (None, None, None)


def test_the_histogram_has_a_bucket_for_each_bound() -> None:
    assert len(TIME_BOUNDS) + 1 == MOST_BUCKETS


def test_numbers_survive_their_way_through_json() -> None:
    numbers = of_tasks([task(cause="x", retries=1), task()], unknown=1)
    assert ProducerNumbers.from_dict(json.loads(json.dumps(numbers.to_dict()))) == numbers
    later = numbers.to_dict() | {"a field of a later release": [1]}
    assert ProducerNumbers.from_dict(later) == numbers


@pytest.mark.parametrize(
    "changed",
    [
        *(
            {name: value}
            for name in ("tasks", "ms", "bytes", "ratio")
            for value in (-1, 1.5, "1", True, None, 2**61)
        ),
        {"cause": 7},
        {"cause": "x" * (LONGEST_CAUSE + 1)},
        {"codec": "x" * 21},
        {"left": []},
        {"left": {"full": [1, 2]}},
        {"left": {"full": [1, 2, -3]}},
        {"left": {"<script>": [1, 2, 3]}},
        {"left": {f"a{'b' * number}": [1, 2, 3] for number in range(17)}},
        {"latency": [0] * (MOST_BUCKETS + 1)},
        {"latency": [0.5]},
        {"slowest": [1, 2, 3, 4]},
        {"lingerMs": -1},
        {"batchSize": "x"},
    ],
    ids=str,
)
def test_what_is_not_as_it_should_be_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ProducerNumbers.from_dict(task().to_dict() | changed)


@pytest.mark.parametrize("missing", task().to_dict())
def test_a_field_that_is_missing_is_refused(missing: str) -> None:
    values = task().to_dict()
    del values[missing]
    with pytest.raises(ValueError, match=missing):
        ProducerNumbers.from_dict(values)


def test_a_message_is_small_and_needs_no_class_of_ours() -> None:
    longest = task(
        cause="x" * LONGEST_CAUSE,
        left={reason: Left(2**50, 2**50, 2**50) for reason in LEAVING_REASONS},
        latency=[2**40] * MOST_BUCKETS,
    )
    sent = pickle.dumps(message(longest.to_dict()))
    assert len(sent) < 2000
    assert b"producer_numbers" not in sent  # a driver that does not know it can read the message


def test_a_message_of_an_older_release_is_read_and_its_numbers_are_not_known() -> None:
    old = pickle.loads(base64.b64decode(OLD_MESSAGE))
    assert (old.report.rows, old.numbers) == (3, None)
    total = numbers_of([message(task().to_dict()), old])
    assert total is not None
    assert (total.tasks, total.unknown, total.records) == (1, 1, 100)
    assert str(total).endswith("the numbers of 1 further task are not known")
    assert str(numbers_of([old, old])) == "the numbers of 2 tasks are not known"


def test_a_message_that_cannot_be_read_is_told_and_fails_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_sender, "_events", ClientEvents(""))  # nothing was told a moment ago
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        total = numbers_of([message(task().to_dict()), message(["what is this"]), message({})])
    assert total is not None
    assert (total.tasks, total.unknown) == (1, 2)
    (told,) = caplog.messages
    assert told.startswith("what the producers of 2 of 3 tasks say of their work cannot be read; of task 1: ")


def test_tasks_that_sent_nothing_have_no_numbers_and_are_not_missed() -> None:
    assert numbers_of([TaskMessage(), TaskMessage(TaskReport(rows=5), skipped=True)]) is None
    total = numbers_of([TaskMessage(), message(task().to_dict())])
    assert total is not None
    assert (total.tasks, total.unknown) == (1, 0)


def test_the_line_for_the_log() -> None:
    numbers = of_tasks([task(3000, retries=2, cause="the leader has moved"), task()])
    assert str(numbers) == (
        "2 tasks sent 200 records in 8 batches, 2,000 bytes; 80 % full (full 75 %, linger 25 %); compressed by zstd to "
        "25 %; 2 records sent again (last cause: the leader has moved); half of the requests answered within 0.2 ms, "
        "99 % within 0.4 ms; waited 20 ms for memory and 40 ms for acknowledgements; the slowest task took 3.0 s, 75 % "
        "of the time of all"
    )


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.001, "under 1 %"), (0.254, "25 %"), (0.999, "over 99 %"), (1, "100 %")],
)
def test_shares_are_readable(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (1.26, "1.3 ms"), (12.4, "12 ms"), (1500, "1.5 s"), (180_000, "3.0 min")],
)
def test_times_are_readable(ms: float, text: str) -> None:
    assert ms_text(ms) == text
