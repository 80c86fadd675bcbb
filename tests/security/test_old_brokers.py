# SPDX-License-Identifier: Apache-2.0
"""SASL with brokers before Kafka 1.0, which know no SaslAuthenticate: tokens go bare, and a refusal is a close."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from penstock import Producer
from penstock.control import ControlClient
from penstock.errors import AuthenticationError
from penstock.protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.testing import FakeKafka, FakeSecurity

every_mechanism = pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])


@contextmanager
def old_kafka(protocol: str = "SASL_PLAINTEXT") -> Iterator[FakeKafka]:
    with FakeKafka(2, topics={"t": 2}, security=FakeSecurity(protocol=protocol), release="2.4") as kafka:
        with kafka.locked() as cluster:
            ranges = dict(cluster.release.ranges)
            del ranges[SASL_AUTHENTICATE.key]
            ranges[SASL_HANDSHAKE.key] = (0, 0)
            cluster.release = replace(cluster.release, ranges=ranges)
        yield kafka


@every_mechanism
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_records_arrive(mechanism: str, protocol: str) -> None:
    with old_kafka(protocol) as kafka:
        with Producer(kafka.client_options(mechanism), linger_ms=0) as producer:
            for number in range(4):
                producer.send("t", b"%d" % number, partition=number % 2).result(60)
        assert [record.value for record in kafka.records("t")] == [b"0", b"2", b"1", b"3"]
        asked = {request.api for request in kafka.cluster.received}
        assert SASL_HANDSHAKE in asked
        assert SASL_AUTHENTICATE not in asked


@every_mechanism
def test_the_control_client_is_let_in(mechanism: str) -> None:
    with old_kafka() as kafka, ControlClient(kafka.client_options(mechanism)) as client:
        assert len(client.brokers(timeout=60)) == 2


@every_mechanism
def test_a_wrong_password_is_told_at_once(mechanism: str) -> None:
    with old_kafka() as kafka:
        options = kafka.client_options(mechanism) | {"sasl.password": "S3cret-of-the-test"}
        with Producer(options) as producer:
            began = time.monotonic()
            with pytest.raises(AuthenticationError, match=r"how a broker before 1\.0 refuses it") as caught:
                producer.send("t", b"x")
            assert time.monotonic() - began < 30
        assert (caught.value.mechanism, caught.value.user) == (mechanism, "alice")
        assert "password" in str(caught.value)
        assert "S3cret" not in str(caught.value)


def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are() -> None:
    with old_kafka() as kafka:
        options = kafka.client_options("PLAIN")
        kafka.cluster.security.mechanisms = ("SCRAM-SHA-512",)
        with (
            Producer(options) as producer,
            pytest.raises(AuthenticationError, match="it offers SCRAM-SHA-512"),
        ):
            producer.send("t", b"x")
