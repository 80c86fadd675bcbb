# SPDX-License-Identifier: Apache-2.0
"""What pytest loads wherever Penstock is installed: three fixtures and a marker.

It lies outside of the penstock package because pytest imports it at the start of every run, also in projects that never
ask for Kafka: importing anything below `penstock` would import the producer first. What the fixtures do is in
`penstock.testing.plugin`, which is imported by the first test that asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock import AsyncProducer
    from penstock.devbroker import DevCluster
    from penstock.testing.server import FakeKafka

_CLOSE_SECONDS = 10.0  # for the records that a test has left on their way


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for --strict-markers and --markers."""
    config.addinivalue_line(
        "markers",
        "kafka(brokers=1, topics={'name': partitions}, ...): what the fake cluster of the fixture 'kafka' is made "
        "with, as penstock.testing's FakeKafka takes it. With security='SASL_SSL' or another protocol, the broker of "
        "the fixture 'real_kafka' has listeners for all of them, too: see its client_options().",
    )


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    """A fake Kafka cluster on 127.0.0.1 for this test alone; @pytest.mark.kafka(...) says how it is made."""
    from penstock.testing import plugin

    with plugin.fake_kafka(request) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_kafka(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """A real Apache Kafka on 127.0.0.1, one broker for the whole run; the tests are skipped where Java is missing."""
    from penstock.testing import plugin

    with plugin.real_kafka_or_skip(request.session) as cluster:
        yield cluster


@pytest.fixture
def async_producer(kafka: FakeKafka) -> Iterator[AsyncProducer]:
    """An AsyncProducer for the fake cluster of the test; for loops of every scope, of pytest-asyncio and of anyio.

    It is no asynchronous fixture, and so is made and closed outside of the test's loop, to which it does not belong.
    """
    import asyncio

    from penstock import AsyncProducer

    producer = AsyncProducer(kafka.client_options())
    try:
        yield producer
    finally:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(producer.aclose(_CLOSE_SECONDS))
        finally:
            loop.close()
