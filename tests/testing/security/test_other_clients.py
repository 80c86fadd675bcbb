# SPDX-License-Identifier: Apache-2.0
"""The fake cluster's TLS and SASL, as a client sees them that is not ours."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from typing import Any

import pytest

from penstock.testing import FakeKafka, FakeSecurity
from penstock.testing.security.settings import CA_FILE, CLIENT_FILE, MECHANISMS

confluent = pytest.importorskip("confluent_kafka")
TIMEOUT = 60.0
API_VERSIONS_V0 = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"  # size, key, version, correlation id, no client id


def unsigned_token(config: str) -> tuple[str, float]:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    end = time.time() + 3600
    return f"{part({'alg': 'none'})}.{part({'sub': 'alice', 'exp': end})}.", end


def publish(kafka: FakeKafka, **options: Any) -> list[Any]:
    """Send one record; what the client was told, and every error."""
    told: list[Any] = []
    producer = confluent.Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers.replace("127.0.0.1", "localhost"),
            "security.protocol": kafka.cluster.security.protocol,
            "error_cb": told.append,
            "message.timeout.ms": 5000,
            **{name.replace("_", "."): value for name, value in options.items() if name != "oauth_cb"},
            **{name: value for name, value in options.items() if name == "oauth_cb"},
        }
    )
    producer.produce("t", b"hello", on_delivery=lambda error, message: told.append(error))
    producer.flush(TIMEOUT)
    return told


def ask_by_tls(kafka: FakeKafka) -> bytes:
    """One request without a client certificate; TLS 1.3 tells of a refusal when the answer is read."""
    host, port = kafka.bootstrap_servers.split(":")
    context = ssl.create_default_context(cafile=CA_FILE)
    with (
        socket.create_connection((host, int(port)), TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(API_VERSIONS_V0)
        return secured.recv(100)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_each_mechanism_lets_a_known_client_in(protocol: str, mechanism: str) -> None:
    options: dict[str, Any] = {"sasl_mechanism": mechanism, "ssl_ca_location": str(CA_FILE)}
    if mechanism == "OAUTHBEARER":
        options["oauth_cb"] = unsigned_token
    else:
        options |= {"sasl_username": "alice", "sasl_password": "alice-secret"}
    with FakeKafka(topics={"t": 1}, security=protocol) as kafka:
        assert publish(kafka, **options) == [None]
        assert [record.value for record in kafka.records("t")] == [b"hello"]


def test_a_client_with_a_certificate_is_let_in() -> None:
    security = FakeSecurity(protocol="SSL", wants_certificate=True)
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        files = {"ssl_certificate_location": str(CLIENT_FILE), "ssl_key_location": str(CLIENT_FILE)}
        assert publish(kafka, ssl_ca_location=str(CA_FILE), **files) == [None]


def test_a_client_without_a_certificate_is_not() -> None:
    security = FakeSecurity(protocol="SSL", wants_certificate=True)
    with (
        FakeKafka(topics={"t": 1}, security=security) as kafka,
        pytest.raises(ssl.SSLError, match="CERTIFICATE"),
    ):
        ask_by_tls(kafka)


def test_bytes_that_are_not_tls_end_the_connection() -> None:
    with FakeKafka(security="SSL") as kafka:
        host, port = kafka.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), TIMEOUT) as plain:
            plain.sendall(API_VERSIONS_V0)
            plain.settimeout(TIMEOUT)
            answer = plain.recv(100)
            assert answer[:1] in (b"\x15", b"")  # an alert of TLS, or nothing


def test_the_options_for_a_client_name_all_that_it_needs() -> None:
    with FakeKafka(security=FakeSecurity(protocol="SASL_SSL", users={"bob": "b"})) as kafka:
        assert kafka.client_options("SCRAM-SHA-256") == {
            "bootstrap.servers": kafka.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(CA_FILE),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "bob",
            "sasl.password": "b",
        }
