# SPDX-License-Identifier: Apache-2.0
"""The queue of one partition, and the state of a topic."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from producer.fakes_core import START, TIME, TOPIC, record_size

from penstock.errors import ProducerClosedError
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.batch._partitioner_cy import TopicState
from penstock.producer.batch._queue_cy import GROW, MOVED, NO_BATCH, PartitionQueue
from penstock.records._batch_cy import BatchWriter
from penstock.records.format import HEADER_SIZE
from penstock.types import RecordMetadata

VALUE = bytes(92)  # with its overhead, a record of 101 bytes
SIZE = record_size(VALUE)


class Queue:
    """A queue with what it adds itself to."""

    def __init__(self) -> None:
        self.active: set[PartitionQueue] = set()
        self.incomplete: set[Batch] = set()
        self.queue = PartitionQueue(TOPIC, 0, self.active, self.incomplete)

    def batch(self, limit: int = 1000, ratio: float = 1.0, capacity: int = 1000) -> Batch:
        writer = BatchWriter(bytearray(capacity), limit, ratio)
        return Batch(self.queue, writer, START, writer.segments)

    def append(self, value: bytes = VALUE, **options: Any) -> Any:
        return self.queue.append(TIME, None, value, None, options.pop("on_delivery", None), **options)


# ---------------------------------------------------------------------------------------------- appending


def test_without_an_open_batch_there_is_no_append():
    q = Queue()
    assert q.append() == NO_BATCH
    assert (q.active, q.incomplete, q.queue.depth()) == (set(), set(), 0)


def test_a_fresh_batch_is_queued_with_its_first_record():
    q = Queue()
    batch = q.batch()
    delivery = q.append(fresh=batch)
    assert isinstance(delivery, Delivery)
    assert delivery._index == 0
    assert q.queue.head() == (batch, False)
    assert q.active == {q.queue}
    assert q.incomplete == {batch}
    assert batch.record_count == 1


def test_an_open_batch_is_filled_before_a_fresh_one_is_used():
    q = Queue()
    first, second = q.batch(), q.batch()
    q.append(fresh=first)
    assert q.append(fresh=second)._index == 1
    assert second.record_count == 0
    assert q.queue.depth() == 1


def test_a_batch_without_room_is_closed_and_the_fresh_one_follows():
    q = Queue()
    first, second = q.batch(limit=HEADER_SIZE + SIZE), q.batch()
    q.append(fresh=first)
    assert q.append() == NO_BATCH
    assert q.append(fresh=second)._index == 0
    assert q.queue.head() == (first, True)
    assert q.queue.depth() == 2


def test_a_smaller_record_does_not_slip_into_a_batch_that_was_closed():
    """Requirement 20."""
    q = Queue()
    q.append(fresh=q.batch(limit=HEADER_SIZE + SIZE + 20))
    assert q.append() == NO_BATCH
    assert (
        q.append(b"") == NO_BATCH
    )  # it would have fitted, but the order of records is kept by closed batches


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda q: q.batch(capacity=100), id="too little memory"),
        pytest.param(lambda q: None, id="bad headers"),
    ],
)
def test_a_failed_first_append_leaves_no_empty_batch(make):
    q = Queue()
    fresh = make(q)
    if fresh is not None:
        with pytest.raises(ValueError, match="no room for its first record"):
            q.append(fresh=fresh)
    else:
        fresh = q.batch()
        with pytest.raises((TypeError, ValueError, AttributeError)):
            q.queue.append(TIME, None, VALUE, [("name", "text")], None, fresh=fresh)
    assert q.queue.depth() == 0
    assert q.incomplete == set()
    assert q.append() == NO_BATCH
    good = q.batch()
    q.append(fresh=good)
    assert q.queue.take(good)
    assert good.record_count == 1


def test_a_compressed_batch_asks_for_segments_and_grows():
    q = Queue()
    batch = q.batch(limit=1000, ratio=0.2, capacity=200)
    q.append(fresh=batch)
    assert q.append() == GROW
    spares = [bytearray(200)]
    assert q.append(spares=spares)._index == 1
    assert spares == []
    assert q.queue.depth() == 1
    assert len(batch.buffers) == 2


def test_a_batch_that_cannot_grow_now_stays_open():
    q = Queue()
    batch = q.batch(limit=1000, ratio=0.2, capacity=200)
    q.append(fresh=batch)
    assert q.append(spares=[]) == GROW
    assert q.queue.head() == (batch, False)
    assert q.queue.open_batch() is batch


def test_callbacks_are_noted_with_their_records():
    q = Queue()
    batch = q.batch()
    seen: list[RecordMetadata] = []
    q.append(fresh=batch, on_delivery=lambda metadata, error: seen.append(metadata))
    q.append()
    q.append(on_delivery=lambda metadata, error: seen.append(metadata))
    batch.result.settle(10)
    assert [metadata.offset for metadata in seen] == [10, 12]


# ---------------------------------------------------------------------------------------------- taking


def filled(count: int) -> tuple[Queue, list[Batch]]:
    """A queue with batches of one record each; the last one is open, one second lies between them."""
    q = Queue()
    batches = []
    for number in range(count):
        batch = q.batch(limit=HEADER_SIZE + SIZE)
        batch.created = START + number
        q.append(fresh=batch)
        batches.append(batch)
    return q, batches


def test_taking_the_open_batch_closes_it():
    q = Queue()
    batch = q.batch()
    q.append(fresh=batch)
    assert q.queue.take(batch)
    assert q.append() == NO_BATCH
    assert batch.record_count == 1
    assert q.queue.head() == (None, False)


def test_only_the_oldest_batch_can_be_taken():
    q, (first, second) = filled(2)
    assert not q.queue.take(second)
    assert q.queue.take(first)
    assert not q.queue.take(first)
    assert q.queue.take(second)
    assert not q.queue.take(second)


def test_a_batch_behind_which_another_waits_counts_as_full():
    """Requirement 20."""
    q = Queue()
    first = q.batch()
    q.append(fresh=first)
    assert q.queue.head() == (first, False)
    q.append(bytes(900), fresh=q.batch())
    assert q.queue.head() == (first, True)


def test_batches_that_come_back_go_to_the_head():
    q, (first, second, third) = filled(3)
    q.queue.take(first)
    q.queue.take(second)
    q.queue.put_back([first, second])
    assert list(q.queue.batches) == [first, second, third]


def test_batches_that_come_back_one_by_one_are_in_the_order_of_their_age():
    """Requirement 27: the oldest is at the head, where it is found when its time is over."""
    for order in itertools.permutations(range(3)):
        q, batches = filled(4)
        for batch in batches[:3]:
            q.queue.take(batch)
        for index in order:
            q.queue.put_back([batches[index]])
        assert list(q.queue.batches) == batches


def test_a_batch_that_was_made_later_but_opened_first_comes_back_before_the_open_one():
    """Another thread may open its batch between the making and the opening of ours: records keep their order."""
    q = Queue()
    made_first, made_later = q.batch(), q.batch()
    made_first.created, made_later.created = START, START + 1
    q.append(bytes(900), fresh=made_later)
    q.queue.take(made_later)
    q.append(fresh=made_first)
    q.queue.put_back([made_later])
    assert list(q.queue.batches) == [made_later, made_first]
    assert isinstance(q.append(), Delivery)  # the open one is the last one, and takes more


def test_pieces_of_a_batch_come_back_in_their_order_behind_older_ones():
    q, (first, second, third) = filled(3)
    q.queue.take(first)
    q.queue.take(second)
    pieces = [q.batch() for _ in range(3)]
    for piece in pieces:
        piece.opening = second.opening
    q.queue.put_back([first])
    q.queue.put_back(pieces)
    assert list(q.queue.batches) == [first, *pieces, third]


def test_old_batches_are_taken_from_the_head_alone():
    """Requirement 27."""
    q, batches = filled(4)
    assert q.queue.take_expired(START + 29, 30) == []
    assert q.queue.take_expired(START + 31, 30) == batches[:2]
    assert list(q.queue.batches) == batches[2:]


def test_all_batches_can_be_taken():
    q, batches = filled(3)
    assert q.queue.take_all() == batches
    assert q.append() == NO_BATCH


def test_a_closed_queue_keeps_its_batches_and_refuses_records():
    q, batches = filled(2)
    q.queue.close()
    with pytest.raises(ProducerClosedError):
        q.append(fresh=q.batch())
    assert list(q.queue.batches) == batches
    assert q.queue.head() == (batches[0], True)
    assert [batch.record_count for batch in batches] == [1, 1]


def test_a_queue_is_active_while_it_has_batches():
    q, [batch, _] = filled(2)
    q.queue.take(batch)
    assert q.active == {q.queue}
    q.queue.take_all()
    assert q.active == set()
    q.queue.put_back([batch])
    assert q.active == {q.queue}


def test_a_queue_says_how_it_stands():
    q, _ = filled(2)
    assert repr(q.queue) == "<PartitionQueue orders-0: 2 batches>"


# ---------------------------------------------------------------------------------------------- sticky


class Sticky:
    """A topic of three partitions whose choices go 1, 2, 0, 1, ..."""

    def __init__(self, size: int) -> None:
        self.state = TopicState(TOPIC, size, lambda state: (state.sticky_partition + 1) % 3)
        self.state.queues = [PartitionQueue(TOPIC, number, set(), set()) for number in range(3)]
        self.state.sticky_partition = 0

    def append(self, partition: int, value: bytes = VALUE, limit: int = 10_000) -> Any:
        queue = self.state.queues[partition]
        writer = BatchWriter(bytearray(10_000), limit)
        fresh = Batch(queue, writer, START, writer.segments)
        return queue.append(TIME, None, value, None, None, sticky=self.state, fresh=fresh)


def test_the_bytes_of_a_sticky_partition_are_counted():
    """Requirement 37."""
    s = Sticky(size=1000)
    s.append(0)
    s.append(0)
    assert s.state.sticky_bytes == 2 * SIZE
    assert s.state.sticky_partition == 0


def test_records_for_a_partition_that_was_left_are_sent_away():
    """Requirement 37."""
    s = Sticky(size=1000)
    s.state.sticky_partition = 2
    assert s.append(0) == MOVED
    assert s.state.queues[0].depth() == 0
    assert s.state.sticky_bytes == 0


def test_the_partition_changes_when_its_bytes_and_its_batch_are_full():
    """Requirements 30 and 37."""
    s = Sticky(size=2 * SIZE)
    s.append(0, limit=HEADER_SIZE + 2 * SIZE)
    assert s.state.sticky_partition == 0
    s.append(0)
    assert (s.state.sticky_partition, s.state.sticky_bytes) == (1, 0)


def test_a_batch_that_is_not_full_postpones_the_change():
    """Requirement 30."""
    s = Sticky(size=2 * SIZE)
    for _ in range(3):
        s.append(0, limit=10 * SIZE)
    assert s.state.sticky_partition == 0
    s.append(0)  # twice the size: now without regard
    assert (s.state.sticky_partition, s.state.sticky_bytes) == (1, 0)


@pytest.mark.parametrize("how", ["drained", "full"])
def test_a_postponed_change_is_made_up_for_before_a_new_batch(how):
    """Requirement 30."""
    s = Sticky(size=2 * SIZE)
    for _ in range(2):
        s.append(0, limit=HEADER_SIZE + 2 * SIZE + 10)
    assert s.state.sticky_partition == 0
    queue = s.state.queues[0]
    if how == "drained":
        assert queue.take(queue.head()[0])
    assert s.append(0) == MOVED
    assert s.state.sticky_partition == 1
    assert queue.depth() == (0 if how == "drained" else 1)
