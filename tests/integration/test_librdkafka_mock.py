# SPDX-License-Identifier: Apache-2.0
"""The mock cluster of librdkafka: a server that is not Kafka, and answers a little differently."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from penstock import Producer

pytestmark = pytest.mark.slow

RECORDS = 200


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """The cluster is part of a client of librdkafka, and ends with it."""
    owner = confluent_kafka.Producer(
        {"bootstrap.servers": "unused", "test.mock.num.brokers": 2, "log_level": 0}
    )
    brokers = owner.list_topics(timeout=60).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del owner


def read_back(servers: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of a topic, read by librdkafka."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    found = []
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        until = time.monotonic() + 60
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append((message.key(), message.value()))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_written_with_idempotence(servers: str, codec: str) -> None:
    topic = f"plain-{codec}"
    sent = [(b"k%d" % number, b"v%d" % number) for number in range(RECORDS)]
    with Producer(bootstrap_servers=servers, compression_type=codec, enable_idempotence=True) as producer:
        deliveries = [producer.send(topic, value, key=key) for key, value in sent]
        producer.flush(60)
        assert all(delivery.result(0).offset >= 0 for delivery in deliveries)
    assert sorted(read_back(servers, topic, RECORDS)) == sorted(sent)


def test_a_transaction_is_committed(servers: str) -> None:
    with Producer(bootstrap_servers=servers, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(10):
            producer.send("transactional", b"%d" % number)
        producer.commit_transaction()
    assert len(read_back(servers, "transactional", 10)) == 10
