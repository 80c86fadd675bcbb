# SPDX-License-Identifier: Apache-2.0
"""send_many and send_arrow of a MockProducer."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pyarrow as pa
import pytest

from penstock import BulkDelivery
from penstock.errors import (
    BadRowsError,
    BufferExhaustedError,
    BulkDeliveryError,
    IllegalStateError,
    KafkaTimeoutError,
    MessageTooLargeError,
    ProducerClosedError,
)
from penstock.serializers import StringSerializer
from penstock.testing import MockProducer
from penstock.testing.mock.delivery import MockBulkDelivery
from penstock.types import Header, PartitionReport, ProducerRecord, TopicPartition

TABLE = pa.table(
    {"value": ["a", "b", "c"], "partition": [0, 1, 0], "headers": [[{"key": "h", "value": b"1"}], [], []]}
)


@pytest.mark.parametrize(
    "name", ["accepted", "errors", "done", "result", "exception", "add_done_callback", "__await__"]
)
def test_the_bulk_can_be_asked_what_the_real_one_can(name):
    mine, real = getattr(MockBulkDelivery, name), getattr(BulkDelivery, name)
    if not isinstance(real, property):
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(real).parameters)


def test_records_are_remembered_and_acknowledged():
    producer = MockProducer(topics={"t": 2})
    bulk = producer.send_many("t", [b"a", None], keys=[b"k", None], partition=1, timestamps_ms=[5, None])
    assert producer.history() == [
        ProducerRecord("t", b"a", b"k", (), 1, 5),
        ProducerRecord("t", None, None, (), 1, None),
    ]
    report = bulk.result(0)
    assert (report.records, report.bytes, report.errors) == (2, 2, ())
    assert report.partitions == {TopicPartition("t", 1): PartitionReport(2, 0, 1)}


def test_the_rows_of_a_table_become_records():
    producer = MockProducer(topics={"t": 2}, value_serializer=StringSerializer())
    report = producer.send_arrow("t", TABLE).result(0)
    assert producer.history() == [
        ProducerRecord("t", b"a", None, (Header("h", b"1"),), 0),
        ProducerRecord("t", b"b", None, (), 1),
        ProducerRecord("t", b"c", None, (), 0),
    ]
    assert report.partitions == {
        TopicPartition("t", 0): PartitionReport(2, 0, 1),
        TopicPartition("t", 1): PartitionReport(1, 0, 0),
    }


def test_a_topic_column_says_where_rows_go():
    producer = MockProducer()
    producer.send_arrow(None, pa.table({"value": ["a", "b"], "topic": ["x", "y"]}))
    assert [record.topic for record in producer.history()] == ["x", "y"]


BAD = pa.table(
    {
        "value": ["good", "p", "t", "h", "n"],
        "partition": [0, 9, 0, 0, 0],
        "timestamp": [1, 1, -1, 1, 1],
        "headers": [[], [], [], [{"key": None, "value": b""}], []],
        "topic": ["t", "t", "t", "t", None],
    }
)


def test_bad_rows_are_told_by_their_numbers():
    producer = MockProducer(topics={"t": 1})
    with pytest.raises(BadRowsError, match=r"^4 of 5 rows cannot be sent, and none was sent") as caught:
        producer.send_arrow(None, BAD)
    assert [entry.first_row for entry in caught.value.errors] == [1, 2, 3, 4]
    assert producer.history() == []
    bulk = producer.send_arrow(None, BAD, on_error="skip")
    assert [record.value for record in producer.history()] == [b"good"]
    assert [entry.first_row for entry in bulk.errors] == [1, 2, 3, 4]
    assert bulk.result(0).records == 1
    with pytest.raises(ValueError, match="on_error"):
        producer.send_arrow("t", BAD, on_error="ignore")  # type: ignore[arg-type]


def test_outcomes_by_hand():
    producer = MockProducer(auto_complete=False)
    bulk = producer.send_many("t", [b"a", b"b", b"c"])
    done: list[Any] = []
    bulk.add_done_callback(done.append)
    assert not bulk.done()
    with pytest.raises(KafkaTimeoutError):
        bulk.result(0)
    producer.complete_next()
    producer.error_next(MessageTooLargeError())
    assert (done, "pending" in repr(bulk)) == ([], True)
    producer.complete_next()
    assert done == [bulk]
    bulk.add_done_callback(done.append)
    assert done == [bulk, bulk]
    with pytest.raises(BulkDeliveryError, match="1 of 3 records was not delivered; row 1") as caught:
        bulk.result(0)
    assert isinstance(caught.value.__cause__, MessageTooLargeError)
    assert caught.value.report.records == 2
    assert [entry.first_row for entry in bulk.errors] == [1]


@pytest.mark.parametrize("values", [[b"a", b"b"], []])
def test_the_first_callback_of_what_is_done_already_is_called_at_once(values):
    bulk = MockProducer().send_many("t", values)
    done: list[Any] = []
    bulk.add_done_callback(done.append)
    assert done == [bulk]


def test_a_callback_that_raises_breaks_nothing(caplog):
    producer = MockProducer(auto_complete=False)
    bulk = producer.send_many("t", [b"a"])
    bulk.add_done_callback(lambda _: 1 / 0)
    producer.complete_next()
    bulk.add_done_callback(lambda _: 1 / 0)
    assert caplog.text.count("a done callback of a bulk delivery raised") == 2


def test_it_can_be_awaited():
    async def wait(bulk: MockBulkDelivery) -> Any:
        return await bulk

    assert asyncio.run(wait(MockProducer().send_many("t", [b"a"]))).records == 1
    producer = MockProducer(auto_complete=False)
    bulk = producer.send_many("t", [b"a", b"b"])
    producer.error_next(MessageTooLargeError())
    producer.complete_next()
    with pytest.raises(BulkDeliveryError):
        asyncio.run(wait(bulk))


@pytest.mark.parametrize("call", ["send_many", "send_arrow"])
def test_calls_can_be_made_to_fail(call):
    producer = MockProducer()
    producer.raise_on(call, BufferExhaustedError("no memory"), times=1)
    data = {"send_many": [b"a"], "send_arrow": TABLE}[call]
    with pytest.raises(BufferExhaustedError):
        getattr(producer, call)("t", data)
    assert getattr(producer, call)("t", data).done()


def test_what_the_real_one_refuses_is_refused():
    with pytest.raises(IllegalStateError):
        MockProducer(transactional_id="x").send_many("t", [b"a"])
    producer = MockProducer()
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send_arrow("t", TABLE)


def test_a_transaction_holds_them():
    producer = MockProducer(transactional_id="x")
    producer.init_transactions()
    with producer.transaction():
        producer.send_many("t", [b"a", b"b"])
        assert producer.history() == []
    assert len(producer.history()) == 2
