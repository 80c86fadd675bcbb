# SPDX-License-Identifier: Apache-2.0
"""A partition's leader dies: the producer finds the new one, and what was acknowledged is still there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fix_broker import consume_from

from penstock import Producer
from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_acknowledged_records_survive_the_death_of_a_leader(
    three_brokers: DevCluster, note: Callable[[str], None]
) -> None:
    three_brokers.create_topic("survives", 3, replication=3, config={"min.insync.replicas": 2})
    options = {"acks": "all", "request_timeout_ms": 5000, "linger_ms": 1}
    with Producer(bootstrap_servers=three_brokers.bootstrap_servers, **options) as producer:
        leader = producer.partitions_for("survives")[0].leader_id
        values = [b"%d" % number for number in range(30_000)]
        deliveries = []
        for number, value in enumerate(values):
            if number == 10_000:
                three_brokers.kill(leader)
            deliveries.append(producer.send("survives", value, value))
        producer.flush(60)
        places = {value: delivery.result(0) for value, delivery in zip(values, deliveries, strict=True)}
        assert producer.partitions_for("survives")[0].leader_id not in (leader, -1)
    read = consume_from(three_brokers, "survives")
    at = {(record.partition, record.offset): record.value for record in read}
    assert [
        value for value, place in places.items() if at.get((place.partition, place.offset)) != value
    ] == []
    note(f"{len(values):,} records, {len(read) - len(values):,} twice")
