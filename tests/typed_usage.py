# SPDX-License-Identifier: Apache-2.0
"""What type checkers know of the public calls. mypy reads this file (`make types`); nothing runs it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any, assert_type

import penstock
from penstock import (
    BulkDelivery,
    Delivery,
    Producer,
    ProducerOptions,
    ProducerRecord,
    RecordMetadata,
    TransactionHandle,
)
from penstock.errors import BulkDeliveryError, KafkaError
from penstock.serializers import JsonSerializer, StringSerializer
from penstock.testing import FakeKafka, MockProducer
from penstock.types import BulkReport


async def outcomes(producer: Producer) -> None:
    """Of one record, and of many."""
    delivery = producer.send("t", b"v", b"k", headers={"h": b"x"}, partition=1, timestamp_ms=1)
    assert_type(delivery, Delivery)
    assert_type(await delivery, RecordMetadata)
    assert_type(delivery.result(), RecordMetadata)
    assert_type(delivery.exception(), KafkaError | None)
    assert_type(delivery.done(), bool)
    assert_type((await producer.send("t")).offset, int)
    assert_type(producer.send_record(ProducerRecord("t")), Delivery)
    bulk = producer.send_many("t", [b"v"])
    assert_type(bulk, BulkDelivery)
    assert_type(await bulk, BulkReport)
    assert_type(bulk.exception(), BulkDeliveryError | None)


def other_clients(producer: Producer, mock: MockProducer) -> None:
    """Names of other clients are errors, and what follows them is still checked."""
    producer.send("t", b"v").get(timeout=10)  # type: ignore[operator]
    producer.send_many("t", [b"v"]).get()  # type: ignore[operator]
    mock.send("t", b"v").get()  # type: ignore[operator]
    assert_type(producer.send("t"), Delivery)


def transactions(producer: Producer) -> None:
    """Of the calls that give something."""
    with producer.transaction():
        producer.send_offsets_to_transaction({penstock.TopicPartition("t", 0): 5}, "group")
        producer.send_offsets_to_transaction({("t", 0): penstock.OffsetAndMetadata(5)}, b"group")
        producer.send_offsets_to_transaction({}, penstock.ConsumerGroupMetadata("group", 1, "m"))
    assert_type(producer.detach_transaction(), TransactionHandle)
    manager: AbstractContextManager[None] = producer.transaction()
    del manager


def options() -> None:
    """Of what is right, no error; of what is wrong, one each."""
    Producer({"linger.ms": "5"}, bootstrap_servers=["a:1"], acks=1, linger_ms=5, enable_idempotence=False)
    Producer(key_serializer=StringSerializer, value_serializer=lambda value: json.dumps(value).encode())
    Producer(value_serializer=JsonSerializer(), partitioner=None, interceptors=[penstock.Interceptor()])
    Producer(lingr_ms=5)  # type: ignore[call-arg]
    Producer(linger_ms=5.5)  # type: ignore[arg-type]
    Producer(enable_idempotence=1)  # type: ignore[arg-type]
    Producer(value_serializer=5)  # type: ignore[arg-type]
    MockProducer(bootstrap_servers="a:1", auto_complete=False)
    MockProducer(bootstrap_server="a:1")  # type: ignore[call-arg]
    given: ProducerOptions = {"linger_ms": 5, "client_id": None}
    Producer(**given)
    loose: dict[str, Any] = {"anything": 5}
    Producer(**loose)


def refused(producer: Producer) -> None:
    """Arguments and names of other clients."""
    producer.send("t", b"v", callback=print)  # type: ignore[arg-type]
    _ = penstock.KafkaError  # type: ignore[attr-defined]
    _ = penstock.errors.KafkaException  # type: ignore[attr-defined]


async def stand_ins(producer: MockProducer, kafka: FakeKafka) -> None:
    """Use what penstock.testing has for tests."""
    assert_type(await producer.send("t"), RecordMetadata)
    assert_type([record.value for record in kafka.records("t")], list[bytes | None])
