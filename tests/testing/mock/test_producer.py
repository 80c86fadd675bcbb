# SPDX-License-Identifier: Apache-2.0
"""The producer for unit tests: what it remembers, what it refuses, and that it has the real producer's calls."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from penstock import Delivery, Producer
from penstock._primitives_cy import partition_for_key
from penstock.errors import (
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageTooLargeError,
    ProducerClosedError,
    ProducerFencedError,
    SerializationError,
    TransactionAbortableError,
)
from penstock.partitioners import Partitioner
from penstock.producer.metadata.cluster import PartitionInfo
from penstock.serializers import JsonSerializer, StringSerializer
from penstock.testing.mock.delivery import MockDelivery
from penstock.testing.mock.producer import MockProducer
from penstock.testing.mock.settings import MockPartitionInfo
from penstock.types import Header, ProducerRecord, RecordMetadata, TopicPartition

ORDERS_0 = TopicPartition("orders", 0)


def manual(**options: Any) -> MockProducer:
    return MockProducer(auto_complete=False, **options)


def transactional(**options: Any) -> MockProducer:
    producer = MockProducer(transactional_id="t", **options)
    producer.init_transactions()
    return producer


def in_transaction(producer: MockProducer, *steps: Callable[[], object]) -> None:
    with producer.transaction():
        for step in steps:
            step()


class FixedClock:
    def now(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1234


# ---------------------------------------------------------------------------------------------- same as the real one


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    signature = inspect.signature(function)
    return [(name, parameter.kind, parameter.default) for name, parameter in signature.parameters.items()]


def public_methods(cls: type) -> list[str]:
    return sorted(
        name for name in dir(cls) if not name.startswith("_") and callable(inspect.getattr_static(cls, name))
    )


@pytest.mark.parametrize("name", sorted(public_methods(Producer)))
def test_every_call_of_the_producer_is_there_with_the_same_parameters(name: str) -> None:
    assert parameters(getattr(MockProducer, name)) == parameters(getattr(Producer, name))


def test_the_constructor_takes_what_the_producer_takes_and_some_more_by_name() -> None:
    mine, real = parameters(MockProducer), parameters(Producer)
    extra = [parameter for parameter in mine if parameter not in real]
    assert [parameter for parameter in mine if parameter in real] == real
    assert {kind for _, kind, _ in extra} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", ["result", "exception", "done", "add_done_callback"])
def test_a_delivery_has_the_real_ones_methods(name: str) -> None:
    mine, real = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (MockDelivery, Delivery))
    assert mine == real


def test_partitions_are_described_by_the_same_fields() -> None:
    assert MockPartitionInfo._fields == PartitionInfo._fields


# ---------------------------------------------------------------------------------------------- records


def test_a_record_is_acknowledged_inside_send_and_remembered() -> None:
    producer = MockProducer(clock=FixedClock())
    delivery = producer.send("orders", b"value", b"k1", headers={"trace": b"7f"})
    assert delivery.done()
    assert delivery.result(0) == RecordMetadata("orders", 0, 0, 1234, 2, 5)
    assert producer.history() == [ProducerRecord("orders", b"value", b"k1", (Header("trace", b"7f"),))]


def test_offsets_count_from_zero_in_each_partition() -> None:
    producer = MockProducer(topics={"a": 2, "b": 1})
    places = [("a", 0), ("a", 1), ("a", 0), ("b", 0), ("a", 1)]
    offsets = [producer.send(topic, b"v", partition=number).result(0).offset for topic, number in places]
    assert offsets == [0, 0, 1, 0, 1]


def test_metadata_has_the_records_own_timestamp_and_null_sizes() -> None:
    metadata = MockProducer(clock=FixedClock()).send("orders", timestamp_ms=77).result(0)
    assert metadata == RecordMetadata("orders", 0, 0, 77, -1, -1)


def test_history_is_a_copy() -> None:
    producer = MockProducer()
    producer.send("orders", b"v")
    producer.history().clear()
    assert len(producer.history()) == 1


def test_a_record_goes_where_its_key_belongs() -> None:
    producer = MockProducer(topics={"orders": 7})
    for number in range(20):
        key = b"key-%d" % number
        assert producer.send("orders", b"v", key).result(0).partition == partition_for_key(key, 7)


def test_records_without_a_key_take_turns() -> None:
    producer = MockProducer(topics={"orders": 3})
    assert [producer.send("orders", b"v").result(0).partition for _ in range(5)] == [0, 1, 2, 0, 1]


class LastPartition(Partitioner):
    closed = False

    def partition(
        self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any
    ) -> int:
        return int(cluster.partition_count(topic)) - 1

    def close(self) -> None:
        self.closed = True


class BeyondTheEnd(Partitioner):
    def partition(
        self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any
    ) -> int:
        return int(cluster.partition_count(topic))


@pytest.mark.parametrize("name", ["partitioner", "partitioner.class"])
@pytest.mark.parametrize("partitioner", [LastPartition, LastPartition()])
def test_a_partitioner_of_ones_own_is_asked(name: str, partitioner: Any) -> None:
    producer = MockProducer({name: partitioner}, topics={"orders": 4})
    assert producer.send("orders", b"v", b"k").result(0).partition == 3
    assert producer.send("orders", b"v", b"k", partition=1).result(0).partition == 1


def test_a_partitioner_cannot_choose_a_partition_that_does_not_exist() -> None:
    producer = MockProducer(topics={"orders": 4}, partitioner=BeyondTheEnd())
    with pytest.raises(ValueError, match="partition 4"):
        producer.send("orders", b"v")
    assert producer.history() == []


def test_serializers_run_and_may_be_functions() -> None:
    producer = MockProducer(key_serializer=StringSerializer(), value_serializer=lambda value: b"x" * value)
    assert producer.send("orders", 3, "key").result(0)[-2:] == (3, 3)
    assert producer.history() == [ProducerRecord("orders", 3, "key")]


def test_what_cannot_be_serialized_is_not_accepted() -> None:
    producer = MockProducer()
    with pytest.raises(SerializationError):
        producer.send("orders", "text")
    assert producer.history() == []


def test_only_given_topics_exist_where_any_are_given() -> None:
    producer = MockProducer(topics={"orders": 2})
    with pytest.raises(KafkaTimeoutError, match="payments"):
        producer.send("payments", b"v")
    with pytest.raises(KafkaTimeoutError, match="partition 2"):
        producer.send("orders", b"v", partition=2)
    with pytest.raises(KafkaTimeoutError, match="payments"):
        producer.partitions_for("payments")
    assert [info.partition for info in producer.partitions_for("orders")] == [0, 1]


def test_without_topics_any_topic_and_any_named_partition_will_do() -> None:
    producer = MockProducer()
    assert producer.send("anything", b"v", partition=9).result(0).partition == 9
    assert len(producer.partitions_for("anything")) == 1


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="orders"):
        MockProducer(topics={"orders": 0})


@pytest.mark.parametrize("topics", [["orders"], "orders", 3, {"orders": "3"}, {"orders": True}, {1: 2}])
def test_topics_that_are_no_mapping_to_numbers_are_refused(topics: Any) -> None:
    with pytest.raises(
        TypeError, match=r"topics are names with numbers of partitions, like {'orders': 3}, not"
    ):
        MockProducer(topics=topics)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda producer: producer.send(""), ValueError),
        (lambda producer: producer.send(b"orders"), TypeError),
        (lambda producer: producer.send("orders", partition=-1), ValueError),
        (lambda producer: producer.send("orders", on_delivery="no"), TypeError),
        (lambda producer: producer.send_record("orders"), TypeError),
        (lambda producer: producer.close(-1), ValueError),
        (lambda producer: producer.error_next(ValueError("no")), TypeError),
        (lambda producer: producer.raise_on("sned", KafkaError("no")), ValueError),
        (lambda producer: producer.raise_on("send", KafkaError("no"), times=0), ValueError),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(MockProducer())


# ---------------------------------------------------------------------------------------------- options


def test_options_of_the_real_producer_are_accepted_and_kept() -> None:
    producer = MockProducer({"bootstrap.servers": "b:9092"}, linger_ms=5, value_serializer=JsonSerializer)
    assert producer.options["bootstrap_servers"] == "b:9092"
    assert producer.options["linger_ms"] == 5
    assert producer.send("orders", {"a": 1}).result(0).serialized_value_size == len('{"a":1}')


def test_it_reads_no_file() -> None:
    with pytest.raises(ConfigError, match="reads no file"):
        MockProducer("producer.properties")


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {"lingerms": 5}),
        ({"linger.mss": 5}, {}),
        ({"queue.buffering.max.ms": 5}, {}),
        ({"sasl.username": "me"}, {}),
        ({"ssl.truststore.location": "x"}, {}),
        ({5: "x"}, {}),
        ({"linger.ms": 5}, {"linger_ms": 6}),
        ({}, {"linger_ms": -1}),
        ({}, {"linger_ms": None}),
        ({}, {"linger_ms": 1.5}),
        ({}, {"acks": "most"}),
        ({}, {"compression_type": "brotli"}),
        ({}, {"bootstrap_servers": "localhost"}),
        ({}, {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}),
        ({}, {"transactional_id": " "}),
        ({}, {"transactional_id": "t", "acks": 1}),
        ({}, {"enable_idempotence": True, "retries": 0}),
        ({}, {"delivery_timeout_ms": 1}),
        ({}, {"key_serializer": 5}),
        ({}, {"key_serializer": "nowhere"}),
        ({}, {"partitioner": object()}),
        ({}, {"partitioner": "murmur2_random"}),
    ],
)
def test_an_option_is_refused_as_the_real_producer_refuses_it(config: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as here:
        MockProducer(config, **options)
    servers = {} if "bootstrap_servers" in options else {"bootstrap.servers": "b:9092"}
    with pytest.raises(ConfigError) as there:
        Producer(servers | config, **options)
    assert str(here.value) == str(there.value)
    assert here.value.option == there.value.option


def test_the_same_value_twice_is_no_contradiction() -> None:
    assert MockProducer({"linger.ms": "5"}, linger_ms=5).options == {"linger_ms": 5}


class Configured(StringSerializer):
    seen: ClassVar[list[dict[str, Any]]] = []

    def configure(self, config: dict[str, Any]) -> None:
        self.seen.append(config)


def test_what_is_named_is_made_and_told_the_configuration() -> None:
    Configured.seen.clear()
    producer = MockProducer(
        {"key.serializer": "penstock.serializers:StringSerializer"},
        value_serializer=Configured,
        linger_ms="7",
    )
    assert producer.send("orders", "value", "key").result(0).serialized_key_size == 3
    (told,) = Configured.seen
    assert (told["linger.ms"], told["acks"], told["client.id"]) == (7, -1, "mock-producer")


class NeverMade:
    def __init__(self) -> None:
        raise AssertionError("interceptors do not run, and are not made")


def test_interceptors_are_not_made() -> None:
    assert MockProducer(interceptors=[NeverMade]).options["interceptors"] == [NeverMade]


# ---------------------------------------------------------------------------------------------- completing by hand


def test_records_wait_until_the_test_completes_them_in_order() -> None:
    producer = manual()
    first, second = producer.send("orders", b"1"), producer.send("orders", b"2")
    assert not first.done()
    assert len(producer.history()) == producer.pending_count == 2
    assert producer.complete_next()
    assert (first.done(), second.done()) == (True, False)
    with pytest.raises(KafkaTimeoutError, match="complete_next"):
        second.result(0)
    assert producer.complete_next()
    assert second.result(0).offset == 1
    assert not producer.complete_next()


def test_a_failed_record_has_its_error_and_takes_no_offset() -> None:
    producer = manual()
    told: list[tuple[RecordMetadata, Exception | None]] = []
    failed = producer.send("orders", b"1", on_delivery=lambda *outcome: told.append(outcome))
    fine = producer.send("orders", b"2")
    error = MessageTooLargeError()
    assert producer.error_next(error)
    assert failed.exception(0) is error
    with pytest.raises(MessageTooLargeError):
        failed.result(0)
    assert told == [(RecordMetadata("orders", 0, -1, -1, -1, -1), error)]
    assert producer.complete_next()
    assert fine.result(0).offset == 0
    assert fine.exception(0) is None
    assert not producer.error_next(error)


def test_flush_completes_everything() -> None:
    producer = manual()
    deliveries = [producer.send("orders", b"v") for _ in range(3)]
    producer.flush(timeout=1)
    assert [delivery.result(0).offset for delivery in deliveries] == [0, 1, 2]
    assert producer.pending_count == 0


def test_a_delivery_is_done_after_its_callback_and_before_its_followers() -> None:
    producer = manual()
    seen: list[tuple[str, bool, int]] = []
    delivery = producer.send(
        "orders",
        b"v",
        on_delivery=lambda metadata, error: seen.append(
            ("callback", delivery.done(), delivery.result(0).offset)
        ),
    )
    delivery.add_done_callback(lambda it: seen.append(("follower", it.done(), it.result(0).offset)))
    producer.complete_next()
    delivery.add_done_callback(lambda it: seen.append(("late", it.done(), it.result(0).offset)))
    assert seen == [("callback", False, 0), ("follower", True, 0), ("late", True, 0)]


def test_what_callbacks_raise_is_logged_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("callback trouble")

    producer = manual()
    delivery = producer.send("orders", b"v", on_delivery=broken)
    delivery.add_done_callback(broken)
    producer.complete_next()
    assert delivery.done()
    assert [record.exc_text.count("callback trouble") > 0 for record in caplog.records] == [True, True]
    assert "on_delivery callback for orders-0 raised (it is called with (metadata, error))" in caplog.text


def test_a_callback_may_send_but_not_wait() -> None:
    producer = manual()
    refused: list[BaseException] = []

    def on_delivery(metadata: RecordMetadata, error: Exception | None) -> None:
        producer.send("audit", b"v")
        try:
            producer.flush()
        except IllegalStateError as refusal:
            refused.append(refusal)

    producer.send("orders", b"v", on_delivery=on_delivery)
    producer.flush()
    assert "delivery callback" in str(refused[0])
    assert [record.topic for record in producer.history()] == ["orders", "audit"]
    assert producer.pending_count == 0


def test_another_thread_can_wait_for_a_record() -> None:
    producer = manual()
    delivery = producer.send("orders", b"v")
    offsets: list[int] = []
    waiter = threading.Thread(target=lambda: offsets.append(delivery.result(60).offset))
    waiter.start()
    producer.complete_next()
    waiter.join(60)
    assert offsets == [0]


def test_deliveries_can_be_awaited() -> None:
    producer = manual()

    async def send_two() -> tuple[int, KafkaError]:
        good, bad = producer.send("orders", b"1"), producer.send("orders", b"2")
        loop = asyncio.get_running_loop()
        loop.call_soon(producer.complete_next)
        loop.call_soon(producer.error_next, MessageTooLargeError())
        with pytest.raises(MessageTooLargeError) as caught:
            await bad
        return (await good).offset, caught.value

    offset, error = asyncio.run(send_two())
    assert offset == 0
    assert isinstance(error, MessageTooLargeError)


def test_threads_may_share_it() -> None:
    producer = MockProducer()
    threads = [
        threading.Thread(target=lambda: [producer.send("orders", b"v") for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(producer.history()) == 800
    assert producer.send("orders", b"v").result(0).offset == 800


# ---------------------------------------------------------------------------------------------- closing


def test_close_delivers_what_is_pending_and_refuses_what_comes() -> None:
    partitioner = LastPartition()
    with manual(partitioner=partitioner) as producer:
        delivery = producer.send("orders", b"v")
    assert delivery.result(0).offset == 0
    assert producer.closed
    assert partitioner.closed
    producer.close()
    for call in (lambda: producer.send("orders", b"v"), producer.flush, lambda: producer.partitions_for("x")):
        with pytest.raises(ProducerClosedError):
            call()


def test_close_without_time_fails_what_is_pending() -> None:
    producer = manual()
    delivery = producer.send("orders", b"v")
    producer.close(0)
    assert isinstance(delivery.exception(0), ProducerClosedError)


def test_transaction_calls_are_refused_after_close() -> None:
    producer = transactional()
    producer.close()
    for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
        with pytest.raises(ProducerClosedError):
            call()


# ---------------------------------------------------------------------------------------------- transactions


def test_commit_publishes_and_abort_drops() -> None:
    producer = transactional()
    producer.begin_transaction()
    producer.send("orders", b"1")
    assert producer.history() == []
    assert producer.uncommitted_records() == [ProducerRecord("orders", b"1")]
    producer.commit_transaction()
    assert producer.history() == [ProducerRecord("orders", b"1")]
    producer.begin_transaction()
    producer.send("orders", b"2")
    producer.abort_transaction()
    assert producer.history() == [ProducerRecord("orders", b"1")]
    assert producer.uncommitted_records() == []
    assert (producer.commit_count, producer.abort_count) == (1, 1)
    assert not producer.transaction_in_flight


def test_ending_a_transaction_completes_its_records() -> None:
    producer = transactional(auto_complete=False)
    producer.begin_transaction()
    delivery = producer.send("orders", b"1")
    producer.commit_transaction()
    assert delivery.done()


def test_offsets_are_committed_with_the_transaction_only() -> None:
    producer = transactional()
    with producer.transaction():
        producer.send_offsets_to_transaction({ORDERS_0: 5, TopicPartition("orders", 1): 2}, "billing")
        producer.send_offsets_to_transaction({ORDERS_0: 6}, "billing")
        assert producer.committed_offsets() == []
        assert producer.uncommitted_offsets()["billing"][ORDERS_0] == 6
    producer.begin_transaction()
    producer.send_offsets_to_transaction({ORDERS_0: 9}, "billing")
    producer.abort_transaction()
    with producer.transaction():
        producer.send_offsets_to_transaction({}, "billing")
    assert producer.committed_offsets() == [{"billing": {ORDERS_0: 6, TopicPartition("orders", 1): 2}}]
    assert producer.uncommitted_offsets() == {}


@pytest.mark.parametrize(
    ("offsets", "group", "error"),
    [
        ({ORDERS_0: -1}, "g", ValueError),
        ({ORDERS_0: "1"}, "g", TypeError),
        ({"orders": 1}, "g", TypeError),
        ([ORDERS_0], "g", TypeError),
        ({ORDERS_0: 1}, "", ValueError),
        ({ORDERS_0: 1}, None, TypeError),
    ],
)
def test_wrong_offsets_are_refused(offsets: Any, group: Any, error: type[Exception]) -> None:
    producer = transactional()
    producer.begin_transaction()
    with pytest.raises(error):
        producer.send_offsets_to_transaction(offsets, group)
    assert producer.uncommitted_offsets() == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.begin_transaction(),
        lambda producer: producer.send_offsets_to_transaction({ORDERS_0: 1}, "g"),
        lambda producer: producer.commit_transaction(),
        lambda producer: producer.abort_transaction(),
        lambda producer: producer.fence_producer(),
        lambda producer: producer.send("orders", b"v"),
    ],
)
def test_nothing_goes_before_init(call: Any) -> None:
    with pytest.raises(IllegalStateError, match=r"init_transactions\(\)"):
        call(MockProducer(transactional_id="t"))


def test_a_record_outside_a_transaction_is_told_where_to_be_sent() -> None:
    producer = MockProducer(transactional_id="t")
    producer.init_transactions()
    with pytest.raises(IllegalStateError, match=r"^no transaction is open: .* `producer\.transaction\(\)`"):
        producer.send("orders", b"v")


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send_offsets_to_transaction({ORDERS_0: 1}, "g"),
        lambda producer: producer.commit_transaction(),
        lambda producer: producer.abort_transaction(),
        lambda producer: producer.send("orders", b"v"),
        lambda producer: producer.init_transactions(),
    ],
)
def test_nothing_goes_between_transactions(call: Any) -> None:
    producer = transactional()
    with pytest.raises(IllegalStateError):
        call(producer)
    assert producer.history() == []


def test_transactions_do_not_nest() -> None:
    producer = transactional()
    producer.begin_transaction()
    with pytest.raises(IllegalStateError):
        producer.begin_transaction()
    assert producer.transaction_in_flight


def test_init_needs_an_id_from_somewhere() -> None:
    producer = MockProducer()
    with pytest.raises(IllegalStateError, match="transactional id"):
        producer.init_transactions()
    producer.init_transactions("given-late")
    producer.begin_transaction()
    assert producer.transaction_in_flight


def test_the_block_commits_or_aborts_and_raises_on() -> None:
    producer = transactional()
    with producer.transaction():
        producer.send("orders", b"1")
    with pytest.raises(ZeroDivisionError):
        in_transaction(producer, lambda: producer.send("orders", b"2"), lambda: 1 // 0)
    assert producer.history() == [ProducerRecord("orders", b"1")]
    assert (producer.commit_count, producer.abort_count) == (1, 1)


def test_a_failed_record_leaves_only_abort() -> None:
    producer = transactional(auto_complete=False)
    producer.begin_transaction()
    producer.send("orders", b"1")
    error = MessageTooLargeError()
    producer.error_next(error)
    for call in (
        lambda: producer.send("orders", b"2"),
        producer.commit_transaction,
        lambda: producer.send_offsets_to_transaction({ORDERS_0: 1}, "g"),
    ):
        with pytest.raises(TransactionAbortableError) as caught:
            call()
        assert caught.value.__cause__ is error
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", b"3")
    assert producer.history() == [ProducerRecord("orders", b"3")]


def test_the_block_aborts_when_a_record_failed() -> None:
    producer = transactional(auto_complete=False)
    with pytest.raises(TransactionAbortableError):
        in_transaction(
            producer,
            lambda: producer.send("orders", b"1"),
            lambda: producer.error_next(MessageTooLargeError()),
        )
    assert not producer.transaction_in_flight
    assert (producer.commit_count, producer.abort_count) == (0, 1)


def test_a_commit_whose_end_is_unknown_leaves_the_transaction_open() -> None:
    producer = transactional()
    producer.raise_on("commit_transaction", KafkaTimeoutError("no answer"), times=1)
    with pytest.raises(KafkaTimeoutError), producer.transaction():
        producer.send("orders", b"1")
    assert producer.transaction_in_flight
    producer.commit_transaction()
    assert len(producer.history()) == 1


def test_a_fenced_producer_refuses_everything() -> None:
    producer = transactional(auto_complete=False)
    producer.begin_transaction()
    pending = producer.send("orders", b"1")
    producer.fence_producer()
    assert producer.fenced
    assert isinstance(pending.exception(0), ProducerFencedError)
    for call in (
        producer.init_transactions,
        producer.begin_transaction,
        lambda: producer.send_offsets_to_transaction({ORDERS_0: 1}, "g"),
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        with pytest.raises(ProducerFencedError):
            call()
    with pytest.raises(ProducerFencedError) as caught:
        producer.send("orders", b"2")
    assert isinstance(caught.value.__cause__, ProducerFencedError)
    assert producer.history() == []


def test_a_block_that_was_fenced_raises_that() -> None:
    producer = transactional(auto_complete=False)

    def fail() -> None:
        producer.send("orders", b"1")
        producer.fence_producer()
        raise KafkaError("what a record said of it")

    with pytest.raises(ProducerFencedError) as caught:
        in_transaction(producer, fail)
    assert isinstance(caught.value.__cause__, KafkaError)


@pytest.mark.parametrize("trouble", ["fence_producer", "close"])
def test_the_first_error_stays_when_the_abort_fails_as_well(trouble: str) -> None:
    producer = transactional()
    with pytest.raises(ZeroDivisionError) as caught:
        in_transaction(producer, getattr(producer, trouble), lambda: 1 // 0)
    assert "abort_transaction() failed as well" in caught.value.__notes__[0]


def test_a_commit_during_which_the_producer_is_fenced_publishes_nothing() -> None:
    producer = transactional(auto_complete=False)
    producer.begin_transaction()
    producer.send("orders", b"1", on_delivery=lambda *_: producer.fence_producer())
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    assert producer.history() == []


# ---------------------------------------------------------------------------------------------- injected errors

CALLS: dict[str, Any] = {
    "send": lambda producer: producer.send("orders", b"v"),
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
    "partitions_for": lambda producer: producer.partitions_for("orders"),
    "metrics": lambda producer: producer.metrics(),
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction({ORDERS_0: 1}, "g"),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_any_call_can_be_made_to_fail_and_then_works_again(name: str) -> None:
    producer = transactional()
    producer.begin_transaction()
    error = KafkaTimeoutError("on purpose")
    producer.raise_on(name, error, times=2)
    for _ in range(2):
        with pytest.raises(KafkaTimeoutError) as caught:
            CALLS[name](producer)
        assert caught.value is error
    assert (producer.history(), producer.transaction_in_flight, producer.closed) == ([], True, False)
    CALLS[name](producer)


def test_init_and_begin_can_be_made_to_fail() -> None:
    producer = MockProducer(transactional_id="t")
    producer.raise_on("init_transactions", KafkaTimeoutError("on purpose"), times=1)
    with pytest.raises(KafkaTimeoutError):
        producer.init_transactions()
    producer.init_transactions()
    producer.raise_on("begin_transaction", KafkaError("on purpose"))
    for _ in range(3):
        with pytest.raises(KafkaError, match="on purpose"):
            producer.begin_transaction()
    producer.raise_on("begin_transaction", None)
    producer.begin_transaction()


# ---------------------------------------------------------------------------------------------- the rest


def test_metrics_are_what_the_test_put_there() -> None:
    producer = MockProducer()
    assert producer.metrics() == {}
    producer.mock_metrics["producer-metrics"] = {"record-send-total": 3}
    producer.metrics()["producer-metrics"].clear()
    assert producer.metrics() == {"producer-metrics": {"record-send-total": 3}}


def test_clear_forgets_records_but_not_the_state() -> None:
    producer = transactional(auto_complete=False)
    with producer.transaction():
        producer.send("orders", b"1")
        producer.send_offsets_to_transaction({ORDERS_0: 1}, "g")
    producer.begin_transaction()
    pending = producer.send("orders", b"2")
    producer.raise_on("flush", KafkaError("on purpose"))
    producer.clear()
    assert isinstance(pending.exception(0), KafkaError)
    assert (producer.history(), producer.committed_offsets(), producer.uncommitted_records()) == ([], [], [])
    assert producer.transaction_in_flight
    delivery = producer.send("orders", b"3")
    producer.flush()
    assert delivery.result(0).offset == 1
    producer.commit_transaction()
    assert producer.history() == [ProducerRecord("orders", b"3")]


def test_what_is_shown_tells_the_state() -> None:
    producer = manual()
    delivery = producer.send("orders", b"v")
    assert repr(producer) == "<MockProducer: open, 1 record pending>"
    assert repr(delivery) == "<MockDelivery orders-0 pending>"
    producer.error_next(KafkaError("trouble"))
    producer.close()
    assert repr(producer) == "<MockProducer: closed, 0 records pending>"
    assert repr(delivery) == "<MockDelivery orders-0 KafkaError('trouble')>"


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "detach_transaction"])
def test_a_record_sent_while_a_transaction_ends_has_its_outcome_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    producer = MockProducer(transactional_id="x", auto_complete=False)
    producer.init_transactions()
    producer.begin_transaction()
    acknowledge_all = producer._outbox.acknowledge_all
    late: list[MockDelivery] = []

    def and_another_thread_sends() -> None:
        acknowledge_all()
        if not late:
            late.append(producer.send("orders", b"late"))

    monkeypatch.setattr(producer._outbox, "acknowledge_all", and_another_thread_sends)
    getattr(producer, call)()
    assert late[0].done()
    assert producer.pending_count == 0
