# SPDX-License-Identifier: Apache-2.0
"""A producer put together from its configuration: does each option reach the part it is for?"""

from __future__ import annotations

import gc

import pytest
from network.fakes import FakeNetwork
from producer.fakes_sender import Rig

from penstock.config.config import ProducerConfig
from penstock.errors import BootstrapError, ConfigError
from penstock.partitioners import RoundRobinPartitioner
from penstock.producer.assembly import assemble
from penstock.producer.interceptors import Interceptor
from penstock.protocol.messages import METADATA, PRODUCE
from penstock.records.reader import read_batches
from penstock.serializers import StringSerializer


def test_nothing_is_connected_and_no_thread_is_started_by_assembling():
    rig = Rig()
    assert rig.network.attempts == []
    assert not rig.parts.accumulator.has_incomplete()


@pytest.mark.parametrize(
    ("option", "read", "expected"),
    [
        ({"batch_size": 1234}, lambda parts: parts.accumulator.batch_size, 1234),
        ({"linger_ms": 25}, lambda parts: parts.accumulator.linger, 0.025),
        ({"delivery_timeout_ms": 99_000}, lambda parts: parts.accumulator.delivery_timeout, 99.0),
        ({"buffer_memory": 55_555}, lambda parts: parts.accumulator.pool.total, 55_555),
        (
            {"partitioner_adaptive_partitioning_enable": False},
            lambda parts: parts.accumulator.partitioner.adaptive,
            False,
        ),
        (
            {"partitioner_availability_timeout_ms": 300},
            lambda parts: parts.accumulator.partitioner.availability_timeout,
            0.3,
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_reaches_its_part(option, read, expected):
    assert read(Rig(**option).parts) == expected


@pytest.mark.parametrize(
    ("options", "fast"),
    [
        ({}, True),
        ({"acks": "1", "linger_ms": 7, "compression_type": "zstd"}, True),
        ({"partitioner_ignore_keys": True}, True),
        ({"key_serializer": StringSerializer()}, False),
        ({"value_serializer": StringSerializer()}, False),
        ({"partitioner": RoundRobinPartitioner()}, False),
        ({"interceptors": [Interceptor()]}, False),
    ],
    ids=str,
)
def test_the_fast_path_is_for_bytes_without_user_code(options, fast):
    assert Rig(**options).parts.fast_path.enabled is fast


@pytest.mark.parametrize(
    ("name", "codec_id"), [("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
)
def test_the_codec_is_on_the_wire(name, codec_id):
    rig = Rig(compression_type=name)
    rig.know("t")
    rig.send("t", b"x" * 1000)
    row = rig.await_request().body["topic_data"][0]["partition_data"][0]
    (batch,) = read_batches(row["records"])
    assert batch.attributes & 7 == codec_id
    assert [record.value for record in batch.records()] == [b"x" * 1000]


def test_the_client_id_is_in_every_request():
    rig = Rig(client_id="me")
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    assert {request.client_id for request in rig.brokers[0].seen} == {"me"}


def test_the_retry_backoff_and_the_time_out_are_the_configured_ones():
    rig = Rig(
        request_timeout_ms=700, retry_backoff_ms=3000, retry_backoff_max_ms=3000, delivery_timeout_ms=60_000
    )
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    started = rig.clock.now()
    rig.run_until(lambda: len(rig.seen(PRODUCE)) == 2)
    assert rig.clock.now() - started == pytest.approx(3.7, abs=0.05)


def test_metadata_is_asked_for_again_at_its_age():
    rig = Rig(metadata_max_age_ms=20_000)
    rig.know("t")
    asked = len(rig.seen(METADATA))
    rig.run_for(19)
    assert len(rig.seen(METADATA)) == asked
    rig.run_for(2)
    assert len(rig.seen(METADATA)) == asked + 1


def test_a_topic_that_is_sent_to_on_the_fast_path_stays_known():
    rig = Rig(metadata_max_idle_ms=5000, metadata_max_age_ms=2000)
    rig.know("t")
    rig.acknowledge_all()
    for _ in range(8):
        rig.send("t", b"x")
        rig.run_for(1.5)
    assert "t" in rig.snapshot.topics
    rig.run_for(10)
    assert "t" not in rig.snapshot.topics


def test_bootstrap_names_that_do_not_resolve_are_an_error_that_names_them():
    """Requirement 6."""
    config = ProducerConfig.from_user(None, {"bootstrap_servers": "nowhere:9092,neither:9093"})
    network = FakeNetwork()
    with pytest.raises(BootstrapError, match=r"nowhere:9092.*neither:9093"):
        assemble(config, network.clock, network.backend())
    assert network.closed  # the selector is not left behind


def test_a_failure_on_the_way_leaves_no_socket_open():
    """Requirement 4."""

    class Strange:
        def on_send(self, record):
            return record

        def on_acknowledgement(self):
            return None

    config = ProducerConfig.from_user(None, {"bootstrap_servers": "127.0.0.1:9", "interceptors": [Strange()]})
    with pytest.raises(ConfigError, match="on_acknowledgement"):
        assemble(config)
    gc.collect()  # a socket left open would be a warning, and thus an error, here
