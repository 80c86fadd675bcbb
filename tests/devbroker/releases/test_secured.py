# SPDX-License-Identifier: Apache-2.0
"""Secured listeners of brokers with ZooKeeper: which release has which."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.devbroker import DevBrokerError, DevCluster
from penstock.devbroker.certificates import Certificates
from penstock.devbroker.releases.release import find_release
from penstock.devbroker.releases.secured import (
    listeners_of,
    old_listener_properties,
)
from penstock.devbroker.security import accesses
from penstock.devbroker.settings import NodeAddress


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


def test_all_listeners_are_bound_to_the_loopback() -> None:
    node = NodeAddress(1, 20001, 20002, {"TLS": 1, "SASLTLS": 2, "SASLPLAIN": 3})
    listeners = listeners_of(find_release("0.10.0.1"), "all")
    assert old_listener_properties(node, listeners, Certificates(Path("/keys")))["listeners"] == (
        "PLAINTEXT://127.0.0.1:20001,SSL://127.0.0.1:1,SASL_SSL://127.0.0.1:2,SASL_PLAINTEXT://127.0.0.1:3"
    )
