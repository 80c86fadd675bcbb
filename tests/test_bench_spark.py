# SPDX-License-Identifier: Apache-2.0
"""The benchmark of Spark's sinks: what is counted at the broker."""

from __future__ import annotations

import fix_bench  # noqa: F401 - makes it importable
import pytest
from fix_broker import MakeTopic

from bench.spark.committed import count_committed
from penstock import Producer
from penstock.devbroker import DevCluster


@pytest.mark.broker
def test_committed_records_are_counted_on_a_real_broker(dev_cluster: DevCluster, topic: MakeTopic) -> None:
    name = topic(2)
    settings = {"bootstrap.servers": dev_cluster.bootstrap_servers}
    server = dev_cluster.bootstrap_servers.split(",")[0]
    with Producer(settings) as plain:
        for number in range(30):
            plain.send(name, b"before", partition=number % 2)
    with Producer({**settings, "transactional.id": name}) as producer:
        producer.init_transactions()
        for records, commit in ((7, True), (5, False), (11, True)):
            producer.begin_transaction()
            for number in range(records):
                producer.send(name, b"value", partition=number % 2)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    everything = count_committed(server, name, {0: 0, 1: 0})
    assert (everything.committed, everything.aborted) == (48, 5)
    later = count_committed(server, name, {0: 15, 1: 15})
    assert (later.committed, later.aborted) == (18, 5)
