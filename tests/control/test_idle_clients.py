# SPDX-License-Identifier: Apache-2.0
"""Clients wait between calls, and are never shared or used after an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
