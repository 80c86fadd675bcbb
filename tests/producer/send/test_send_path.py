# SPDX-License-Identifier: Apache-2.0
"""The general path of send(): metadata, serializers, partitions, sizes, memory, and who is told when it fails."""

from __future__ import annotations

import contextlib
import logging

import pytest
from producer.fakes_sender import Rig

from penstock.errors import (
    BufferExhaustedError,
    IllegalStateError,
    InvalidTopicError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SerializationError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from penstock.partitioners import Partitioner, RoundRobinPartitioner, StickyPartitioner
from penstock.producer._interceptors_cy import Interceptor
from penstock.protocol.messages import METADATA
from penstock.records.format import estimate_record_size
from penstock.serializers import Serializer, StringSerializer
from penstock.types import Header, ProducerRecord


class Watcher:
    """An interceptor that takes notes."""

    def __init__(self) -> None:
        self.sent: list[ProducerRecord] = []
        self.told: list[tuple[object, object, object]] = []
        self.closed = 0

    def on_send(self, record):
        self.sent.append(record)
        return record

    def on_acknowledgement(self, metadata, error, headers):
        self.told.append((metadata, error, headers))

    def close(self):
        self.closed += 1


class Fixed(Partitioner):
    """Always the same answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
        return self.answer


def sent_to(rig: Rig, **options) -> list[int]:
    request = rig.await_request(**options)
    return [batch.partition for batch in rig.read(request)]


# ------------------------------------------------------------------------------------------------ metadata


def test_a_known_topic_is_not_asked_for_again():
    """Requirement 7."""
    rig = Rig()
    rig.know("t")
    asked = len(rig.seen(METADATA))
    for _ in range(5):
        rig.send("t", b"x", headers=[("h", b"")])
    rig.settle()
    assert len(rig.seen(METADATA)) == asked


def test_an_unknown_topic_is_asked_for_once():
    """Requirement 7."""
    rig = Rig()
    rig.cluster.add_topic("t")
    rig.send("t", b"x")
    assert [[row["name"] for row in request.body["topics"]] for request in rig.seen(METADATA)] == [["t"]]


def test_a_topic_that_does_not_exist_times_out_and_says_so():
    """Requirement 8."""
    rig = Rig(max_block_ms=3000)
    with pytest.raises(
        KafkaTimeoutError, match=r"^Topic gone not present in metadata after 3000 ms\."
    ) as caught:
        rig.send("gone", b"x")
    assert "does not exist" in str(caught.value)
    assert isinstance(caught.value.__cause__, UnknownTopicOrPartitionError)


def test_a_topic_that_appears_in_time_is_used():
    """Requirement 8."""
    rig = Rig(max_block_ms=3000)
    rig.network.after(1.0, lambda: rig.cluster.add_topic("late"))
    assert not rig.send("late", b"x").done()


def test_a_partition_beyond_the_count_times_out():
    """Requirement 9."""
    rig = Rig(max_block_ms=3000)
    rig.know("t", 2)
    text = "^Partition 2 of topic t with partition count 2 is not present in metadata after 3000 ms"
    with pytest.raises(KafkaTimeoutError, match=text):
        rig.send("t", b"x", partition=2)


def test_a_topic_that_grows_in_time_is_used():
    """Requirement 9."""
    rig = Rig(max_block_ms=3000)
    rig.know("t", 2)
    rig.network.after(1.0, lambda: rig.cluster.add_topic("t", 3))
    rig.send("t", b"x", partition=2)
    assert sent_to(rig) == [2]


def test_close_ends_the_wait_for_metadata():
    """Requirement 11."""
    rig = Rig()
    steps = rig.steps(ProducerRecord("t", b"x"))
    ticket = next(item for item in steps if not isinstance(item, str))
    rig.parts.metadata.close()
    assert ticket.done
    with pytest.raises(ProducerClosedError):
        steps.throw(_error_of(ticket))


@pytest.mark.parametrize("end", [lambda steps: steps.close(), lambda steps: steps.throw(KeyboardInterrupt)])
def test_who_stops_waiting_for_metadata_leaves_nothing_behind(end):
    rig = Rig()
    steps = rig.steps(ProducerRecord("t", b"x"))
    ticket = next(item for item in steps if not isinstance(item, str))
    with contextlib.suppress(KeyboardInterrupt):
        end(steps)
    assert ticket.done
    assert not rig.parts.metadata._waiters.topics


def _error_of(ticket) -> BaseException:
    try:
        return ticket.result
    except ProducerClosedError as error:
        return error


def test_an_invalid_topic_fails_at_once_and_again_later():
    """Requirement 19."""
    rig = Rig()
    rig.cluster.add_topic("a b", error_code=17)
    started = rig.clock.now()
    for _ in range(2):
        with pytest.raises(InvalidTopicError, match="a b"):
            rig.send("a b", b"x")
    assert rig.clock.now() == started
    assert len(rig.seen(METADATA)) == 1


def test_a_topic_that_is_forbidden_fails_at_once():
    rig = Rig()
    rig.cluster.add_topic("t", error_code=29)
    started = rig.clock.now()
    with pytest.raises(TopicAuthorizationError, match="t"):
        rig.send("t", b"x")
    assert rig.clock.now() == started


@pytest.mark.parametrize("topic", ["\ud800", "x" * 40_000], ids=["surrogate", "too long"])
def test_a_name_that_no_request_can_carry_is_refused_and_does_no_harm(topic):
    rig = Rig()
    with pytest.raises(ValueError, match="topic"):
        rig.send(topic, b"x")
    rig.know("t")
    assert not rig.send("t", b"x").done()


# ---------------------------------------------------------------------------------------------- serializers


class AddsHeader(Serializer):
    """Adds a header, and keeps the headers to change them later."""

    def serialize(self, topic, headers, data):
        headers.add("by", b"serializer")
        self.kept = headers
        return data.encode()


def test_serializers_may_add_headers_until_the_record_is_complete():
    """Requirement 12."""
    serializer = AddsHeader()
    rig = Rig(value_serializer=serializer)
    rig.know("t")
    rig.send("t", "x", headers=[("a", b"1")])
    (batch,) = rig.read(rig.await_request())
    assert batch.records[0].headers == (Header("a", b"1"), Header("by", b"serializer"))
    with pytest.raises(IllegalStateError):
        serializer.kept.add("too", b"late")


def test_headers_of_a_refused_record_are_those_before_the_serializers():
    watcher = Watcher()
    rig = Rig(value_serializer=AddsHeader(), interceptors=[watcher], max_request_size=100)
    rig.know("t")
    with pytest.raises(RecordTooLargeError):
        rig.send("t", "x" * 200, headers={"a": b"1"})
    assert watcher.told[0][2] == (Header("a", b"1"),)


@pytest.mark.parametrize(
    "buffer", [bytearray(b"ab"), memoryview(b"a-b-")[::2]], ids=["bytearray", "memoryview"]
)
def test_buffers_are_copied_when_they_are_sent(buffer):
    rig = Rig()
    rig.know("t")
    rig.send("t", buffer, buffer)
    if isinstance(buffer, bytearray):
        buffer[:] = b"xx"
    else:
        buffer.release()
        with pytest.raises(SerializationError, match="released"):
            rig.send("t", buffer)
    (batch,) = rig.read(rig.await_request())
    assert (batch.records[0].key, batch.records[0].value) == (b"ab", b"ab")


class Counted(Watcher, Partitioner):
    """Plays every part that a user may write, and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.serialized: list[object] = []
        self.placed = 0

    def serialize(self, topic, headers, data):
        self.serialized.append(data)
        return data

    def partition(self, *_):
        self.placed += 1
        return 0


@pytest.mark.parametrize("lacks", ["topic", "memory", "both"])
def test_a_send_that_waits_calls_nothing_of_the_users_twice(lacks):
    counted = Counted()
    rig = Rig(
        key_serializer=counted, value_serializer=counted, partitioner=counted, interceptors=[counted],
        buffer_memory=1000, batch_size=1000,
    )  # fmt: skip
    rig.know("first")
    rig.acknowledge_all()
    if lacks != "topic":
        rig.send("first", b"x" * 900)
    if lacks == "memory":
        rig.know("t")
    else:
        rig.cluster.add_topic("t")
    before = (len(counted.sent), counted.placed)
    counted.serialized.clear()
    rig.send("t", b"v" * 900, b"k")
    assert (len(counted.sent), counted.placed) == (before[0] + 1, before[1] + 1)
    assert counted.serialized == [b"k", b"v" * 900]
    rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())
    assert len(counted.told) == len(counted.sent)


def test_key_and_value_have_serializers_of_their_own():
    rig = Rig(key_serializer=StringSerializer(), value_serializer=lambda value: b"%d" % value)
    rig.know("t")
    rig.send("t", 7, "k")
    (batch,) = rig.read(rig.await_request())
    assert (batch.records[0].key, batch.records[0].value) == (b"k", b"7")


def test_what_cannot_be_serialized_is_refused():
    watcher = Watcher()
    rig = Rig(interceptors=[watcher])
    rig.know("t", 4)
    with pytest.raises(SerializationError):
        rig.send("t", 12, partition=3)
    assert tuple(watcher.told[0][0]) == ("t", 3, -1, -1, -1, -1)


# ------------------------------------------------------------------------------------------------ partitions


@pytest.mark.parametrize("answer", [-1, 2, 99])
def test_a_partition_that_does_not_exist_is_refused(answer):
    """Requirement 18."""
    watcher = Watcher()
    rig = Rig(partitioner=Fixed(answer), interceptors=[watcher])
    rig.know("t", 2)
    with pytest.raises(ValueError, match=f"chose partition {answer} of topic 't'"):
        rig.send("t", b"x")
    assert isinstance(watcher.told[0][1], ValueError)


@pytest.mark.parametrize("answer", [None, "1", 1.0, True])
def test_a_partitioner_must_give_a_number(answer):
    rig = Rig(partitioner=Fixed(answer))
    rig.know("t", 2)
    with pytest.raises(TypeError, match="must give an int"):
        rig.send("t", b"x")


def test_an_explicit_partition_overrides_the_partitioner():
    rig = Rig(partitioner=Fixed(0))
    rig.know("t", 2)
    rig.send("t", b"x", partition=1)
    assert sent_to(rig) == [1]


def test_a_key_chooses_the_same_partition_on_both_paths():
    fast, general = Rig(linger_ms=1000), Rig(linger_ms=1000, interceptors=[Watcher()])
    for rig in (fast, general):
        rig.know("t", 7)
        for number in range(40):
            rig.send("t", b"x", b"key %d" % number)
        rig.parts.accumulator.flush()
    placed = [
        {batch.partition: [record.key for record in batch.records] for batch in rig.read(rig.await_request())}
        for rig in (fast, general)
    ]
    assert placed[0] == placed[1]
    assert len(placed[0]) > 3


def test_keys_can_be_ignored():
    rig = Rig(partitioner_ignore_keys=True, linger_ms=1000)
    rig.know("t", 7)
    for number in range(20):
        rig.send("t", b"x", b"key %d" % number)
    rig.parts.accumulator.flush()
    assert len(sent_to(rig)) == 1


class OnNewBatch(Partitioner):
    """Takes notes, and moves to the next partition with each new batch."""

    def __init__(self) -> None:
        self.current = 0
        self.new_batches: list[int] = []

    def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
        return self.current

    def on_new_batch(self, topic, cluster, previous):
        self.new_batches.append(previous)
        self.current = (previous + 1) % cluster.partition_count(topic)


def test_a_partitioner_is_told_of_new_batches_and_asked_again():
    partitioner = OnNewBatch()
    rig = Rig(partitioner=partitioner, batch_size=200, linger_ms=1000)
    rig.know("t", 3)
    for _ in range(5):
        rig.send("t", b"x" * 50)
    # Two records fit into a batch.
    assert partitioner.new_batches == [0, 1, 2]
    rig.send("t", b"x", partition=1)
    assert partitioner.new_batches == [0, 1, 2]  # an explicit partition is none of its business


def test_a_partitioner_is_not_told_of_a_batch_that_waits_for_memory():
    partitioner = OnNewBatch()
    rig = Rig(partitioner=partitioner, linger_ms=1000)
    rig.know("t", 3)
    rig.send("t", b"x")
    assert partitioner.new_batches == [0]
    taken = []
    while (chunk := rig.parts.accumulator.pool.try_take(1024)) is not None:
        taken.append(chunk)

    def send_on() -> None:
        while True:
            rig.send("t", b"x" * 100)

    with pytest.raises(BufferExhaustedError):
        send_on()
    assert partitioner.new_batches == [0]


@pytest.mark.parametrize(
    ("partitioner", "partitions"), [(RoundRobinPartitioner(), 3), (StickyPartitioner(), 1)]
)
def test_the_partitioners_of_older_clients(partitioner, partitions):
    rig = Rig(partitioner=partitioner, linger_ms=1000)
    rig.know("t", 3)
    for _ in range(6):
        rig.send("t", b"x")
    rig.parts.accumulator.flush()
    assert len(sent_to(rig)) == partitions


# ----------------------------------------------------------------------------------------------------- size


def test_a_record_that_is_too_large_is_refused_and_the_interceptor_knows_where_it_went():
    """Requirement 13."""
    watcher = Watcher()
    rig = Rig(max_request_size=1000, interceptors=[watcher])
    rig.know("t", 4)
    free = rig.available_memory
    with pytest.raises(RecordTooLargeError, match=r"max\.request\.size allows \(1000\)") as caught:
        rig.send("t", b"x" * 1000, partition=2)
    assert caught.value.size is not None
    assert caught.value.size > 1000
    assert (caught.value.limit, caught.value.option) == (1000, "max.request.size")
    ((metadata, error, _),) = watcher.told
    assert tuple(metadata) == ("t", 2, -1, -1, -1, -1)
    assert isinstance(error, RecordTooLargeError)
    assert rig.available_memory == free


def test_the_partition_that_a_key_chose_is_told_too():
    """Requirement 13."""
    watcher = Watcher()
    rig = Rig(max_request_size=1000, interceptors=[watcher])
    rig.know("t", 4)
    with pytest.raises(RecordTooLargeError):
        rig.send("t", b"x" * 1000, b"key")
    assert watcher.told[0][0].partition in range(4)


def test_a_record_larger_than_all_memory_is_refused():
    rig = Rig(buffer_memory=2000, batch_size=500)
    rig.know("t")
    with pytest.raises(RecordTooLargeError, match=r"buffer\.memory allows \(2000\)"):
        rig.send("t", b"x" * 2000)


@pytest.mark.parametrize("interceptors", [[], [Watcher()]], ids=["fast", "general"])
def test_the_largest_record_that_fits_is_taken(interceptors):
    rig = Rig(max_request_size=1000, interceptors=interceptors)
    rig.know("t")
    size = next(size for size in range(1000, 0, -1) if estimate_record_size(None, size) == 1000)
    rig.send("t", b"warm up")
    rig.send("t", b"x" * size)
    with pytest.raises(RecordTooLargeError):
        rig.send("t", b"x" * (size + 1))


# --------------------------------------------------------------------------------------------------- memory


def test_a_send_without_memory_waits_and_goes_on():
    rig = Rig(buffer_memory=1000, batch_size=1000, max_block_ms=5000)
    rig.know("t")
    rig.acknowledge_all()
    for number in range(5):
        rig.send("t", b"%d" % number * 900)
    rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())
    assert rig.available_memory == 1000


def test_memory_that_does_not_come_back_in_time_is_an_error():
    watcher = Watcher()
    rig = Rig(buffer_memory=1000, batch_size=1000, max_block_ms=500, interceptors=[watcher])
    rig.know("t")
    rig.send("t", b"x" * 900)
    with pytest.raises(BufferExhaustedError, match="waited 500 ms"):
        rig.send("t", b"x" * 900)
    assert isinstance(watcher.told[-1][1], BufferExhaustedError)
    assert rig.parts.accumulator.pool.waiting() == 0


def test_metadata_and_memory_share_one_budget():
    rig = Rig(brokers=2, buffer_memory=1000, batch_size=1000, max_block_ms=1000)
    rig.know("t", leaders=[1])
    rig.send("t", b"x" * 900)
    rig.await_request(broker=1)
    rig.network.after(0.7, lambda: rig.cluster.add_topic("late", leaders=[1]))
    started = rig.clock.now()
    with pytest.raises(BufferExhaustedError):
        rig.send("late", b"x" * 900)
    assert rig.clock.now() - started == pytest.approx(1.0, abs=0.01)


def test_steps_that_are_given_up_leave_no_memory_behind():
    rig = Rig(buffer_memory=1000, batch_size=1000)
    rig.know("t")
    steps = rig.steps(ProducerRecord("t", b"x"))
    assert [next(steps), next(steps)] == ["memory", "second look"]
    steps.close()  # as when Ctrl-C comes between two steps
    assert rig.available_memory == 1000


# --------------------------------------------------------------------------------------------- interceptors


def test_interceptors_see_every_record_and_every_outcome():
    """Requirement 14."""
    watcher, told = Watcher(), []
    rig = Rig(interceptors=[watcher], linger_ms=5, retries=0)
    rig.know("t")
    rig.send(
        "t",
        b"a",
        headers=[("h", b"1")],
        on_delivery=lambda *args: told.append(("user", len(watcher.told), args)),
    )
    rig.await_request()
    rig.answer(base_offset=4)
    rig.send("t", b"b", on_delivery=lambda *args: told.append(("user", len(watcher.told), args)))
    rig.await_request()
    rig.answer(error_code=87)
    assert [record.value for record in watcher.sent] == [b"a", b"b"]
    assert [count for _, count, _ in told] == [1, 2]  # the interceptor comes first
    assert watcher.told[0][0].offset == 4
    assert watcher.told[0][2] == (Header("h", b"1"),)
    metadata, error, _ = watcher.told[1]
    assert tuple(metadata) == ("t", 0, -1, -1, -1, -1)
    assert error is told[1][2][1] is not None


def test_interceptors_without_on_send_learn_of_every_outcome():
    class Outcomes(Interceptor):
        told: list = []

        def on_acknowledgement(self, metadata, error, headers):
            self.told.append((metadata.offset, type(error), headers))

    rig = Rig(interceptors=[Outcomes()], linger_ms=5)
    rig.know("t")
    rig.send("t", b"0")
    rig.send("t", b"1", headers={"h": b"1"})
    rig.send("t", b"2", on_delivery=lambda metadata, _: Outcomes.told.append(metadata.offset))
    rig.send("t", b"3")
    with pytest.raises(SerializationError):
        rig.send("t", "text")
    assert Outcomes.told.pop() == (-1, SerializationError, ())
    rig.await_request()
    rig.answer(base_offset=0)
    header = (Header("h", b"1"),)
    none = type(None)
    assert Outcomes.told == [(0, none, ()), (1, none, header), (2, none, ()), 2, (3, none, ())]


def test_a_failing_interceptor_breaks_nothing(caplog):
    class Bad(Watcher):
        def on_send(self, record):
            raise RuntimeError("no")

        def on_acknowledgement(self, metadata, error):
            raise RuntimeError("nor")

    rig = Rig(interceptors=[Bad()])
    rig.know("t")
    with caplog.at_level(logging.ERROR):
        delivery = rig.send("t", b"a")
        rig.await_request()
        rig.answer(base_offset=1)
    assert delivery.result(0).offset == 1
    assert len(caplog.records) == 2


def test_an_interceptor_may_change_the_record():
    class Redirect(Watcher):
        def on_send(self, record):
            return ProducerRecord("other", record.value, record.key, record.headers)

    rig = Rig(interceptors=[Redirect()])
    rig.know("other")
    rig.send("t", b"a")
    assert rig.read(rig.await_request())[0].topic == "other"


def test_interceptors_are_told_of_a_time_out_for_metadata():
    watcher = Watcher()
    rig = Rig(interceptors=[watcher], max_block_ms=100)
    with pytest.raises(KafkaTimeoutError):
        rig.send("gone", b"x")
    assert tuple(watcher.told[0][0])[:2] == ("gone", -1)


# ----------------------------------------------------------------------------------------------- the rest


def test_a_closed_producer_takes_no_records():
    watcher = Watcher()
    rig = Rig(interceptors=[watcher])
    rig.know("t")
    rig.parts.send_path.closed = True
    with pytest.raises(ProducerClosedError):
        rig.send("t", b"x")
    assert isinstance(watcher.told[0][1], ProducerClosedError)


def test_a_record_that_meets_a_closed_queue_is_refused():
    rig = Rig()
    rig.know("t", 2)
    rig.send("t", b"x", partition=0)
    rig.parts.accumulator.close()
    for partition in (0, 1):
        with pytest.raises(ProducerClosedError):
            rig.send("t", b"x", partition=partition)


@pytest.mark.parametrize(("given", "written"), [(5, 5), (None, 1_000_000), (0, 0), (2**63 - 1, 2**63 - 1)])
def test_a_record_has_its_own_time_or_the_present(given, written):
    rig = Rig()
    rig.know("t")
    rig.send("t", b"x", timestamp_ms=given)
    assert rig.read(rig.await_request())[0].records[0].timestamp == written


def test_a_time_that_the_format_cannot_hold_is_refused():
    rig = Rig()
    rig.know("t")
    with pytest.raises(ValueError, match="timestamp"):
        rig.send("t", b"x", timestamp_ms=2**63)
    assert not rig.parts.accumulator.has_incomplete()


def test_a_record_may_be_empty():
    rig = Rig()
    rig.know("t")
    rig.send("t", None)
    record = rig.read(rig.await_request())[0].records[0]
    assert (record.key, record.value) == (None, None)
