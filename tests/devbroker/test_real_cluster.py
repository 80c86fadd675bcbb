# SPDX-License-Identifier: Apache-2.0
"""The same with Apache Kafka itself, and the fixtures through which other tests use it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fix_broker import Consume, DumpLog, MakeTopic, consume_from, end_offsets

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.devbroker.releases.probe import broker_answers

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"


def produce(cluster: DevCluster, topic: str, lines: str, *options: str) -> None:
    """Write ``headers!key|value`` lines; NULL stands for null."""
    properties = {
        "parse.headers": "true",
        "headers.delimiter": "!",
        "parse.key": "true",
        "key.separator": "|",
        "null.marker": "NULL",
    }
    reader = [word for name, value in properties.items() for word in ("--reader-property", f"{name}={value}")]
    servers = ("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic)
    done = cluster.run_tool(PRODUCER, *servers, *reader, *options, input=lines)
    assert done.returncode == 0, done.stderr


def test_records_are_read_back_exactly(dev_cluster: DevCluster, topic: MakeTopic, consume: Consume) -> None:
    name = topic(partitions=2)
    before_ms = int(time.time() * 1000) - 1000
    produce(dev_cluster, name, "h1:v1,h2:!k1|one\nNULL!k1|NULL\nNULL!NULL|\u00e9:,|\nNULL!k1|\n")
    records = consume(name)
    assert sorted(
        (r.key, r.value, r.headers) for r in records if r.key is not None and r.value is not None
    ) == [
        (b"k1", b"", ()),
        (b"k1", b"one", (("h1", b"v1"), ("h2", b""))),
    ]
    assert [r.key for r in records if r.value is None] == [b"k1"]
    assert [r.value for r in records if r.key is None] == ["\u00e9:,|".encode()]
    assert all(r.timestamp_type == "CreateTime" and r.timestamp_ms > before_ms for r in records)
    assert consume(name, count=4) == records
    assert sum(end_offsets(dev_cluster, name).values()) == 4


def test_an_empty_topic_is_empty(topic: MakeTopic, consume: Consume) -> None:
    assert consume(topic()) == []


def test_the_log_shows_batches(dev_cluster: DevCluster, topic: MakeTopic, dump_log: DumpLog) -> None:
    name = topic(min_insync_replicas=1)
    produce(dev_cluster, name, "NULL!k|value\nNULL!NULL|x\n", "--compression-codec=gzip")
    batches = dump_log(name)
    assert sum(batch.count for batch in batches) == 2
    assert all(batch.is_valid and batch.magic == 2 and batch.codec == "gzip" for batch in batches)
    records = [record for batch in batches for record in batch.records]
    assert [(r.offset, r.key_size, r.value_size) for r in records] == [(0, 1, 5), (1, -1, 1)]


def test_a_restart_keeps_data_and_port(tmp_path: Path) -> None:
    with DevCluster(data_dir=tmp_path / "data") as cluster:
        cluster.create_topic("kept")
        produce(cluster, "kept", "NULL!k|v\n")
        port = cluster.nodes[0].port
        cluster.restart(1)
        assert cluster.nodes[0].port == port
        assert [r.value for r in consume_from(cluster, "kept")] == [b"v"]
    with DevCluster(
        data_dir=tmp_path / "data", security="scram"
    ) as cluster:  # the users are there all the same
        with Producer(cluster.client_options("sasl_plaintext-scram-sha-512")) as producer:
            producer.send("kept", b"w").result(60)
        assert [r.value for r in consume_from(cluster, "kept")] == [b"v", b"w"]


@pytest.mark.timeout(600)
def test_three_nodes_survive_the_loss_of_one() -> None:
    with DevCluster(3) as cluster:
        cluster.create_topic("safe", replication=3, config={"min.insync.replicas": 2})
        produce(cluster, "safe", "NULL!k|one\n", "--sync")
        cluster.kill(2)
        produce(cluster, "safe", "NULL!k|two\n", "--sync")
        cluster.start_node(2)
        assert [r.value for r in consume_from(cluster, "safe", count=2)] == [b"one", b"two"]


def test_two_clusters_live_side_by_side(dev_cluster: DevCluster) -> None:
    with DevCluster() as other:
        assert other.bootstrap_servers != dev_cluster.bootstrap_servers
        assert broker_answers(other.nodes[0].port)
        assert broker_answers(dev_cluster.nodes[0].port)
    assert broker_answers(dev_cluster.nodes[0].port)


def test_the_broker_dies_with_a_killed_starter(tmp_path: Path) -> None:
    program = (
        "import sys; from penstock.devbroker import DevCluster; cluster = DevCluster(); cluster.start();"
        "print(cluster.nodes[0].pid, flush=True); sys.stdin.read()"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    broker = os.pidfd_open(int(starter.stdout.readline()))
    try:
        starter.send_signal(signal.SIGKILL)
        starter.communicate()
        poll = select.poll()
        poll.register(broker, select.POLLIN)
        assert poll.poll(30_000), "the broker outlived its starter"
    finally:
        os.close(broker)
