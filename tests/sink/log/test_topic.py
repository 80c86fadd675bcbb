# SPDX-License-Identifier: Apache-2.0
"""The log's topic is made as it must be, and one that is not is refused or warned of."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.control import ControlClient
from penstock.control.topics import describe_topic
from penstock.errors import BrokerError, SinkAuthorizationError, SinkLogUnfitError
from penstock.sink.log.topic import ensure_log_topic
from penstock.testing import FakeKafka


@pytest.fixture(params=[1, 2, 3])
def kafka(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    with FakeKafka(brokers=request.param, topics={"orders": 1}) as kafka:
        yield kafka


@pytest.fixture
def client(kafka: FakeKafka) -> Iterator[ControlClient]:
    with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        yield client


def test_it_has_as_many_copies_as_there_can_be(kafka: FakeKafka, client: ControlClient) -> None:
    brokers = len(kafka.cluster.nodes)
    made = ensure_log_topic(client, "log", "orders")
    assert (made.partitions, made.replication) == (1, min(3, brokers))
    assert made.settings["min.insync.replicas"] == str(min(2, brokers))
    assert made.settings["message.timestamp.type"] == "LogAppendTime"
    assert ensure_log_topic(client, "log", None) == made


def test_it_is_not_made_with_less_than_it_needs_while_a_broker_is_down() -> None:
    """It would be refused from then on, also when all brokers are there again."""
    with FakeKafka(brokers=2) as kafka:
        kafka.create_topic("orders", replication=2)
        kafka.stop_broker(1)
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            with pytest.raises(BrokerError, match="'log' was not created"):
                ensure_log_topic(client, "log", "orders")
            assert describe_topic(client, "log") is None
            kafka.start_broker(1)
            assert ensure_log_topic(client, "log", "orders").replication == 2


def test_a_topic_that_deletes_is_refused(kafka: FakeKafka, client: ControlClient) -> None:
    kafka.create_topic("log")
    with pytest.raises(SinkLogUnfitError, match=r"cleanup\.policy=delete.*decisionTopic"):
        ensure_log_topic(client, "log", None)


def test_a_topic_without_enough_replicas_in_step_is_warned_of(
    kafka: FakeKafka, client: ControlClient, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic("log", configs={"cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING):
        ensure_log_topic(client, "log", "orders")
    warned = any("min.insync.replicas=1" in message for message in caplog.messages)
    assert warned == (len(kafka.cluster.nodes) > 1)


def test_few_copies_of_the_transactions_state_are_warned_of(
    kafka: FakeKafka, client: ControlClient, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic("__transaction_state")
    with caplog.at_level(logging.WARNING):
        ensure_log_topic(client, "log", None)
    warned = any("__transaction_state" in message for message in caplog.messages)
    assert warned == (len(kafka.cluster.nodes) < 3)


def test_a_topic_that_may_not_be_looked_at(kafka: FakeKafka, client: ControlClient) -> None:
    kafka.create_topic("log", configs={"cleanup.policy": "compact"})
    with kafka.locked() as cluster:
        cluster.denied_topics.add("log")
    with pytest.raises(SinkAuthorizationError, match=r"'log'.*Nothing was written"):
        ensure_log_topic(client, "log", None)
