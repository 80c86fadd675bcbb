# SPDX-License-Identifier: Apache-2.0
"""Clients wait between calls, and are never shared or used after an error."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.config.kinds import Password
from penstock.control import client as module
from penstock.control.client import MAX_IDLE, IdleClients
from penstock.testing import FakeKafka


@pytest.fixture
def config() -> Iterator[dict[str, str]]:
    with FakeKafka() as kafka:
        yield {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.fixture
def idle() -> Iterator[IdleClients]:
    idle = IdleClients()
    yield idle
    idle.close()


def test_a_client_is_used_again(idle: IdleClients, config: dict[str, str]) -> None:
    with idle.borrow(config) as first:
        assert len(first.brokers()) == 1
    with idle.borrow(dict(config)) as second:
        assert second is first
        assert len(second.brokers()) == 1
    with idle.borrow(config | {"client.id": "another"}) as other:
        assert other is not first


def test_two_at_a_time_are_two(idle: IdleClients, config: dict[str, str]) -> None:
    with idle.borrow(config) as first, idle.borrow(config) as second:
        assert first is not second
    with idle.borrow(config) as third:
        assert third is first  # the last one to come back


def test_after_an_error_a_client_is_closed(idle: IdleClients, config: dict[str, str]) -> None:
    with pytest.raises(RuntimeError), idle.borrow(config) as first:
        raise RuntimeError
    assert "closed" in repr(first)
    with idle.borrow(config) as second:
        assert second is not first


def test_only_a_few_wait(idle: IdleClients, config: dict[str, str]) -> None:
    used = []
    for number in range(MAX_IDLE + 1):
        with idle.borrow(config | {"client.id": str(number)}) as client:
            used.append(client)
    assert ["closed" in repr(client) for client in used] == [True] + [False] * MAX_IDLE


def test_a_fork_does_not_use_its_parents(
    idle: IdleClients, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with idle.borrow(config) as parents:
        pass
    monkeypatch.setattr(module.os, "getpid", lambda: -5)
    with idle.borrow(config) as of_child:
        assert of_child is not parents
    idle.close()
    assert "closed" in repr(of_child)
    assert "closed" not in repr(parents)
    parents.close()


class Provider:
    """Gives tokens, and looks like every other one."""

    def __call__(self) -> str:
        return "token"

    def __repr__(self) -> str:
        return "<Provider>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provider)

    def __hash__(self) -> int:
        return 1


SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
TLS = {"security.protocol": "SSL"}
BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
CONTEXT = ssl.create_default_context()
PROVIDER = Provider()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SASL | {"sasl.password": Password("one")}, SASL | {"sasl.password": Password("two")}),
        (
            SASL | {"sasl.password": Password("now", lambda: "one")},
            SASL | {"sasl.password": Password("now", lambda: "two")},
        ),
        (SASL | {"sasl.password": "one"}, SASL | {"sasl.password": "two"}),
        (
            TLS | {"ssl_context": ssl.create_default_context()},
            TLS | {"ssl_context": ssl.create_default_context()},
        ),
        (
            BEARER | {"sasl.oauth.token.provider": PROVIDER},
            BEARER | {"sasl.oauth.token.provider": Provider()},
        ),
        (
            {"bootstrap.servers": ["127.0.0.1:1", "127.0.0.1:2"]},
            {"bootstrap.servers": ["127.0.0.1:1", "127.0.0.1:3"]},
        ),
    ],
    ids=["hidden passwords", "passwords in files", "passwords", "contexts", "providers", "lists"],
)
def test_other_credentials_are_another_client(
    idle: IdleClients, config: dict[str, str], one: dict[str, Any], other: dict[str, Any]
) -> None:
    with idle.borrow(config | one) as first:
        pass
    with idle.borrow(config | other) as second:
        assert second is not first
    with idle.borrow(config | one) as third:
        assert third is first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SASL | {"sasl.password": Password("one")}, SASL | {"sasl.password": Password("one")}),
        (SASL | {"sasl.password": "one"}, SASL | {"sasl.password": "o" + "ne"}),
        (TLS | {"ssl_context": CONTEXT}, {"ssl_context": CONTEXT} | TLS),
    ],
    ids=["hidden passwords", "passwords", "contexts"],
)
def test_the_same_credentials_are_the_same_client(
    idle: IdleClients, config: dict[str, str], one: dict[str, Any], other: dict[str, Any]
) -> None:
    with idle.borrow(config | one) as first:
        pass
    with idle.borrow(config | other) as second:
        assert second is first


def test_no_secret_is_kept_beside_a_client(idle: IdleClients, config: dict[str, str]) -> None:
    with idle.borrow(config | SASL | {"sasl.password": "S3cret-of-the-test"}):
        pass
    assert "S3cret" not in repr(idle._idle)
    assert all(b"S3cret" not in options.digest for options in idle._idle)
