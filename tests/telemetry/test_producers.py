# SPDX-License-Identifier: Apache-2.0
"""Producers on brokers that take telemetry, and on those that do not."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from fix_patience import wait_until
from telemetry.metrics_data import read

from penstock import AsyncProducer, Producer
from penstock.errors import IllegalStateError, KafkaTimeoutError, ProducerClosedError, UnsupportedVersionError
from penstock.protocol.messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from penstock.telemetry import pushing
from penstock.testing import FakeKafka
from penstock.testing.faults import Fault
from penstock.testing.telemetry import FakeTelemetry, TelemetryPush

SECONDS = 60.0
SENT = "org.apache.kafka.producer.record.send.total"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last push is waited for, however busy the machine is."""
    monkeypatch.setattr(pushing, "_LAST_PUSH_SECONDS", SECONDS)


@pytest.fixture
def asking(kafka: FakeKafka) -> FakeKafka:
    """A cluster that wants to know everything, ten times a second."""
    kafka.create_topic("orders", 1)
    with kafka.locked() as cluster:
        cluster.telemetry = FakeTelemetry(interval_ms=100)
    return kafka


def pushes(kafka: FakeKafka) -> list[TelemetryPush]:
    with kafka.locked() as cluster:
        assert cluster.telemetry is not None
        return list(cluster.telemetry.pushes)


def requests(kafka: FakeKafka) -> list[str]:
    telemetry = (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
    with kafka.locked() as cluster:
        return [request.api.name for request in cluster.received if request.api in telemetry]


@pytest.mark.usefixtures("patient")
def test_a_producer_pushes_and_says_when_it_ends(asking: FakeKafka) -> None:
    with Producer(bootstrap_servers=asking.bootstrap_servers, transactional_id=None) as producer:
        instance_id = producer.client_instance_id(SECONDS)
        producer.send("orders", b"1").result(SECONDS)
        wait_until(lambda: len(pushes(asking)) >= 2)
        producer.send("orders", b"2").result(SECONDS)
        assert producer.client_instance_id(0) == instance_id
    found = pushes(asking)
    assert {push.client_instance_id for push in found} == {instance_id.bytes}
    assert [push.terminating for push in found] == [False] * (len(found) - 1) + [True]
    sums = [point.value for push in found for point in read(push.metrics)[1] if point.name == SENT]
    assert sum(sums) == 2


def test_a_broker_without_telemetry_is_left_alone(kafka: FakeKafka) -> None:
    kafka.create_topic("orders", 1)
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        producer.send("orders", b"1").result(SECONDS)
        with pytest.raises(UnsupportedVersionError, match="take no telemetry"):
            producer.client_instance_id(SECONDS)
        parts = producer._parts
        assert parts.sender.telemetry is None, "telemetry gets no turns"
    assert requests(kafka) == []


def test_switched_off_nothing_is_asked(asking: FakeKafka) -> None:
    with Producer(bootstrap_servers=asking.bootstrap_servers, enable_metrics_push=False) as producer:
        producer.send("orders", b"1").result(SECONDS)
        with pytest.raises(IllegalStateError, match=r"enable\.metrics\.push"):
            producer.client_instance_id(SECONDS)
    assert requests(asking) == []


def test_the_id_is_given_without_a_record(asking: FakeKafka) -> None:
    with Producer(bootstrap_servers=asking.bootstrap_servers) as producer:
        assert producer.client_instance_id(SECONDS).int


def test_the_id_is_not_waited_for_without_end() -> None:
    with (
        Producer(bootstrap_servers="127.0.0.1:1") as producer,
        pytest.raises(KafkaTimeoutError, match=r"within 0\.01 s"),
    ):
        producer.client_instance_id(0.01)


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_an_async_producer_has_an_id_too(asking: FakeKafka) -> None:
    async with AsyncProducer(bootstrap_servers=asking.bootstrap_servers) as producer:
        instance_id = await producer.client_instance_id(SECONDS)
    assert pushes(asking)[-1].client_instance_id == instance_id.bytes


@pytest.mark.parametrize("sends", [False, True])
def test_a_producer_that_is_closed_in_the_middle_of_the_call_gives_no_id(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, sends: bool
) -> None:
    kafka.create_topic("orders", 1)
    producer = Producer(bootstrap_servers=kafka.bootstrap_servers)
    telemetry = producer._parts.telemetry
    assert telemetry is not None
    if sends:  # then it is known that the brokers take none
        producer.send("orders", b"1").result(SECONDS)
        wait_until(lambda: producer._parts.sender.telemetry is None)
    ask = telemetry.instance_id

    def close_first() -> object:
        closing = threading.Thread(target=producer.close)
        closing.start()
        closing.join(SECONDS)
        return ask()

    monkeypatch.setattr(telemetry, "instance_id", close_first)
    with pytest.raises(ProducerClosedError):
        producer.client_instance_id(SECONDS)


@pytest.mark.slow
def test_a_frozen_broker_does_not_keep_close_waiting(asking: FakeKafka) -> None:
    producer = Producer(bootstrap_servers=asking.bootstrap_servers)
    producer.send("orders", b"1").result(SECONDS)
    producer.client_instance_id(SECONDS)
    asking.add_fault(Fault(api=PUSH_TELEMETRY, delay=3600, times=None))
    producer.close(SECONDS)
    assert not producer._core.thread.is_alive()


def test_what_goes_wrong_in_telemetry_stops_no_record(
    asking: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    with asking.locked() as cluster:
        assert cluster.telemetry is not None
        cluster.telemetry.codecs = (4,)
    asking.add_fault(Fault(api=GET_TELEMETRY_SUBSCRIPTIONS, garbage=True))
    with Producer(bootstrap_servers=asking.bootstrap_servers) as producer:
        for _ in range(3):
            producer.send("orders", b"1").result(SECONDS)
    assert len(asking.records("orders")) == 3


def test_a_refused_client_stops_and_its_records_do_not(asking: FakeKafka) -> None:
    asking.add_fault(Fault(api=PUSH_TELEMETRY, error=42))
    with Producer(bootstrap_servers=asking.bootstrap_servers) as producer:
        producer.send("orders", b"1").result(SECONDS)
        parts = producer._parts
        wait_until(lambda: parts.sender.telemetry is None)
        producer.send("orders", b"2").result(SECONDS)
        assert producer.client_instance_id(SECONDS).int, "it was given before"
    assert requests(asking) == ["GetTelemetrySubscriptions", "PushTelemetry"]


def test_a_producer_without_telemetry_does_not_load_it() -> None:
    code = (
        "import sys; from penstock import Producer\n"
        "Producer(bootstrap_servers='127.0.0.1:1').close()\n"
        "print(*[name for name in sys.modules if name.startswith('penstock.telemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"penstock.telemetry", "penstock.telemetry.watch"}
