# SPDX-License-Identifier: Apache-2.0
"""Secured listeners of brokers with ZooKeeper, as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.devbroker import DevBrokerError, DevCluster
from penstock.devbroker.certificates import Certificates
from penstock.devbroker.releases.release import find_release
from penstock.devbroker.releases.secured import (
    jaas_text,
    listeners_of,
    old_listener_properties,
    scram_commands,
)
from penstock.devbroker.security import accesses
from penstock.devbroker.settings import NodeAddress

PORTS = {"TLS": 1, "SASLTLS": 2, "SASLPLAIN": 3}
NODE = NodeAddress(1, 20001, 20002, PORTS)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.9.0.1", {"ssl"}),
        ("0.10.0.1", {"ssl", "sasl_ssl-plain", "sasl_plaintext-plain"}),
        ("2.8.2", {"ssl"} | {f"sasl_{p}-{m}" for p in ("ssl", "plaintext") for m in
                             ("plain", "scram-sha-256", "scram-sha-512")}),
    ],
)  # fmt: skip
def test_a_release_has_the_listeners_that_it_knows(version: str, expected: set[str]) -> None:
    listeners = listeners_of(find_release(version), "all")
    assert {access.name for access in accesses(listeners)} == expected


@pytest.mark.parametrize(
    ("version", "security"), [("0.9.0.1", "sasl-plain"), ("0.10.0.1", "scram"), ("2.8.2", "mtls")]
)
def test_what_a_release_cannot_have_is_refused(version: str, security: str) -> None:
    with pytest.raises(
        DevBrokerError,
        match=f"Kafka {version} cannot be started with --security {security} here: leave out --kafka",
    ):
        DevCluster(kafka=version, security=security)


def test_listeners_are_named_after_their_protocols_and_bound_to_the_loopback() -> None:
    listeners = listeners_of(find_release("0.10.0.1"), "all")
    properties = old_listener_properties(NODE, listeners, Certificates(Path("/keys")))
    assert properties["listeners"] == (
        "PLAINTEXT://127.0.0.1:20001,SSL://127.0.0.1:1,SASL_SSL://127.0.0.1:2,SASL_PLAINTEXT://127.0.0.1:3"
    )
    assert properties["advertised.listeners"] == (
        "PLAINTEXT://127.0.0.1:20001,SSL://localhost:1,SASL_SSL://localhost:2,SASL_PLAINTEXT://127.0.0.1:3"
    )
    assert properties["sasl.enabled.mechanisms"] == "PLAIN"
    assert properties["ssl.keystore.location"] == "/keys/broker.jks"


def test_without_sasl_there_are_no_mechanisms_and_without_tls_no_keys() -> None:
    release = find_release("2.1.1")
    tls = old_listener_properties(NODE, listeners_of(release, "tls"), Certificates(Path("/keys")))
    assert "sasl.enabled.mechanisms" not in tls
    without = [each for each in listeners_of(release, "scram") if not each.has_tls]
    properties = old_listener_properties(NODE, without, Certificates(Path("/keys")))
    assert not any(name.startswith("ssl.") for name in properties)
    assert properties["sasl.enabled.mechanisms"] == "SCRAM-SHA-256,SCRAM-SHA-512"


def test_the_jaas_file_has_a_module_for_plain_and_one_for_scram() -> None:
    text = jaas_text(listeners_of(find_release("1.1.1"), "all"))
    assert text.startswith("KafkaServer {\n")
    assert text.count("PlainLoginModule") == 1
    assert text.count("ScramLoginModule") == 1
    assert 'user_alice="' in text


def test_users_of_scram_are_added_for_all_mechanisms_at_once() -> None:
    commands = scram_commands(listeners_of(find_release("0.10.2.2"), "all"), "127.0.0.1:2181")
    assert [args[args.index("--entity-name") + 1] for args in commands] == ["alice", "bob", "admin"]
    assert commands[0][-1].startswith("SCRAM-SHA-256=[password=")
    assert ",SCRAM-SHA-512=[password=" in commands[0][-1]
    assert scram_commands(listeners_of(find_release("0.10.2.2"), "sasl-plain"), "127.0.0.1:2181") == []
