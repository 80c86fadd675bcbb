# SPDX-License-Identifier: Apache-2.0
"""A transaction in which a send was refused is not committed by accident: Producer and MockProducer, every call."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Producer, complete_transaction
from penstock.errors import (
    BadRowsError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from penstock.testing import FakeKafka, MockProducer
from penstock.types import ProducerRecord

pa = pytest.importorskip("pyarrow")

OPTIONS: dict[str, Any] = {
    "transactional_id": "x",
    "linger_ms": 0,
    "max_block_ms": 60_000,
    "max_request_size": 1000,
}
LARGE = b"v" * 2000


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1}) as running:
        yield running


@pytest.fixture(params=["producer", "mock"])
def producer(request: pytest.FixtureRequest, kafka: FakeKafka) -> Iterator[Any]:
    if request.param == "mock":
        made: Any = MockProducer(topics={"t": 1}, **OPTIONS)
    else:
        made = Producer(bootstrap_servers=kafka.bootstrap_servers, **OPTIONS)
    with made:
        made.init_transactions()
        yield made


def table(*values: bytes, partition: int = 0) -> Any:
    return pa.table({"value": list(values), "partition": pa.array([partition] * len(values), pa.int32())})


# Each is refused without a wait, by both producers, and by the compiled and the general path of the real one.
REFUSED: dict[str, Callable[[Any], object]] = {
    "send, a value of a wrong type": lambda producer: producer.send("t", 17),
    "send, a topic that cannot be looked up": lambda producer: producer.send([], b"v"),
    "send, a partition that is none": lambda producer: producer.send("t", b"v", partition=-1),
    "send, a header that is none": lambda producer: producer.send("t", b"v", headers=[1]),
    "send, a callback that is none": lambda producer: producer.send("t", b"v", on_delivery=1),
    "send, another client's callback": lambda producer: producer.send("t", b"v", callback=print),
    "send_record": lambda producer: producer.send_record(ProducerRecord("t", 17)),
    "send_record, no record": lambda producer: producer.send_record("t"),
    "send_many": lambda producer: producer.send_many("t", [b"a", 17]),
    "send_many, columns of different lengths": lambda producer: producer.send_many("t", [b"a"], keys=[]),
    "send_arrow": lambda producer: producer.send_arrow("t", table(b"a", partition=7)),
    "send_arrow, no table": lambda producer: producer.send_arrow("t", 17),
    "send_arrow, no such option": lambda producer: producer.send_arrow("t", table(b"a"), on_error="x"),
}
ENDS: dict[str, Callable[[Any], object]] = {
    "commit": lambda producer: producer.commit_transaction(),
    "detach": lambda producer: producer.detach_transaction(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", REFUSED)
def test_a_refusal_that_was_caught_keeps_the_transaction_from_its_end(producer, call, end):
    producer.begin_transaction()
    producer.send("t", b"a")
    with contextlib.suppress(Exception):
        REFUSED[call](producer)
        pytest.fail("it was not refused")
    producer.send("t", b"b")  # the program may go on
    with pytest.raises(TransactionAbortableError, match=r"a send .* was refused") as caught:
        ENDS[end](producer)
    assert caught.value.requires_abort
    assert "incomplete=True" in str(caught.value)
    producer.abort_transaction()
    with producer.transaction():  # what was refused before it began does not matter
        producer.send("t", b"c")


def test_the_error_names_the_first_refusal(producer):
    producer.begin_transaction()
    if isinstance(producer, Producer):
        producer._core.max_block = 0.0
    with pytest.raises(KafkaTimeoutError):
        producer.send("nowhere", b"v")
    if isinstance(producer, Producer):
        producer._core.max_block = 5.0
    with contextlib.suppress(Exception):
        producer.send("t", 17)
    with pytest.raises(TransactionAbortableError, match="KafkaTimeoutError") as caught:
        producer.commit_transaction()
    assert isinstance(caught.value.__cause__, KafkaTimeoutError)
    producer.abort_transaction()


def committed(producer: Any, kafka: FakeKafka) -> list[Any]:
    records = producer.history() if isinstance(producer, MockProducer) else kafka.records("t")
    return [record.value for record in records]


def test_who_says_so_commits_what_is_left(producer, kafka):
    def send(value: bytes) -> None:
        with contextlib.suppress(Exception):
            producer.send("t", 17)
        producer.send("t", value)

    producer.begin_transaction()
    send(b"kept by commit")
    producer.commit_transaction(incomplete=True)
    assert committed(producer, kafka)[-1] == b"kept by commit"

    producer.begin_transaction()
    send(b"kept by the handle")
    handle = producer.detach_transaction(incomplete=True)
    if isinstance(producer, Producer):
        complete_transaction(handle, config={"bootstrap.servers": kafka.bootstrap_servers})
        assert committed(producer, kafka)[-1] == b"kept by the handle"

    producer.init_transactions("y")
    with producer.transaction(incomplete=True):
        send(b"kept by the block")
    assert committed(producer, kafka)[-1] == b"kept by the block"


def test_a_block_that_catches_a_refusal_is_aborted_and_says_so(producer):

    def work() -> None:
        producer.send("t", b"a")
        with contextlib.suppress(Exception):
            producer.send("t", 17)

    with pytest.raises(TransactionAbortableError, match="refused"), producer.transaction():
        work()
    with producer.transaction():
        producer.send("t", b"b")
    if isinstance(producer, MockProducer):
        assert [record.value for record in producer.history()] == [b"b"]
        assert producer.abort_count == 1


def test_rows_that_are_skipped_on_purpose_are_no_refusal(producer):
    with producer.transaction():
        bulk = producer.send_arrow("t", table(b"a", partition=7), on_error="skip")
    assert bulk.errors[0].last_row == 0


def test_a_refusal_outside_of_a_transaction_is_not_remembered(producer):
    with pytest.raises(KafkaError):
        producer.send("t", b"v")
    with producer.transaction():
        producer.send("t", b"v")
    with contextlib.suppress(Exception):
        producer.send("t", 17)
    with producer.transaction():
        producer.send("t", b"v")


def test_records_that_are_too_large_are_refusals(kafka):
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, **(OPTIONS | {"transactional_id": "z"})
    ) as producer:
        producer.init_transactions()
        for call, error in (
            (lambda: producer.send("t", LARGE), RecordTooLargeError),
            (lambda: producer.send_many("t", [b"a", LARGE]), BadRowsError),
            (lambda: producer.send_arrow("t", table(LARGE)), BadRowsError),
        ):
            producer.begin_transaction()
            with pytest.raises(error):
                call()
            with pytest.raises(TransactionAbortableError, match=r"max\.request\.size"):
                producer.commit_transaction()
            producer.abort_transaction()


def test_the_error_of_the_refusal_is_not_kept_with_what_its_frames_hold(kafka):
    class Held:
        pass

    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, **(OPTIONS | {"transactional_id": "h"})
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()

        def refused() -> weakref.ref[Held]:
            held = Held()
            with contextlib.suppress(RecordTooLargeError):
                producer.send("t", LARGE)
            return weakref.ref(held)

        reference = refused()
        gc.collect()
        assert reference() is None
        producer.abort_transaction()


def test_without_transactions_a_refusal_changes_nothing(kafka):
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        with contextlib.suppress(Exception):
            producer.send("t", 17)
        assert producer.send("t", b"v").result(60).offset >= 0
