# SPDX-License-Identifier: Apache-2.0
"""The Producer as users see it: real threads, real sockets on the loopback interface, a small broker."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fix_patience import SOON, closed_port, why_it_waited
from producer.fakes_sender import LoopbackBroker

from penstock import Interceptor, Producer, ProducerRecord, RecordMetadata, Serializer
from penstock.errors import (
    BootstrapError,
    BufferExhaustedError,
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    KafkaTimeoutError,
    NetworkError,
    NotKafkaError,
    ProducerClosedError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from penstock.testing import MockProducer


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    with LoopbackBroker(t=3, one=1) as running:
        yield running


@pytest.fixture
def make(broker: LoopbackBroker) -> Iterator[Callable[..., Producer]]:
    """Makes producers, and closes them."""
    made: list[Producer] = []

    def make_producer(**options: Any) -> Producer:
        options = {
            "bootstrap_servers": broker.address,
            "linger_ms": 0,
            "max_block_ms": 60_000,
            "enable_idempotence": False,
        } | options
        made.append(Producer(**options))
        return made[-1]

    yield make_producer
    broker.release()
    for producer in made:
        producer.close(SOON)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start work on a thread; its result, or what it raised, is in the list when it has ended."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def from_callback(producer: Producer, work: Callable[[], Any]) -> Any:
    """What a call gives, or raises, inside a delivery callback."""
    outcome: list[Any] = []
    called = threading.Event()

    def callback(metadata: object, error: object) -> None:
        try:
            outcome.append(work())
        except BaseException as raised:
            outcome.append(raised)
        called.set()

    producer.send("t", b"x", on_delivery=callback)
    assert called.wait(SOON)
    return outcome[0]


# -------------------------------------------------------------------------------------------------- sending


def test_a_record_goes_out_and_its_place_comes_back(make, broker):
    producer = make()
    metadata = producer.send("one", b"v", b"k", headers={"h": b"1"}, timestamp_ms=77).result(SOON)
    assert metadata == RecordMetadata("one", 0, 0, 77, 1, 1)
    record = broker.log[0].records[0]
    assert (record.key, record.value, record.timestamp, record.headers) == (b"k", b"v", 77, (("h", b"1"),))


def test_a_record_made_as_a_value_is_sent_the_same_way(make, broker):
    producer = make()
    metadata = producer.send_record(ProducerRecord("t", b"v", partition=2)).result(SOON)
    assert metadata.partition == 2


def test_records_of_a_partition_keep_their_order(make, broker):
    producer = make(linger_ms=2, batch_size=500)
    values = [b"%d" % number for number in range(500)]
    deliveries = [producer.send("one", value) for value in values]
    producer.flush(SOON)
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(500))
    assert broker.values("one") == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_all_levels_of_acknowledgement(make, acks):
    metadata = make(acks=acks).send("one", b"v").result(SOON)
    assert metadata.offset == (-1 if acks == "0" else 0)


def test_a_delivery_can_be_awaited(make):
    producer = make()
    producer.partitions_for("one")  # a wait in the loop would be warned of

    async def main() -> RecordMetadata:
        return await producer.send("one", b"v")

    assert asyncio.run(main()).offset == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": 5}, TypeError),
        ({"topic": b"t"}, TypeError),
        ({"topic": ""}, ValueError),
        ({"partition": -1}, ValueError),
        ({"partition": "1"}, TypeError),
        ({"timestamp_ms": -5}, ValueError),
        ({"headers": [("a",)]}, TypeError),
        ({"headers": [(b"a", b"b")]}, TypeError),
        ({"on_delivery": 5}, TypeError),
        ({"value": "text"}, SerializationError),
        ({"value": b"x" * 2_000_000}, RecordTooLargeError),
    ],
    ids=lambda value: str(next(iter(value.items())))[:30] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("warm", [False, True])
def test_bad_arguments_are_raised_by_send(make, warm, arguments, error):
    producer = make()
    if warm:
        producer.send("t", b"v").result(SOON)
    with pytest.raises(error):
        producer.send(**({"topic": "t", "value": b"v"} | arguments))
    assert producer.send("t", b"v").result(SOON).topic == "t"


@pytest.mark.parametrize("warm", [False, True])
def test_the_callback_of_other_clients_is_answered(make, warm):
    producer = make()
    if warm:
        producer.send("t", b"v").result(SOON)
    for either in (producer, MockProducer()):
        with pytest.raises(TypeError, match=r"no callback=; use on_delivery=.*\(metadata, error\)"):
            either.send("t", b"v", callback=print)


def test_send_record_takes_records_only(make):
    with pytest.raises(TypeError, match="must be a ProducerRecord, not tuple"):
        make().send_record(("t", b"v"))


def test_partitions_of_a_topic(make):
    producer = make()
    assert [info.partition for info in producer.partitions_for("t")] == [0, 1, 2]
    for bad in (5, None, ""):
        with pytest.raises((TypeError, ValueError)):
            producer.partitions_for(bad)
    assert len(producer.partitions_for("one")) == 1


def test_an_unknown_option_is_refused_before_anything_starts():
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="linger"):
        Producer(bootstrap_servers="127.0.0.1:9", lingr_ms=5)
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile


class Closes(Serializer):
    """Notes when it is closed, and what it is told."""

    def __init__(self) -> None:
        self.closed = 0
        self.config: dict[str, Any] = {}

    def configure(self, config: dict[str, Any]) -> None:
        self.config = config

    def serialize(self, topic, headers, data):
        return data

    def close(self):
        self.closed += 1


class ClosesInterceptor(Interceptor):
    """An interceptor that notes when it is closed, and the outcomes."""

    def __init__(self) -> None:
        self.closed = 0
        self.outcomes: list[Any] = []

    def on_acknowledgement(self, metadata, error):
        self.outcomes.append((metadata, error, self.closed))

    def close(self):
        self.closed += 1


def test_a_failed_constructor_closes_what_it_was_given():
    """Requirement 4."""
    serializer, interceptor = Closes(), ClosesInterceptor()
    before = set(threading.enumerate())
    with pytest.raises(BootstrapError):
        Producer(
            bootstrap_servers="nowhere.invalid:9092", value_serializer=serializer, interceptors=[interceptor]
        )
    assert (serializer.closed, interceptor.closed) == (1, 1)
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile


def test_plugins_see_the_client_id_that_was_generated(make):
    """Requirement 5."""
    made = []

    class Noting(Closes):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    producer = make(value_serializer=Noting)
    assert made[0].config["client.id"].startswith("producer-")
    assert made[0].config["client.id"] in repr(producer)
    assert producer._core.thread.name == f"penstock-producer-{made[0].config['client.id']}"


def test_the_text_form_says_what_it_is(make, broker):
    producer = make(client_id="me")
    assert repr(producer) == f"<Producer 'me' for {broker.address}: open>"
    producer.close()
    assert repr(producer) == f"<Producer 'me' for {broker.address}: closed>"


# ---------------------------------------------------------------------------------------------------- flush


def test_flush_waits_for_everything(make, broker):
    """Requirement 15."""
    producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
    deliveries = [producer.send("t", b"%d" % number) for number in range(10)]
    producer.flush(SOON)
    assert all(delivery.done() for delivery in deliveries)
    assert producer.metrics()["producer-metrics"]["flush-time-ns-total"] > 0


def test_flush_waits_for_what_is_in_flight(make, broker):
    """Requirement 15."""
    broker.hold = True
    producer = make()
    delivery = producer.send("t", b"v")
    assert broker.arrived.wait(SOON)
    thread, outcome = in_thread(producer.flush)
    thread.join(0.05)
    assert thread.is_alive()
    broker.release()
    thread.join(SOON)
    assert outcome == [None]
    assert delivery.done()


def test_a_flush_that_takes_too_long_says_how_much_is_left(make, broker):
    broker.hold = True
    producer = make()
    deliveries = [producer.send("t", b"v") for _ in range(3)]
    with pytest.raises(KafkaTimeoutError, match="3 records have no outcome yet") as caught:
        producer.flush(0.05)
    assert caught.value.records_left == 3
    broker.release()
    producer.flush(SOON)
    assert all(delivery.exception(0) is None for delivery in deliveries)


def test_records_linger_again_after_a_flush_that_was_given_up(make, broker):
    broker.hold = True
    producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.send("t", b"first", partition=0)
    while not broker.arrived.is_set():  # what was sent later than the flush was given up lingers, too
        with pytest.raises(KafkaTimeoutError):
            producer.flush(0.1)
    lingers = producer.send("t", b"second", partition=1)
    with pytest.raises(KafkaTimeoutError):
        lingers.result(0.1)
    assert broker.values() == [b"first"]


def test_a_flush_with_nothing_to_do_returns_at_once(make):
    make().flush(0)


def test_records_linger_again_after_a_flush(make, broker):
    producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.send("t", b"v")
    producer.flush(SOON)
    delivery = producer.send("t", b"v")
    with pytest.raises(KafkaTimeoutError):
        delivery.result(0.1)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("flush()", lambda producer: producer.flush()),
        ("Delivery.result()", lambda producer: producer.send("t", b"new").result()),
        ("Delivery.result()", lambda producer: producer.send("t", b"new").exception()),
        ("send()", lambda producer: producer.send("unknown", b"v")),
        ("partitions_for()", lambda producer: producer.partitions_for("unknown")),
    ],
)
def test_a_call_that_would_wait_is_refused_in_a_callback(make, name, call):
    """Requirement 15."""
    producer = make()
    producer.send("t", b"warm up").result(SOON)
    outcome = from_callback(producer, lambda: call(producer))
    assert isinstance(outcome, IllegalStateError)
    assert f"{name} was called from a delivery callback" in str(outcome)


def test_a_record_can_be_sent_from_a_callback(make):
    producer = make()
    producer.send("t", b"warm up").result(SOON)
    delivery = from_callback(producer, lambda: producer.send("t", b"again"))
    assert delivery.result(SOON).topic == "t"


def test_the_result_of_the_very_record_is_there_in_its_callback(make):
    producer = make()
    results: list[RecordMetadata] = []
    ready = threading.Event()

    def callback(metadata: RecordMetadata, error: object) -> None:
        assert ready.wait(SOON)
        results.append(delivery.result(0))

    delivery = producer.send("t", b"x", on_delivery=callback)
    ready.set()
    producer.flush(SOON)
    assert results == [delivery.result(0)]


# ---------------------------------------------------------------------------------------------------- close


def test_close_delivers_what_lingers(make, broker):
    producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
    delivery = producer.send("t", b"v")
    producer.close()
    assert delivery.exception(0) is None
    assert not producer._core.thread.is_alive()


def test_leaving_the_with_block_closes(broker):
    with Producer(bootstrap_servers=broker.address, linger_ms=1000, enable_idempotence=False) as producer:
        delivery = producer.send("t", b"v")
    assert delivery.exception(0) is None
    with pytest.raises(ProducerClosedError):
        producer.send("t", b"v")


def leave_by_an_error(broker: LoopbackBroker) -> Any:
    """The Delivery of a record that was sent in a with block which then raised."""
    sent = []
    try:
        with Producer(bootstrap_servers=broker.address, enable_idempotence=False) as producer:
            sent.append(producer.send("t", b"v"))
            raise ZeroDivisionError
    except ZeroDivisionError:
        return sent[0]


def test_leaving_the_with_block_by_an_error_still_delivers(broker):
    assert leave_by_an_error(broker).exception(0) is None


def test_leaving_the_with_block_by_an_error_waits_for_a_bounded_time(broker, monkeypatch):
    monkeypatch.setattr("penstock.producer.producer._AFTER_ERROR_SECONDS", 0.1)
    broker.hold = True
    assert isinstance(leave_by_an_error(broker).exception(0), ProducerClosedError)


@pytest.mark.parametrize("hold", [False, True])
def test_close_is_idempotent_and_closes_plugins_once(broker, hold):
    """Requirement 16."""
    serializer, interceptor = Closes(), ClosesInterceptor()
    producer = Producer(
        bootstrap_servers=broker.address,
        enable_idempotence=False,
        value_serializer=serializer,
        key_serializer=serializer,
        interceptors=[interceptor],
    )
    broker.hold = hold
    producer.send("t", b"v")
    for _ in range(3):
        producer.close(0.1 if hold else None)
    assert interceptor.closed == 1
    assert serializer.closed == 2  # it serves twice
    assert [closed for _, _, closed in interceptor.outcomes] == [0]  # told before it was closed


def test_a_negative_time_is_refused(make):
    """Requirement 16."""
    producer = make()
    with pytest.raises(ValueError, match="negative"):
        producer.close(-1)
    assert producer.send("t", b"v").result(SOON)


def test_close_without_time_fails_everything_at_once(make, broker):
    broker.hold = True
    producer = make(batch_size=200, linger_ms=60_000, delivery_timeout_ms=120_000)
    in_flight = producer.send("one", b"x" * 190)
    assert broker.arrived.wait(SOON)
    queued = producer.send("one", b"y")
    started = time.monotonic()
    producer.close(0)
    assert time.monotonic() - started < 30
    for delivery in (in_flight, queued):
        assert isinstance(delivery.exception(0), ProducerClosedError)
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


def test_close_gives_up_after_its_time(make, broker):
    broker.hold = True
    producer = make()
    delivery = producer.send("t", b"v")
    producer.close(0.1)
    assert isinstance(delivery.exception(0), ProducerClosedError)


def test_close_ends_a_send_that_waits_for_metadata(make):
    """Requirement 11."""
    producer = make(max_block_ms=60_000)
    thread, outcome = in_thread(lambda: producer.send("unknown", b"v"))
    while not producer._parts.metadata._waiters.topics:
        thread.join(0.01)
    producer.close()
    thread.join(SOON)
    assert isinstance(outcome[0], ProducerClosedError)


def test_close_ends_a_send_that_waits_for_memory(make, broker):
    broker.hold = True
    producer = make(max_block_ms=60_000, buffer_memory=1000, batch_size=1000)
    producer.send("t", b"x" * 900)
    thread, outcome = in_thread(lambda: producer.send("t", b"x" * 900))
    while not producer.metrics()["producer-metrics"]["waiting-threads"]:
        thread.join(0.01)
    producer.close(0)
    thread.join(SOON)
    assert isinstance(outcome[0], ProducerClosedError)


def test_close_in_a_callback_does_not_wait_for_itself(make, broker):
    serializer = Closes()
    producer = make(value_serializer=serializer)
    assert from_callback(producer, producer.close) is None
    producer.close(SOON)
    assert not producer._core.thread.is_alive()
    assert serializer.closed == 1


@pytest.mark.parametrize("another_waits", [False, True])
def test_close_in_a_callback_closes_plugins_after_their_last_call(make, another_waits):
    heard: list[str] = []

    class Hears(Interceptor):
        def on_acknowledgement(self, metadata, error):
            heard.append("acknowledged")

        def close(self):
            heard.append("closed")

    producer = make(linger_ms=60_000, interceptors=[Hears()])

    def close(*_: object) -> None:
        while another_waits and not producer._core.closed:
            time.sleep(0.001)
        producer.close()

    producer.send("t", b"a", partition=0, on_delivery=close)
    producer.send("t", b"b", partition=0)  # of the same batch
    if another_waits:
        producer.close()
    else:
        producer.flush()
        producer._core.thread.join(SOON)
    assert heard == ["acknowledged", "acknowledged", "closed"]


def test_a_second_close_waits_as_well(make, broker):
    broker.hold = True
    producer = make()
    delivery = producer.send("t", b"v")
    assert broker.arrived.wait(SOON)
    first, _ = in_thread(producer.close)
    while not producer._core.closed:
        first.join(0.01)
    second, _ = in_thread(producer.close)
    second.join(0.05)
    assert second.is_alive()
    broker.release()
    first.join(SOON)
    second.join(SOON)
    assert delivery.exception(0) is None


def test_a_callback_that_blocks_does_not_keep_close_for_ever(make, monkeypatch, caplog):
    monkeypatch.setattr("penstock.producer.lifecycle.FORCED_END_SECONDS", 0.1)
    producer = make()
    entered, leave = threading.Event(), threading.Event()

    def block(metadata: object, error: object) -> None:
        entered.set()
        leave.wait(SOON)

    producer.send("t", b"v", on_delivery=block)
    assert entered.wait(SOON)
    producer.close(0.05)
    (told,) = (record.getMessage() for record in caplog.records if "did not end" in record.getMessage())
    assert "it is still in test_a_callback_that_blocks_does_not_keep_close_for_ever.<locals>.block" in told
    assert f"({__file__}:" in told
    leave.set()


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("t", b"v"),
        lambda producer: producer.send("unknown", b"v"),
        lambda producer: producer.flush(),
        lambda producer: producer.partitions_for("t"),
    ],
)
def test_a_closed_producer_says_so(make, call):
    producer = make()
    producer.send("t", b"v").result(SOON)
    producer.close()
    with pytest.raises(ProducerClosedError):
        call(producer)
    producer.metrics()


# --------------------------------------------------------------------------------------------------- errors


def test_a_topic_that_does_not_exist(make):
    """Requirement 8."""
    producer = make(max_block_ms=200)
    error = why_it_waited(producer, lambda: producer.send("gone", b"v"))
    assert "Topic 'gone' does not exist" in str(error)
    assert isinstance(error.__cause__, UnknownTopicOrPartitionError)


def test_a_host_that_does_not_exist():
    with pytest.raises(BootstrapError, match=r"nowhere\.invalid:9092"):
        Producer(bootstrap_servers="nowhere.invalid:9092")


def test_a_port_where_nobody_listens():
    with (
        closed_port() as port,
        Producer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=200) as producer,
    ):
        error = why_it_waited(producer, lambda: producer.send("t", b"v"))
        assert re.search(rf"127\.0\.0\.1:{port}.*connection refused", str(error))
        assert isinstance(error.__cause__, NetworkError)


def test_a_peer_that_is_not_kafka():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        with Producer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=200) as producer:
            error = why_it_waited(producer, lambda: producer.send("t", b"v"))
            assert "does not speak Kafka" in str(error)
            assert isinstance(error.__cause__, NotKafkaError)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_partition_that_does_not_exist(make):
    """Requirement 9."""
    producer = make()
    producer.partitions_for("t")
    producer._core.max_block = 0.2
    with pytest.raises(KafkaTimeoutError, match="Partition 3 of topic t with partition count 3"):
        producer.send("t", b"v", partition=3)


def test_memory_that_does_not_become_free(make, broker):
    broker.hold = True
    producer = make(buffer_memory=1000, batch_size=1000)
    producer.send("t", b"x" * 900)
    producer._core.max_block = 0.1
    with pytest.raises(BufferExhaustedError, match=r"waited [1-9]\d\d+ ms"):
        producer.send("t", b"x" * 900)
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["buffer-exhausted-total"] == 1
    assert metrics["bufferpool-wait-time-ns-total"] >= 90_000_000
    assert metrics["bufferpool-wait-ratio"] > 0


def test_the_time_spent_waiting_for_metadata_is_measured(make):
    producer = make(max_block_ms=100)
    with pytest.raises(KafkaTimeoutError):
        producer.send("gone", b"v")
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["metadata-wait-time-ns-total"] >= 90_000_000
    assert metrics["bufferpool-wait-time-ns-total"] == 0


def test_errors_are_counted_by_record(make, broker):
    producer = make(max_request_size=1000, retries=0)
    with pytest.raises(RecordTooLargeError):
        producer.send("t", b"x" * 1000)
    broker.error_code = 87
    delivery = producer.send("t", b"v")
    assert isinstance(delivery.exception(SOON), InvalidRecordError)
    assert producer.metrics()["producer-metrics"]["record-error-total"] == 2


def test_an_error_is_told_to_callback_interceptor_and_delivery_alike(make, broker):
    """Requirement 14."""
    interceptor, told = ClosesInterceptor(), []
    producer = make(interceptors=[interceptor], retries=0)
    broker.error_code = 87
    delivery = producer.send("t", b"v", partition=1, on_delivery=lambda *args: told.append(args))
    error = delivery.exception(SOON)
    assert isinstance(error, InvalidRecordError)
    [(metadata, its_error)] = told
    assert metadata == RecordMetadata("t", 1, -1, -1, -1, -1)
    assert repr(its_error) == repr(error)
    assert interceptor.outcomes[0][:2] == told[0]
    with pytest.raises(InvalidRecordError):
        delivery.result(0)


# -------------------------------------------------------------------------------------------------- threads


def test_many_threads_may_share_a_producer(make, broker):
    producer = make(linger_ms=1, batch_size=400, buffer_memory=20_000)
    count, workers = 300, 6

    def work(worker: int) -> list[RecordMetadata]:
        deliveries = [
            producer.send("t", b"%d-%d" % (worker, number), b"%d" % worker) for number in range(count)
        ]
        return [delivery.result(SOON) for delivery in deliveries]

    running = [in_thread(lambda worker=worker: work(worker)) for worker in range(workers)]
    for thread, _ in running:
        thread.join(SOON)
    places = [(metadata.partition, metadata.offset) for _, (outcome,) in running for metadata in outcome]
    assert len(set(places)) == count * workers
    # Each worker has one key, thus one partition: its records are in order there.
    for _, (outcome,) in running:
        offsets = [metadata.offset for metadata in outcome]
        assert offsets == sorted(offsets)
    assert sorted(broker.values()) == sorted(b"%d-%d" % (w, n) for w in range(workers) for n in range(count))
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    assert metrics["record-send-total"] == count * workers


def test_sending_while_another_thread_closes_loses_nothing(make, broker):
    producer = make(buffer_memory=200_000)  # a broker that is slower than the threads must come to an end
    producer.send("t", b"warm up").result(SOON)
    accepted: list[Any] = []

    def work() -> None:
        try:
            while True:
                accepted.append(producer.send("t", b"v"))
        except ProducerClosedError:
            return

    threads = [in_thread(work)[0] for _ in range(3)]
    while len(accepted) < 50:
        threads[0].join(0.001)
    producer.close()
    for thread in threads:
        thread.join(SOON)
    assert all(delivery.exception(0) is None for delivery in accepted)
    assert len(broker.values()) == len(accepted) + 1


def test_metrics_may_be_asked_for_at_any_time(make):
    producer = make()
    stop = threading.Event()

    def ask() -> int:
        asked = 0
        while True:
            producer.metrics()
            asked += 1
            if stop.is_set():
                return asked

    thread, outcome = in_thread(ask)
    for number in range(200):
        producer.send("t", b"%d" % number)
    producer.flush(SOON)
    stop.set()
    thread.join(SOON)
    assert outcome[0] > 0


def test_nothing_is_logged_above_debug_when_all_is_well(make, caplog):
    with caplog.at_level(logging.INFO, logger="penstock"):
        producer = make()
        producer.send("t", b"v").result(SOON)
        producer.close()
    assert caplog.records == []
