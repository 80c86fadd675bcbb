# SPDX-License-Identifier: Apache-2.0
"""Records on their way in: batches, memory, waiting, flush, close; under virtual time, then with threads."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from producer.fakes_core import (
    TIME,
    TOPIC,
    Core,
    cluster,
    encoded,
    records,
    run,
    run_to,
    value_for,
    values,
)

from penstock._ticket import Ticket
from penstock._time import SystemClock
from penstock.errors import BufferExhaustedError, KafkaError, ProducerClosedError
from penstock.producer.batch._batch_cy import BatchState
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.steps import TimeIsUp, run_steps
from penstock.records.compression import CODECS
from penstock.records.format import HEADER_SIZE
from penstock.types import Header

HALF = value_for((1024 - HEADER_SIZE) // 2)  # two of them fill a batch of 1024 bytes, but for one byte
CODEC_NAMES = [row.name for row in CODECS]


# ---------------------------------------------------------------------------------------------- batches


def test_batches_are_filled_up_to_their_size():
    """Requirement 20."""
    core = Core(linger_ms=1000, batch_size=1024)
    for number in range(5):
        core.append(HALF[:-1] + bytes([number]))
    assert core.queue().depth() == 3
    core.now += 1  # the last of them is not full
    batches = core.drain() + core.drain() + core.drain()
    assert [batch.record_count for batch in batches] == [2, 2, 1]
    assert all(batch.size <= 1024 for batch in batches)
    assert [value[-1] for value in values(*batches)] == [0, 1, 2, 3, 4]


def test_a_batch_takes_one_buffer_of_the_pool():
    """Requirement 33."""
    core = Core(memory=10_000)
    core.append(b"v")
    core.append(b"v")
    assert core.pool.available() == 10_000 - 1024
    [batch] = core.drain()
    assert core.pool.available() == 10_000 - 1024
    core.acknowledge(batch)
    assert core.pool.available() == 10_000


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_a_record_larger_than_a_batch_gets_one_of_its_own(compression):
    """Requirements 21 and 29."""
    core = Core(linger_ms=1000, batch_size=512, compression=compression)
    large = random.Random(1).randbytes(5000)
    core.append(b"before")
    core.append(large, headers=(Header("h", b"1"),))
    core.append(b"after")
    assert core.queue().depth() == 3
    assert core.ready_ids() == [1]
    core.accumulator.flush()
    delivered = [core.drain() for _ in range(3)]
    assert [values(*batches) for batches in delivered] == [[b"before"], [large], [b"after"]]
    for batches in delivered:
        core.acknowledge(batches[0])
    assert core.pool.available() == core.pool.total


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_a_large_record_is_ready_at_once_and_nothing_follows_it(compression):
    """Requirement 29."""
    core = Core(linger_ms=1000, batch_size=512, compression=compression)
    core.append(bytes(600))
    assert core.ready_ids() == [1]
    core.append(b"")  # however small
    assert core.queue().depth() == 2


def test_a_batch_size_of_zero_means_no_batching():
    """Requirement 29."""
    core = Core(batch_size=0)
    for number in range(4):
        core.append(b"%d" % number)
    batches = core.drain_all()
    assert [batch.record_count for batch in batches] == [1] * 4
    assert values(*batches) == [b"0", b"1", b"2", b"3"]
    for batch in batches:
        core.acknowledge(batch)
    assert core.pool.available() == core.pool.total


def test_partitions_and_topics_do_not_mix():
    core = Core([1, 1])
    core.snapshot = cluster([1, 1], more={"other": [1]})
    core.append(b"zero", 0)
    core.append(b"one", 1)
    core.append(b"other", 0, topic="other")
    found = {str(batch.topic_partition): values(batch) for batch in core.drain()}
    assert found == {"orders-0": [b"zero"], "orders-1": [b"one"], "other-0": [b"other"]}


def test_a_record_arrives_as_it_was_given():
    core = Core()
    headers = (Header("a", b"1"), Header("b", None))
    core.append(b"v", key=b"k", headers=headers, timestamp=TIME + 4)
    core.append(None, key=b"", timestamp=TIME - 4)
    [batch] = core.drain()
    assert [record[1:] for record in records(batch)] == [
        (TIME + 4, b"k", b"v", headers),
        (TIME - 4, b"", None, ()),
    ]


def test_the_sender_is_woken_for_a_new_batch_and_for_a_full_one():
    core = Core(linger_ms=1000)
    core.append(HALF)
    assert core.wakeups == 1
    core.append(HALF[:-100])
    assert core.wakeups == 1
    core.append(value_for(101))
    assert core.queue().head()[1]
    assert core.wakeups == 2


# ---------------------------------------------------------------------------------------------- second look


def test_the_second_look_finds_a_batch_of_another_thread():
    core = Core(memory=4096)
    slow = core.steps(encoded(b"slow"))
    run_to(slow, "second look")
    assert core.pool.available() == 3072
    core.append(b"quick")
    assert core.pool.available() == 2048
    delivery = run(slow)
    assert isinstance(delivery, Delivery)
    assert core.pool.available() == 3072  # the buffer that was not needed is back
    [batch] = core.drain()
    assert values(batch) == [b"quick", b"slow"]


def test_the_second_look_opens_a_batch_where_the_other_is_full():
    core = Core(memory=4096)
    slow = core.steps(encoded(b"slow"))
    run_to(slow, "second look")
    core.append(HALF)
    core.append(HALF)
    run(slow)
    assert core.pool.available() == 2048
    assert [batch.record_count for batch in core.drain_all()] == [2, 1]


def test_the_second_look_finds_that_the_sticky_partition_moved_on():
    core = Core([1, 1], memory=8192)
    topic = core.topic()
    slow = core.steps(encoded(b"slow"), None)
    run_to(slow, "second look")
    left = topic.sticky_partition
    topic.sticky_partition = 1 - left
    run(slow)
    assert core.queue(left).depth() == 0
    assert core.queue(1 - left).depth() == 1
    assert core.pool.available() == 8192 - 1024


@pytest.mark.parametrize("how", ["close", "throw"])
@pytest.mark.parametrize("checkpoint", ["memory", "second look"])
def test_steps_that_are_dropped_give_back_what_they_hold(checkpoint, how):
    """Requirement 35."""
    core = Core(memory=4096)
    steps = core.steps(encoded(b"v"))
    run_to(steps, checkpoint)
    if how == "close":
        steps.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())
    assert core.pool.available() == 4096
    assert not core.accumulator.has_incomplete()
    core.append(b"next")


def test_an_append_that_raises_gives_back_its_buffer():
    core = Core(memory=4096)
    bad = encoded(b"v")._replace(headers=(Header("name", "text"),))  # type: ignore[arg-type]
    with pytest.raises((TypeError, AttributeError, ValueError)):
        run(core.steps(bad))
    assert core.pool.available() == 4096
    assert not core.accumulator.has_incomplete()


# ---------------------------------------------------------------------------------------------- memory


def full_core(**options: Any) -> Core:
    """A core whose memory is all in one batch."""
    core = Core(memory=1024, linger_ms=1000, **options)
    core.append(HALF)
    core.append(HALF)
    return core


def test_who_finds_no_memory_waits_and_goes_on():
    """Requirement 33."""
    core = full_core()
    steps = core.steps(encoded(b"late"))
    ticket = run(steps)
    assert isinstance(ticket, Ticket)
    assert not ticket.done
    [batch] = core.drain()
    core.acknowledge(batch)
    assert ticket.done
    assert isinstance(run(steps, ticket), Delivery)
    assert core.pool.available() == 0


def test_waiting_makes_everything_sendable():
    """Requirement 22."""
    core = Core([1, 2], memory=2048, linger_ms=1000)
    core.append(b"v", 0)
    core.append(b"v", 1)
    assert core.ready_ids() == []
    core.wakeups = 0
    steps = core.steps(encoded(bytes(960)))
    run(steps)
    assert core.wakeups == 1
    assert core.ready_ids() == [1, 2]
    steps.close()
    assert core.ready_ids() == [
        1
    ]  # where the record had no room the batch is closed; the other one lingers again


def test_the_time_for_waiting_can_be_used_up():
    """Requirement 34."""
    core = full_core()
    steps = core.steps(encoded(b"late"))
    run(steps)
    with pytest.raises(BufferExhaustedError, match=r"no 1024 bytes of buffer.memory \(1024\).*waited 60 ms"):
        steps.throw(TimeIsUp(60))
    assert core.pool.waiting() == 0
    [batch] = core.drain(1)
    core.acknowledge(batch)
    assert core.pool.available() == 1024


def test_an_interrupt_while_waiting_comes_through():
    """Requirement 35."""
    core = full_core()
    steps = core.steps(encoded(b"late"))
    run(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert core.pool.waiting() == 0


def test_memory_that_came_at_the_last_moment_is_given_back():
    """Requirement 35."""
    core = full_core()
    steps = core.steps(encoded(b"late"))
    ticket = run(steps)
    [batch] = core.drain()
    core.acknowledge(batch)
    assert ticket.done
    with pytest.raises(BufferExhaustedError):
        steps.throw(TimeIsUp(60))
    assert core.pool.available() == 1024


def test_who_waits_is_served_in_order():
    core = full_core()
    waiting = [core.steps(encoded(b"%d" % number)) for number in range(3)]
    tickets = [run(steps) for steps in waiting]
    [batch] = core.drain()
    core.acknowledge(batch)
    assert [ticket.done for ticket in tickets] == [True, False, False]
    run(waiting[0], tickets[0])
    [batch] = core.drain()
    core.acknowledge(batch)
    assert [ticket.done for ticket in tickets] == [True, True, False]


def test_one_who_waited_may_find_room_in_the_batch_of_another():
    core = full_core()
    waiting = [core.steps(encoded(b"%d" % number)) for number in range(2)]
    tickets = [run(steps) for steps in waiting]
    [batch] = core.drain()
    core.acknowledge(batch)
    run(waiting[0], tickets[0])
    # The second one still waits, although there is room: as soon as memory comes, it goes into the open batch.
    assert not tickets[1].done
    core.queue(0)
    [batch] = core.drain()
    core.acknowledge(batch)
    run(waiting[1], tickets[1])
    core.now += 1  # until it has lingered
    [batch] = core.drain()
    core.acknowledge(batch)
    assert core.pool.available() == 1024


def test_a_large_record_gathers_memory():
    """Requirement 33."""
    core = Core([1, 1, 1], memory=3 * 1024)
    for partition in range(3):
        core.append(b"v", partition)
    steps = core.steps(encoded(bytes(2500)))
    ticket = run(steps)
    for batch in core.drain():
        assert not ticket.done
        core.acknowledge(batch)
    run(steps, ticket)
    [batch] = core.drain()
    assert values(batch) == [bytes(2500)]
    core.acknowledge(batch)
    assert core.pool.available() == 3 * 1024


def test_more_than_there_will_ever_be_is_refused():
    """Requirement 34."""
    core = Core(memory=2048)
    with pytest.raises(ValueError, match=r"buffer.memory is 2048 in all"):
        run(core.steps(encoded(bytes(3000))))


# ---------------------------------------------------------------------------------------------- flush


def test_a_flush_makes_everything_sendable_and_ends_with_the_last_batch():
    """Requirement 25."""
    core = Core([1, 2, 1], linger_ms=10_000)
    for partition in range(3):
        core.append(b"v", partition)
    assert core.ready_ids() == []
    ticket = core.accumulator.flush()
    assert core.ready_ids() == [1, 2]
    batches = core.drain()
    assert len(batches) == 3
    for batch in batches:
        assert not ticket.done
        core.acknowledge(batch)
    assert ticket.done
    core.append(b"v")
    assert core.ready_ids() == []  # lingering counts again


def test_a_flush_with_nothing_to_do_ends_at_once():
    """Requirement 25."""
    assert Core().accumulator.flush().done


def test_a_flush_waits_for_what_is_in_flight_and_not_for_what_comes_later():
    """Requirement 25."""
    core = Core(linger_ms=1000)
    core.append(b"first")
    core.now += 1
    [in_flight] = core.drain()
    ticket = core.accumulator.flush()
    core.append(b"later")
    assert not ticket.done
    core.acknowledge(in_flight)
    assert ticket.done
    assert core.accumulator.has_incomplete()


@pytest.mark.parametrize("asked", ["in flight", "queued again"])
def test_a_flush_waits_for_a_batch_that_is_sent_again(asked):
    """Requirement 25."""
    core = Core(linger_ms=1000)
    core.append(b"v")
    core.now += 1
    [batch] = core.drain()
    ticket = core.accumulator.flush() if asked == "in flight" else None
    batch.request_pending = False
    batch.attempts = 1
    batch.move_to(BatchState.QUEUED)
    core.accumulator.requeue([batch])
    ticket = ticket or core.accumulator.flush()
    assert not ticket.done
    assert core.drain() == [batch]
    assert not ticket.done, "on its way once more"
    core.acknowledge(batch)
    assert ticket.done


def test_a_flush_counts_failed_batches_as_ended():
    """Requirement 25."""
    core = Core()
    core.append(b"v")
    ticket = core.accumulator.flush()
    [batch] = core.drain()
    core.fail(batch, KafkaError("no"))
    assert ticket.done


def test_flushes_overlap():
    """Requirement 25."""
    core = Core(linger_ms=1000)
    core.append(b"v")
    first = core.accumulator.flush()
    second = core.accumulator.flush()
    first.give_up()
    core.append(HALF)
    assert core.ready_ids() == [1]
    for batch in core.drain_all():
        core.acknowledge(batch)
    assert second.done
    core.append(b"v")
    assert core.ready_ids() == []


def test_a_flush_that_is_given_up_lets_batches_linger_again():
    """Requirement 25."""
    core = Core(linger_ms=1000)
    core.append(b"v")
    core.accumulator.flush().give_up()
    assert core.ready_ids() == []


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("asked", ["before the split", "after the split"])
def test_a_flush_waits_for_the_pieces_of_a_split(asked, order):
    """Requirements 25 and 28."""
    core = Core(batch_size=4096)
    for _ in range(12):
        core.append(bytes(200))
    [batch] = core.drain()
    ticket = core.accumulator.flush() if asked == "before the split" else None
    assert core.split(batch) == 1
    [piece] = core.drain()
    assert core.split(piece) == 3
    ticket = ticket or core.accumulator.flush()
    pieces = core.drain_all()
    assert core.split(pieces[1]) == 3
    pieces[1:2] = core.drain_all()
    assert len(pieces) == 5
    for piece in pieces[::order]:
        assert not ticket.done
        core.acknowledge(piece)
    assert ticket.done


def test_records_without_an_outcome_are_counted():
    core = Core()
    for _ in range(3):
        core.append(HALF)
    assert core.accumulator.incomplete_records() == 3
    [batch] = core.drain()
    assert core.accumulator.incomplete_records() == 3
    core.acknowledge(batch)
    assert core.accumulator.incomplete_records() == 1


# ---------------------------------------------------------------------------------------------- close


def test_close_refuses_records_and_sends_what_is_there():
    """Requirement 26."""
    core = Core([1, 1], linger_ms=10_000)
    core.append(b"kept", 0)
    core.wakeups = 0
    core.accumulator.close()
    assert core.wakeups == 1
    for partition in (0, 1, None):
        with pytest.raises(ProducerClosedError):
            core.append(b"late", partition)
    assert core.ready_ids() == [1]
    [batch] = core.drain()
    assert values(batch) == [b"kept"]
    core.acknowledge(batch)
    assert core.pool.available() == core.pool.total


def test_close_reaches_topics_that_are_new_afterwards():
    core = Core()
    core.accumulator.close()
    core.snapshot = cluster(more={"new": [1]})
    with pytest.raises(ProducerClosedError):
        core.append(b"late", topic="new")


def test_close_wakes_those_who_wait_for_memory():
    """Requirements 26 and 36."""
    core = full_core()
    steps = core.steps(encoded(b"late"))
    ticket = run(steps)
    core.accumulator.close()
    with pytest.raises(ProducerClosedError):
        run(steps, ticket)
    [batch] = core.drain()
    core.acknowledge(batch)
    assert core.pool.available() == 1024


def test_close_between_the_two_looks_refuses_the_record():
    core = Core(memory=4096)
    steps = core.steps(encoded(b"v"))
    run_to(steps, "second look")
    core.accumulator.close()
    with pytest.raises(ProducerClosedError):
        run(steps)
    assert core.pool.available() == 4096


def test_close_keeps_the_order_of_a_batch_that_comes_back():
    core = Core(linger_ms=1000)
    for number in range(3):
        core.append(HALF + b"%d" % number)
    [first] = core.drain()
    core.accumulator.close()
    core.retry(first)
    assert [value[-1:] for value in values(*core.drain_all())] == [b"0", b"1", b"2"]


def test_aborting_fails_everything_in_order_and_frees_the_memory():
    """Requirement 26."""
    core = Core(memory=16 * 1024, linger_ms=1000)
    told: list[int] = []
    for number in range(7):
        core.append(HALF, on_delivery=lambda metadata, error, at=number: told.append((at, str(error))))
    [in_flight] = core.drain()
    ticket = core.accumulator.flush()
    core.accumulator.close()
    core.accumulator.abort_all(KafkaError("closed by force"))
    assert told == [(number, "closed by force") for number in range(7)]
    assert not core.accumulator.has_incomplete()
    assert not core.accumulator.has_undrained()
    assert ticket.done
    assert core.pool.available() == 15 * 1024  # a request still holds one batch
    assert in_flight.state is BatchState.ABORTED
    core.acknowledge(in_flight)  # its answer comes, and changes nothing
    assert core.pool.available() == 16 * 1024
    assert len(told) == 7


def test_a_batch_that_is_given_up_may_be_written_as_long_as_its_request_is_on_the_way():
    core = Core([1, 1])
    told: list[bool] = []
    for partition in range(2):
        core.append(
            b"v", partition, on_delivery=lambda *_: told.append(core.accumulator.may_still_be_written())
        )
    first, second = core.drain()
    first.fail(KafkaError("expired in flight"))
    core.accumulator.finish(first)
    core.acknowledge(second)
    assert told == [True, True]
    assert core.accumulator.may_still_be_written()
    core.acknowledge(first)
    assert not core.accumulator.may_still_be_written()


def test_aborting_passes_over_what_has_its_outcome():
    core = Core([1, 1])
    deliveries = [core.append(b"v", partition) for partition in range(2)]
    first, _ = core.drain()
    first.fail(KafkaError("refused"))  # and the thread that did it was interrupted before it could say so
    core.accumulator.close()
    core.accumulator.abort_all(KafkaError("closed by force"))
    assert [str(delivery.exception(0)) for delivery in deliveries] == ["refused", "closed by force"]
    assert not core.accumulator.has_incomplete()


def test_aborting_keeps_the_order_of_pieces():
    """Requirement 26."""
    core = Core(batch_size=2048)
    told: list[int] = []
    for number in range(16):
        core.append(bytes(100), on_delivery=lambda metadata, error, at=number: told.append(at))
    [batch] = core.drain()
    core.split(batch)
    [piece] = core.drain()
    core.split(piece)
    [half] = core.drain()
    assert core.split(half) > 1
    core.accumulator.close()
    core.accumulator.abort_all(KafkaError("closed by force"))
    assert told == list(range(16))
    assert core.pool.available() == core.pool.total


# ---------------------------------------------------------------------------------------------- topics


def test_a_topic_can_grow():
    core = Core([1])
    core.append(b"zero", 0)
    core.snapshot = cluster([1, 1])
    core.append(b"one", 1)
    core.append(b"zero again", 0)
    found = {batch.queue.partition: values(batch) for batch in core.drain()}
    assert found == {0: [b"zero", b"zero again"], 1: [b"one"]}


def test_used_topics_are_those_with_records():
    core = Core()
    core.append(b"v")
    core.topic().used = True
    assert set(core.accumulator.used_topics()) == {TOPIC}
    assert set(core.accumulator.used_topics()) == {TOPIC}  # its batch waits
    core.acknowledge(core.drain()[0])
    core.ready()
    assert set(core.accumulator.used_topics()) == set()
    core.append(b"v")
    assert set(core.accumulator.used_topics()) == {TOPIC}


def test_retried_batches_go_to_the_head():
    """Requirement 24."""
    core = Core()
    for number in range(4):
        core.append(HALF + b"%d" % number)
    [first] = core.drain()
    core.retry(first)
    assert [value[-1:] for value in values(*core.drain_all())] == [b"0", b"1", b"2", b"3"]


# ---------------------------------------------------------------------------------------------- threads


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_many_threads_and_a_sender_lose_nothing(compression):
    """Every record arrives once, in the order in which its thread sent it, within the memory there is."""
    core = Core([1, 2, 1], batch_size=512, memory=6 * 512, compression=compression, linger_ms=1)
    clock = SystemClock()
    core.topic()
    problems: list[BaseException] = []
    deliveries: dict[int, list[Delivery]] = {}
    threads_count, each = 4, 250

    def work(number: int) -> None:
        rng = random.Random(number)
        mine: list[Delivery] = []
        deliveries[number] = mine
        try:
            for serial in range(each):
                value = b"%d:%d:" % (number, serial) + bytes(rng.randrange(150))
                partition = rng.choice([None, 0, 1, 2])
                delivery = core.fast(value, partition)
                if delivery is None:
                    delivery = run_steps(core.steps(encoded(value), partition), 300, clock)
                mine.append(delivery)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(threads_count)]
    for thread in threads:
        thread.start()
    arrived: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    rng = random.Random(99)
    give_up = time.monotonic() + 300
    while any(thread.is_alive() for thread in threads) or core.accumulator.has_incomplete():
        assert time.monotonic() < give_up
        core.now = clock.now()
        for batch in core.drain():
            assert core.pool.available() >= 0
            if rng.random() < 0.1:
                core.retry(batch)
                continue
            log = arrived[batch.queue.partition]
            base = len(log)
            log.extend(value or b"" for value in values(batch))
            core.acknowledge(batch, base)
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert core.pool.available() == core.pool.total
    for number in range(threads_count):
        places = [delivery.result(0) for delivery in deliveries[number]]
        found = [arrived[place.partition][place.offset] for place in places]
        assert [value.split(b":")[:2] for value in found] == [
            [b"%d" % number, b"%d" % serial] for serial in range(each)
        ]
        for partition in range(3):
            offsets = [place.offset for place in places if place.partition == partition]
            assert offsets == sorted(offsets)
    assert sum(len(log) for log in arrived.values()) == threads_count * each


@pytest.mark.slow
def test_a_close_in_the_midst_of_appends_leaves_no_record_behind():
    """Requirement 26."""
    for _ in range(20):
        core = Core([1, 1], batch_size=256, memory=64 * 1024)
        core.topic()
        clock = SystemClock()
        accepted: list[Delivery] = []

        def work(core: Core = core, accepted: list[Delivery] = accepted, clock: SystemClock = clock) -> None:
            try:
                for _ in range(500):
                    delivery = core.fast(b"v", 0)
                    accepted.append(
                        delivery if delivery is not None else run_steps(core.steps(encoded(b"v")), 10, clock)
                    )
            except ProducerClosedError:
                pass

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(accepted) < 50:
            threads[0].join(0.0005)
        core.accumulator.close()
        core.accumulator.abort_all(KafkaError("closed by force"))
        for thread in threads:
            thread.join(60)
        assert all(delivery.done() for delivery in accepted)
        assert not core.accumulator.has_incomplete()
        assert core.pool.available() == core.pool.total


# ----------------------------------------------------------------------------------- what comes too late


def test_a_batch_given_up_may_still_be_written_while_its_request_is_on_the_way():
    core = Core()
    core.append(b"v")
    [batch] = core.drain()
    batch.request_pending = True
    batch.fail(KafkaError("its time is over"))
    core.accumulator.finish(batch)
    assert not core.accumulator.has_incomplete()
    assert core.accumulator.may_still_be_written()
    batch.request_pending = False
    core.accumulator.release(batch)
    assert not core.accumulator.may_still_be_written()
    assert core.pool.available() == core.pool.total


def test_what_waits_to_be_sent_again_is_taken_only_on_demand():
    core = Core(linger_ms=1000, batch_size=1024)
    for _ in range(4):
        core.append(HALF)
    [sent] = core.drain(1)
    sent.request_pending = False
    sent.attempts = 1
    core.accumulator.requeue([sent])
    [unsent] = core.accumulator.take_unsent()
    assert unsent is not sent
    assert core.accumulator.take_unsent(also_retried=True) == [sent]


@pytest.mark.parametrize("waits_for", ["memory", "second look"])
def test_a_thread_that_waited_is_admitted_anew(waits_for):
    """A transaction that was open before a wait may have ended meanwhile."""
    core = Core(memory=2048)
    admitted = True

    def check() -> None:
        if not admitted:
            raise KafkaError("not any more")

    steps = core.accumulator.appender.append_steps(core.topic(), 0, encoded(b"v"), None, check)
    run_to(steps, waits_for)
    admitted = False
    with pytest.raises(KafkaError, match="not any more"):
        run(steps)
    assert core.queue().depth() == 0
    assert core.pool.available() == core.pool.total


def test_a_record_that_is_not_admitted_is_not_added_to_an_open_batch():
    core = Core(linger_ms=1000)
    core.append(b"before")

    def check() -> None:
        raise KafkaError("not now")

    with pytest.raises(KafkaError, match="not now"):
        run(core.accumulator.appender.append_steps(core.topic(), 0, encoded(b"v"), None, check))
    assert core.accumulator.incomplete_records() == 1
