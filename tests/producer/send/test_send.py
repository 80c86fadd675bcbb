# SPDX-License-Identifier: Apache-2.0
"""The fast path of send(): what it takes, and what it leaves to the send path."""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import pytest
from producer.fakes_core import TIME, TOPIC, Core, no_new_batch, record_size, records, value_for

from penstock._primitives_cy import partition_for_key
from penstock.errors import KafkaError
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.send._send_cy import FastPath
from penstock.records.format import HEADER_SIZE, estimate_record_size
from penstock.records.reader import read_batches
from penstock.types import Header, RecordMetadata, as_headers

VALUE = bytes(92)  # with its overhead, a record of 101 bytes
SIZE = record_size(VALUE)


def opened(**options: Any) -> Core:
    """A core with an open batch in partition 0."""
    core = Core(**options)
    core.append(b"first")
    core.wakeups = 0
    return core


def test_the_fast_path_appends_to_an_open_batch():
    core = opened()
    seen: list[Any] = []
    delivery = core.fast(b"v", key=b"key", on_delivery=lambda *told: seen.append(told))
    assert delivery is not None
    [batch] = core.drain()
    assert [record[2:4] for record in records(batch)] == [(None, b"first"), (b"key", b"v")]
    core.acknowledge(batch, 30)
    assert delivery.result(0) == RecordMetadata(TOPIC, 0, 31, TIME, 3, 1)
    assert seen == [(delivery.result(0), None)]


def test_the_fast_path_takes_the_time_from_the_system():
    core = opened()
    path = FastPath(core.accumulator.topics, 10_000, True, None, lambda: None, no_new_batch)
    path.enabled = True
    before = time.time() * 1000 - 1
    delivery = path.try_send(TOPIC, b"v", None, None, 0, None, None)
    core.acknowledge(core.drain()[0])
    assert before <= delivery.result(0).timestamp <= time.time() * 1000


@pytest.mark.parametrize(
    "headers", [[], (), [("h", b"1")], (Header("h", None), Header("\u00e9", b"")), {"h": b"1"}]
)
def test_headers_and_timestamps_take_the_fast_path(headers):
    core = opened()
    assert core.fast_path.try_send(TOPIC, b"v", b"k", headers, 0, 17, None) is not None
    [batch] = core.drain()
    *_, record = next(read_batches(bytes(batch.wire))).records()
    assert (record.timestamp, tuple(record.headers)) == (17, as_headers(headers))


def released() -> memoryview:
    view = memoryview(b"v")
    view.release()
    return view


UNUSUAL: list[tuple[str, tuple[Any, ...]]] = [
    # topic, value, key, headers, partition, timestamp, on_delivery
    ("unknown topic", ("other", b"v", None, None, 0, None, None)),
    ("text value", (TOPIC, "v", None, None, 0, None, None)),
    ("view that was released", (TOPIC, released(), None, None, 0, None, None)),
    ("text key", (TOPIC, b"v", "k", None, 0, None, None)),
    ("header of a mapping of another type", (TOPIC, b"v", None, {"h": "1"}, 0, None, None)),
    ("header that is no pair", (TOPIC, b"v", None, [("h", b"1", b"2")], 0, None, None)),
    ("header name of another type", (TOPIC, b"v", None, [(b"h", b"1")], 0, None, None)),
    ("header value of another type", (TOPIC, b"v", None, [("h", "1")], 0, None, None)),
    ("headers too large", (TOPIC, b"v", None, [("h", bytes(1500))], 0, None, None)),
    ("negative timestamp", (TOPIC, b"v", None, None, 0, -1, None)),
    ("huge timestamp", (TOPIC, b"v", None, None, 0, 2**63, None)),
    ("timestamp of another type", (TOPIC, b"v", None, None, 0, True, None)),
    ("partition beyond", (TOPIC, b"v", None, None, 1, None, None)),
    ("negative partition", (TOPIC, b"v", None, None, -1, None, None)),
    ("partition of another type", (TOPIC, b"v", None, None, True, None, None)),
    ("huge partition", (TOPIC, b"v", None, None, 2**70, None, None)),
    ("callback that cannot be called", (TOPIC, b"v", None, None, 0, None, 7)),
    ("too large", (TOPIC, bytes(2000), None, None, 0, None, None)),
    ("no sticky partition yet", (TOPIC, b"v", None, None, None, None, None)),
]


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in UNUSUAL])
def test_whatever_is_unusual_is_left_alone(call):
    core = opened(max_request_size=1500)
    batch, _ = core.queue().head()
    before = (batch.record_count, batch.writer.raw_size, core.pool.available(), core.topic().used)
    assert core.fast_path.try_send(*call) is None
    assert (batch.record_count, batch.writer.raw_size, core.pool.available(), core.topic().used) == before
    assert batch.result.callbacks == []
    assert core.wakeups == 0
    assert core.fast(b"next") is not None  # and the batch is still open


def test_a_batch_without_room_is_closed_and_takes_nothing():
    core = opened(max_request_size=1500)
    batch, _ = core.queue().head()
    before = (batch.record_count, batch.writer.raw_size, core.pool.available(), core.topic().used)
    assert core.fast_path.try_send(TOPIC, bytes(1024), None, None, 0, None, None) is None
    assert (batch.record_count, batch.writer.raw_size, core.pool.available(), core.topic().used) == before
    assert batch.result.callbacks == []
    assert core.wakeups == 0
    assert core.queue().head() == (batch, True)
    assert core.fast(b"next") is None


def test_a_fast_path_that_is_switched_off_does_nothing():
    core = opened()
    core.fast_path.enabled = False
    assert core.fast(b"v") is None


def test_the_fast_path_does_not_append_to_a_partition_that_was_just_left():
    core = Core([1, 1])
    for partition in range(2):
        core.append(b"open", partition)
    topic = core.topic()
    topic.sticky_partition = 0

    def another_thread_moves_on() -> int:
        topic.sticky_partition = 1
        return TIME

    path = FastPath(
        core.accumulator.topics, 10_000, True, another_thread_moves_on, lambda: None, no_new_batch
    )
    path.enabled = True
    assert path.try_send(TOPIC, b"v", None, None, None, None, None) is None
    assert [batch.record_count for batch in core.drain()] == [1, 1]


def test_the_fast_path_opens_no_batch():
    core = Core()
    core.topic()
    assert core.fast(b"v") is None
    core.append(b"v")
    core.drain()
    assert core.fast(b"v") is None


def test_the_fast_path_ends_with_the_close():
    core = opened()
    core.accumulator.close()
    assert core.fast(b"v") is None
    [batch] = core.drain()
    assert batch.record_count == 1


@pytest.mark.parametrize("extra", range(-12, 2))
def test_the_fast_path_accepts_nothing_that_the_size_check_would_refuse(extra):
    core = opened(max_request_size=500, batch_size=4096)
    value = bytes(500 - estimate_record_size(3, 0) + extra)
    accepted = core.fast(value, key=b"key") is not None
    assert not accepted or estimate_record_size(3, len(value)) <= 500


def test_the_fast_path_wakes_the_sender_when_the_batch_is_full():
    third = value_for((1024 - HEADER_SIZE) // 3)
    core = Core(linger_ms=1000)
    core.append(third)
    core.wakeups = 0
    core.fast(third)
    assert core.wakeups == 0
    core.fast(third)
    assert core.queue().head()[1]
    assert core.wakeups == 1


def with_new_batches(core: Core) -> Core:
    """Let the fast path of a core open batches, as a producer's does."""
    core.fast_path = FastPath(
        core.accumulator.topics,
        1024 * 1024,
        True,
        lambda: TIME,
        core._woken,
        core.accumulator.appender.append_now,
    )
    core.fast_path.enabled = True
    return core


def test_a_batch_behind_full_ones_wakes_nobody():
    core = with_new_batches(Core(linger_ms=1000))
    core.topic()
    half = value_for((1024 - HEADER_SIZE) // 2)
    for _ in range(4):
        core.fast(half)
    assert core.queue().depth() == 2
    core.wakeups = 0
    for _ in range(4):
        core.fast(half)
    assert core.queue().depth() == 4
    assert core.wakeups == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_becomes_ready_wakes_the_sender(seed):
    """A full batch need not linger, in whichever partition it is, and wherever records go next."""
    core = with_new_batches(Core([1, 2, 3], linger_ms=1000, seed=seed))
    core.topic()
    core.append(b"first", None)
    rng = random.Random(seed)
    for _ in range(300):
        before = set(core.ready_ids())
        core.wakeups = 0
        size = rng.choice([20, 90, 300, 700])
        assert core.fast(bytes(size), rng.choice([None, None, None, 0, 1, 2])) is not None
        if set(core.ready_ids()) - before:
            assert core.wakeups
        if rng.random() < 0.2:
            for batch in core.drain():
                core.acknowledge(batch)


def test_keys_choose_the_partition():
    core = Core([1, 1, 1])
    for partition in range(3):
        core.append(b"open", partition)
    for number in range(20):
        key = b"key-%d" % number
        core.fast(key, None, key=key)
    for batch in core.drain():
        for record in records(batch)[1:]:
            assert partition_for_key(record.key, 3) == batch.queue.partition


@pytest.mark.parametrize("seed", range(12))
def test_the_fast_path_and_the_general_path_make_the_same_batches(seed):
    """The bytes on the wire do not tell which path a record took."""
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "leaders": [1, 2, 1],
        "batch_size": rng.choice([300, 1000]),
        "compression": rng.choice(["none", "lz4", "gzip"]),
        "linger_ms": 5,
        "seed": seed,
    }
    fast, general = Core(**options), Core(**options)
    deliveries: list[tuple[Delivery, Delivery]] = []
    told: tuple[list[Any], list[Any]] = ([], [])
    sent: tuple[list[Any], list[Any]] = ([], [])
    taken_fast = 0

    def deliver(core: Core, into: list[Any]) -> None:
        core.now += 0.01
        for batch in core.drain_all():
            into.append((batch.topic_partition, bytes(batch.sealed_bytes())))
            core.acknowledge(batch, 1000 * len(into))

    for number in range(400):
        value = rng.choice(
            [None, b"", b"%d" % number, rng.randbytes(rng.randrange(120)), bytes(rng.randrange(400))]
        )
        key = rng.choice([None, None, b"k%d" % rng.randrange(5)])
        if rng.random() < 0.5:
            partition = rng.randrange(3)
        else:  # as the general path places a record
            partition = None
        if partition is None and key is not None:
            placed = partition_for_key(key, 3)
        else:
            placed = partition
        callbacks = [
            (lambda metadata, error, at=number, told=notes: told.append((at, metadata, error)))
            for notes in told
        ]
        if rng.random() < 0.5:
            callbacks = [None, None]
        one = fast.fast(value, partition, key=key, on_delivery=callbacks[0])
        taken_fast += one is not None
        if one is None:
            one = fast.append(value, placed, key=key, on_delivery=callbacks[0])
        deliveries.append((one, general.append(value, placed, key=key, on_delivery=callbacks[1])))
        if rng.random() < 0.03:
            deliver(fast, sent[0])
            deliver(general, sent[1])
    for core, into in ((fast, sent[0]), (general, sent[1])):
        core.accumulator.flush()
        deliver(core, into)
        assert not core.accumulator.has_incomplete()
        assert core.pool.available() == core.pool.total
    assert taken_fast > 100
    assert sent[0] == sent[1]
    assert told[0] == told[1]
    assert all(one.result(0) == other.result(0) for one, other in deliveries)


def test_a_delivery_does_not_keep_the_memory_of_its_batch():
    core = Core()
    delivery = core.append(b"v")
    [batch] = core.drain()
    core.fail(batch, KafkaError("no"))
    seen = gc.get_referrers(batch)
    assert batch.buffers == []
    assert batch.wire is None
    assert not any(isinstance(referrer, Delivery) for referrer in seen)
    assert delivery.exception(0) is not None
