# SPDX-License-Identifier: Apache-2.0
"""Records land where Kafka's own producer would have put them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fix_broker import Consume, MakeTopic
from integration.support import CONSOLE_PRODUCER

from penstock import Producer
from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]

GOLDEN = Path(__file__).parent.parent / "golden" / "murmur2.jsonl"
COUNTS = (1, 3, 6, 12, 50)


def golden_keys() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("count", [pytest.param(n, marks=pytest.mark.core) if n == 12 else n for n in COUNTS])
def test_keys_choose_the_partition_that_java_chooses(
    dev_cluster: DevCluster, topic: MakeTopic, count: int
) -> None:
    name = topic(partitions=count)
    keys = golden_keys()
    with Producer(bootstrap_servers=dev_cluster.bootstrap_servers) as producer:
        deliveries = [producer.send(name, b"", bytes.fromhex(case["key"])) for case in keys]
        producer.flush(60)
        found = {
            case["name"]: delivery.result(0).partition
            for case, delivery in zip(keys, deliveries, strict=True)
        }
    assert found == {case["name"]: case["partition"][str(count)] for case in keys}


def test_kafkas_own_producer_agrees(dev_cluster: DevCluster, topic: MakeTopic, consume: Consume) -> None:
    name = topic(partitions=50)
    keys = [f"key-{number}" for number in range(300)] + ["\u00fcber", "\u6c34", "\U0001f6b0", "x" * 500, " "]
    done = dev_cluster.run_tool(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", dev_cluster.bootstrap_servers, "--topic", name),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=|"),
        input="".join(f"{key}|java\n" for key in keys),
    )
    assert done.returncode == 0, done.stderr
    with Producer(bootstrap_servers=dev_cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(name, b"penstock", key.encode())
    places: dict[bytes | None, dict[str | None, int]] = {}
    for record in consume(name):
        assert record.key is not None
        assert record.value is not None
        places.setdefault(record.value, {})[record.key.decode()] = record.partition
    assert len(places[b"java"]) == len(keys)
    assert places[b"java"] == places[b"penstock"]


@pytest.mark.core
def test_records_without_key_go_to_all_partitions(dev_cluster: DevCluster, topic: MakeTopic) -> None:
    name = topic(partitions=3)
    with Producer(bootstrap_servers=dev_cluster.bootstrap_servers, batch_size=1000) as producer:
        deliveries = [producer.send(name, b"x" * 100) for _ in range(2000)]
        producer.flush(60)
        partitions = {delivery.result(0).partition for delivery in deliveries}
    assert partitions == {0, 1, 2}
