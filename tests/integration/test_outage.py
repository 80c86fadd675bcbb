# SPDX-License-Identifier: Apache-2.0
"""The broker is gone: memory stays bounded, callers are told, and what was accepted arrives once it is back."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest
from fix_flood import check_outage, outage_under_load
from integration.support import dump_topic

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from penstock.network.old_brokers import FIRST_PATIENCE

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def topic(breakable: DevCluster) -> str:
    name = f"outage-{uuid.uuid4().hex[:12]}"
    breakable.create_topic(name, 3)
    return name


def test_memory_is_bounded_and_accepted_records_arrive_when_the_broker_is_back(
    breakable: DevCluster, topic: str, note: Callable[[str], None]
) -> None:
    outage = outage_under_load(breakable, {"bootstrap.servers": breakable.bootstrap_servers}, topic)
    records, doubled = check_outage(outage, breakable, topic)
    note(f"{records:,} records, {doubled:,} twice, {outage.megabytes:.0f} MB above the idle interpreter")


def test_close_without_time_fails_everything_at_once(breakable: DevCluster, topic: str) -> None:
    producer = Producer(
        bootstrap_servers=breakable.bootstrap_servers, buffer_memory=2_000_000, max_block_ms=60_000
    )
    producer.send(topic, b"there").result(60)
    breakable.kill(1)
    told: list[KafkaError | None] = []
    deliveries = [
        producer.send(topic, b"x" * 1000, on_delivery=lambda _, error: told.append(error))
        for _ in range(1000)
    ]
    refusals: list[BaseException] = []

    def send_until_refused() -> None:
        try:
            while True:
                deliveries.append(producer.send(topic, b"y" * 1000))
        except BaseException as error:
            refusals.append(error)

    threads = [threading.Thread(target=send_until_refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    with pytest.raises(KafkaTimeoutError):
        producer.flush(1)  # by then the threads have used up the memory and wait

    before = time.monotonic()
    producer.close(timeout=0)
    assert time.monotonic() - before < 30
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(delivery.done() for delivery in deliveries)
    assert {type(delivery.exception(0)) for delivery in deliveries} == {ProducerClosedError}
    assert [type(error) for error in refusals] == [ProducerClosedError] * 4
    assert [type(error) for error in told] == [ProducerClosedError] * 1000


def test_a_broker_that_is_frozen_at_first_contact_is_not_taken_for_an_old_one(
    breakable: DevCluster, topic: str
) -> None:
    """It is silent for longer than the client waits before it asks in another way."""
    breakable.pause(1)
    thaw = threading.Timer(FIRST_PATIENCE + 1, breakable.resume, [1])
    thaw.start()
    try:
        with Producer(bootstrap_servers=breakable.bootstrap_servers) as producer:
            deliveries = [producer.send(topic, b"%d" % number) for number in range(100)]
            producer.flush(60)
            assert all(delivery.result(0).offset >= 0 for delivery in deliveries)
    finally:
        thaw.join()
    batches = [batch for partition in dump_topic(breakable, topic).values() for batch in partition]
    assert batches
    assert all(batch.producer_id >= 0 for batch in batches)
