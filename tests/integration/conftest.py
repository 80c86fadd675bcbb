# SPDX-License-Identifier: Apache-2.0
"""Clusters for the tests that break things; `dev_cluster`, which all tests share, is never harmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.devbroker import DevCluster

_FACTS = pytest.StashKey[list[str]]()

Note = Callable[[str], None]


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Give a function that adds a line to the end of the report: numbers that are no reason to fail."""
    facts = request.config.stash.setdefault(_FACTS, [])
    return lambda text: facts.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    facts = config.stash.get(_FACTS, [])
    if facts:
        terminalreporter.section("seen on a real Kafka")
        for fact in facts:
            terminalreporter.line(fact)


@pytest.fixture(scope="session")
def one_broker() -> Iterator[DevCluster]:
    """A broker that may be killed. It creates no topics by itself."""
    with DevCluster(properties={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture
def breakable(one_broker: DevCluster) -> DevCluster:
    """The broker that may be killed, up again, whatever the test before has done to it."""
    if not one_broker.node(1).running:
        one_broker.start_node(1)
    return one_broker


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[DevCluster]:
    """Three brokers that may be killed; a topic's copies are spread over them."""
    with DevCluster(nodes=3, heap_mb=256) as cluster:
        yield cluster
