# SPDX-License-Identifier: Apache-2.0
"""A producer put together from its configuration: does each option reach the part it is for?"""

from __future__ import annotations

import gc

import pytest
from network.fakes import FakeNetwork, api_versions_body
from producer.fakes_sender import Rig
from telemetry.metrics_data import read

from penstock._ticket import Ticket
from penstock.config.config import ProducerConfig
from penstock.errors import BootstrapError, ConfigError, ProducerClosedError
from penstock.partitioners import RoundRobinPartitioner
from penstock.producer._interceptors_cy import Interceptor
from penstock.producer.assembly import assemble
from penstock.protocol.messages import (
    API_VERSIONS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    METADATA,
    PRODUCE,
    PUSH_TELEMETRY,
)
from penstock.records.reader import read_batches
from penstock.serializers import StringSerializer
from penstock.types import ProducerRecord


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


class Showing(Interceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record


@pytest.mark.parametrize(
    ("options", "fast"),
    [
        ({}, True),
        ({"acks": "1", "linger_ms": 7, "compression_type": "zstd"}, True),
        ({"partitioner_ignore_keys": True}, True),
        ({"key_serializer": StringSerializer()}, False),
        ({"value_serializer": StringSerializer()}, False),
        ({"partitioner": RoundRobinPartitioner()}, False),
        ({"interceptors": [Interceptor()]}, True),  # it wants outcomes alone
        ({"interceptors": [Interceptor(), Showing()]}, False),
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


def test_keys_are_placed_among_the_partitions_that_a_topic_has_got():
    """The fast path must not keep the number of partitions that it saw first."""
    rig = Rig(metadata_max_age_ms=2000)
    rig.know("t")
    rig.acknowledge_all()
    rig.run_until(rig.send("t", b"v", b"k").done)
    more = rig.cluster.topics["t"]
    more.leaders, more.epochs = [0] * 8, [0] * 8
    rig.run_for(3)
    keys = [b"%d" % number for number in range(50)]
    deliveries = [rig.send("t", b"v", key) for key in keys]
    rig.run_until(lambda: all(delivery.done() for delivery in deliveries))
    assert {delivery.result(0).partition for delivery in deliveries} == set(range(8))


@pytest.mark.parametrize("push", [False, True])
def test_the_rates_of_what_the_network_counts_are_as_of_the_time_that_it_happened(push):
    """The I/O thread updates them in time: nothing counts as if it had happened when somebody asks."""
    rig = Rig(enable_metrics_push=push)
    rig.know("t")
    rig.acknowledge_all()
    for _ in range(20):
        rig.run_until(rig.send("t", b"v").done)
        rig.run_for(0.5)
    rig.run_for(100)
    metrics = rig.metrics()
    assert metrics["request-total"] > 20
    assert metrics["request-rate"] < 0.1


def telemetry_rules(broker, *, taken):
    """Let a broker take telemetry or not; what is asked for is everything, as totals."""
    ranges = {"GetTelemetrySubscriptions": (0, 0), "PushTelemetry": (0, 0)} if taken else {}
    broker.rules[API_VERSIONS.key] = lambda _: api_versions_body(**ranges)
    broker.rules[GET_TELEMETRY_SUBSCRIPTIONS.key] = lambda _: {
        "throttle_time_ms": 0, "error_code": 0, "client_instance_id": bytes(15) + b"\1", "subscription_id": 1,
        "accepted_compression_types": [], "push_interval_ms": 60_000, "telemetry_max_bytes": 1_000_000,
        "delta_temporality": False, "requested_metrics": ["*"],
    }  # fmt: skip
    broker.rules[PUSH_TELEMETRY.key] = lambda _: {"throttle_time_ms": 0, "error_code": 0}


def test_a_broker_that_is_connected_later_is_asked_for_telemetry():
    rig = Rig(brokers=2, enable_metrics_push=True)
    telemetry_rules(rig.brokers[1], taken=True)
    rig.know("t", leaders=[0])
    rig.acknowledge_all()
    rig.run_until(rig.send("t", b"v").done)
    rig.run_for(2)
    assert rig.parts.sender.telemetry is None, "it gets no turns that it does not need"
    rig.know("u", leaders=[1])
    rig.run_until(rig.send("u", b"v").done)
    rig.run_for(2)
    assert len(rig.seen(GET_TELEMETRY_SUBSCRIPTIONS, 1)) == 1


def test_what_is_pushed_at_the_end_counts_the_requests_of_the_last_moment():
    rig = Rig(enable_metrics_push=True, client_rack="r7")
    telemetry_rules(rig.brokers[0], taken=True)
    rig.know("t")
    rig.acknowledge_all()
    rig.run_until(lambda: rig.seen(GET_TELEMETRY_SUBSCRIPTIONS))
    rig.run_until(rig.send("t", b"v").done)
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    (push,) = rig.seen(PUSH_TELEMETRY)
    about, points = read(push.body["metrics"])
    assert about["client_rack"] == "r7"
    (requests,) = [point.value for point in points if point.name == "org.apache.kafka.producer.request.total"]
    assert requests == len(rig.brokers[0].seen) - 1, "all but the push itself"


def test_a_send_that_waits_for_its_topic_is_released_as_soon_as_a_close_begins():
    """The close may wait for other records for a long time."""
    rig = Rig()
    steps = rig.steps(ProducerRecord("nowhere", b"v"))
    waits = next(item for item in steps if isinstance(item, Ticket))
    rig.settle()
    assert not waits.done
    rig.parts.begin_close()
    assert waits.done
    with pytest.raises(ProducerClosedError):
        waits.result  # noqa: B018


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
