# SPDX-License-Identifier: Apache-2.0
"""A first look at a cluster: what is waited for, and for how long."""

from __future__ import annotations

import pytest

from penstock.control.client import ControlClient
from penstock.control.topic_look import PATIENCE_SECONDS, TopicLook, patience_of
from penstock.errors import BrokerError, ConfigError, KafkaTimeoutError, TopicAuthorizationError
from penstock.testing import FakeKafka
from penstock.testing.settings import ClusterSettings


def test_topics_that_are_there_or_can_be_made_are_found() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            look = TopicLook(["orders", "made-by-the-asking"])
            client.run(look.steps(), 10.0)
        assert look.missing is None


def test_a_missing_topic_is_named() -> None:
    with FakeKafka(topics={"orders": 1}, settings=ClusterSettings(auto_create_topics=False)) as kafka:
        look = TopicLook(["orders", "order"])
        with (
            ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
            pytest.raises(KafkaTimeoutError),
        ):
            client.run(look.steps(), 0.2)
        assert look.missing == "order"


def test_a_missing_right_is_told_at_once() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        with kafka.locked() as cluster:
            cluster.denied_topics.add("orders")
        with (
            ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
            pytest.raises(TopicAuthorizationError, match="right WRITE"),
        ):
            client.run(TopicLook(["orders"]).steps(), 60.0)


def test_a_name_that_cannot_be_one_is_told_at_once() -> None:
    with (
        FakeKafka() as kafka,
        ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
        pytest.raises(BrokerError, match=r"topic 'no name!'"),
    ):
        client.run(TopicLook(["no name!"]).steps(), 60.0)


@pytest.mark.parametrize("name", ["max.block.ms", "max_block_ms"])
def test_the_users_own_patience_counts(name: str) -> None:
    assert patience_of({"bootstrap.servers": "x:1"}) == PATIENCE_SECONDS
    assert patience_of({name: "120000"}) == 120.0
    with pytest.raises(ConfigError, match=r"max\.block\.ms must be a number"):
        patience_of({name: "soon"})
