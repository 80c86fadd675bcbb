# SPDX-License-Identifier: Apache-2.0
"""With partitioner="crc32" a key goes where confluent-kafka sends it, by every way of sending."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from penstock import Producer, serializers
from penstock.partitioners import Crc32Partitioner
from penstock.testing import FakeKafka, MockProducer

COUNTS = (1, 3, 12, 50)
_RNG = random.Random(2)
KEYS = [b"customer-7", b"\x00", *(b"%d" % n for n in range(30)), *(_RNG.randbytes(1 + n) for n in range(30))]
Places = dict[tuple[str, bytes | None], set[int]]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={f"t{count}": count for count in COUNTS}) as cluster:
        yield cluster


def places(kafka: FakeKafka) -> Places:
    """The partitions in which each key is, by topic."""
    found: Places = {}
    for count in COUNTS:
        for partition in range(count):
            for record in kafka.records(f"t{count}", partition):
                found.setdefault((f"t{count}", record.key), set()).add(partition)
    return found


def send_each(producer: Producer, topic: str) -> None:
    for key in KEYS:
        producer.send(topic, b"v", key)


def send_with_the_general_path(producer: Producer, topic: str) -> None:
    for key in KEYS:
        producer.send(topic, "v", key.hex())


def send_many(producer: Producer, topic: str) -> None:
    producer.send_many(topic, [b"v"] * len(KEYS), keys=KEYS)


def send_arrow(producer: Producer, topic: str) -> None:
    producer.send_arrow(topic, pa.table({"key": KEYS, "value": [b"v"] * len(KEYS)}))


def send_arrow_by_topic(producer: Producer, topic: str) -> None:
    table = pa.table({"key": KEYS, "value": [b"v"] * len(KEYS), "topic": [topic] * len(KEYS)})
    producer.send_arrow(None, table)


class Nothing:
    """An interceptor, which sees each row of a table by itself."""

    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, *_: Any) -> None:
        """Do nothing."""


OF_HEX = {"key_serializer": bytes.fromhex, "value_serializer": serializers.StringSerializer()}
WAYS: dict[str, tuple[Callable[[Producer, str], None], dict[str, Any]]] = {
    "send": (send_each, {}),
    "the general path": (send_with_the_general_path, OF_HEX),
    "send_many": (send_many, {}),
    "send_arrow": (send_arrow, {}),
    "send_arrow, a topic column": (send_arrow_by_topic, {}),
    "row by row": (send_arrow, {"interceptors": [Nothing()]}),
    "a subclass": (send_each, {"partitioner": type("Mine", (Crc32Partitioner,), {})}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sending_agrees_with_confluent_kafka(kafka: FakeKafka, way: str) -> None:
    send, options = WAYS[way]
    theirs = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for count in COUNTS:
        for key in KEYS:
            theirs.produce(f"t{count}", b"theirs", key)
    assert theirs.flush(60) == 0
    expected = places(kafka)
    assert len({partition for found in expected.values() for partition in found}) > 20
    with Producer({"partitioner": "crc32", **options}, bootstrap_servers=kafka.bootstrap_servers) as producer:
        for count in COUNTS:
            send(producer, f"t{count}")
    assert places(kafka) == expected
    assert sum(len(kafka.records(f"t{count}")) for count in COUNTS) == 2 * len(KEYS) * len(COUNTS)


@pytest.mark.parametrize("key", [None, b""])
def test_null_and_empty_keys_are_spread_by_both(kafka: FakeKafka, key: bytes | None) -> None:
    """Both stay with one partition for a while, whichever it is, and move on."""
    large = bytes(5_000)  # several a batch: what is larger leaves the fast path
    theirs = confluent_kafka.Producer({
        "bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "sticky.partitioning.linger.ms": 1,
    })  # fmt: skip
    for _ in range(100):
        theirs.produce("t3", large, key)
        theirs.poll(0.002)
    assert theirs.flush(60) == 0
    assert len(places(kafka)["t3", key]) > 1
    options = {"partitioner": "crc32", "bootstrap.servers": kafka.bootstrap_servers}
    with Producer(options) as producer:
        for _ in range(300):
            producer.send("t12", large, key)
    with Producer(options) as producer:
        producer.send_many("t50", [large] * 300, keys=[key] * 300)
    found = places(kafka)
    assert len(found["t12", key]) > 6
    assert max(len(kafka.records("t12", partition)) for partition in range(12)) < 150
    assert len(found["t50", key]) > 6


def test_without_the_option_keys_move(kafka: FakeKafka) -> None:
    """Else the tests above would show nothing."""
    with Producer(bootstrap_servers=kafka.bootstrap_servers, partitioner="crc32") as producer:
        send_each(producer, "t50")
    before = places(kafka)
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        send_each(producer, "t50")
    moved = [key for key, found in places(kafka).items() if found != before[key]]
    assert len(moved) > len(KEYS) * 0.8


def test_records_take_the_fast_path(kafka: FakeKafka) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, partitioner="crc32") as producer:
        producer.send("t3", b"v").result(timeout=60)  # the first one finds the partition to stay with
        producer._parts.send_path.accepts = False  # so that the send path needs steps,
        producer._finish = None  # type: ignore[method-assign,assignment]  # and they begin here
        producer.send("t3", b"v", b"k").result(timeout=60)
        producer.send("t3", b"v", b"").result(timeout=60)


def test_the_mock_places_as_the_producer_does() -> None:
    producer = MockProducer(topics={"orders": 12}, partitioner="crc32")
    cluster = {key: producer.send("orders", b"v", key).result().partition for key in KEYS}
    options = {"partitioner": "crc32"}
    with (
        FakeKafka(topics={"orders": 12}) as kafka,
        Producer(options, bootstrap_servers=kafka.bootstrap_servers) as real,
    ):
        assert {key: real.send("orders", b"v", key).result(60).partition for key in KEYS} == cluster
    turns = [producer.send("orders", b"v", key).result().partition for key in (None, b"", None)]
    assert turns == [0, 1, 2]
