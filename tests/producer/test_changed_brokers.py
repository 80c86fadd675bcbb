# SPDX-License-Identifier: Apache-2.0
"""Brokers that come back with another release, under a producer that goes on."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock import Producer
from penstock.testing import FakeKafka
from penstock.testing.releases import release_named

pytestmark = pytest.mark.slow

RELEASES = ("2.8", "3.9", "4.3", "3.0", "2.4", "4.1")  # up and down


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_producer_outlives_upgrades_and_downgrades(codec: str) -> None:
    sent = []
    with FakeKafka(2, release=RELEASES[0], topics={"t": 4}) as kafka:
        with Producer(
            bootstrap_servers=kafka.bootstrap_servers,
            compression_type=codec,
            linger_ms=0,
            retry_backoff_ms=10,
        ) as producer:
            deliveries = []
            for release in RELEASES:
                with kafka.locked() as cluster:
                    cluster.release = release_named(release)
                    cluster.drop_connections()
                for number in range(50):
                    value = f"{release} {number}".encode()
                    deliveries.append(producer.send("t", value))
                    sent.append(value)
                    if number % 10 == 9:
                        producer.flush(60)
            assert all(delivery.result(60).offset >= 0 for delivery in deliveries)
        found = Counter(record.value for record in kafka.records("t"))
    assert found == Counter(sent)
