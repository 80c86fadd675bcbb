# SPDX-License-Identifier: Apache-2.0
"""A first look at a cluster: what is waited for, and for how long."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.control import ControlClient, reach
from penstock.control.reach import TopicCheck, find_topic_ids, is_answer, why_unreachable, why_unreached
from penstock.control.steps import ANY, with_last_trouble
from penstock.errors import (
    InvalidTopicError,
    KafkaTimeoutError,
    NetworkError,
    TopicAuthorizationError,
    UnsupportedVersionError,
    broker_error,
)
from penstock.protocol.releases import ranges_of
from penstock.testing import FakeKafka
from penstock.testing.settings import ClusterSettings
from penstock.types import Node


def run_out_of_time(
    look: TopicCheck, client: ControlClient, seconds: float, has_come_far: Callable[[], object]
) -> None:
    """Let the time be up: once, or as often as a busy machine needs to come that far in it."""
    for _ in range(50):
        with pytest.raises(KafkaTimeoutError):
            look.run(client, seconds)
        if has_come_far():
            return


def test_topics_that_are_there_or_can_be_made_are_found() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            look = TopicCheck(["orders", "made-by-the-asking"])
            look.run(client, 10.0)
        assert look.missing is None


def test_a_missing_topic_is_named() -> None:
    with FakeKafka(topics={"orders": 1}, settings=ClusterSettings(auto_create_topics=False)) as kafka:
        look = TopicCheck(["orders", "order"])
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            run_out_of_time(look, client, 0.2, lambda: look.missing)
        assert look.missing == "order"


@pytest.mark.parametrize("release", ["4.0", "2.7"])
def test_topics_are_told_by_their_ids_and_none_is_made(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.1)
    with FakeKafka(topics={"orders": 1}, release=release) as kafka:
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            ids = find_topic_ids(client, ["orders", "users"], 60.0)
        with kafka.locked() as cluster:
            orders = cluster.topics.by_name("orders")
            assert orders is not None
            assert cluster.topics.by_name("users") is None
    assert ids == {"orders": bytes(16) if release == "2.7" else orders.topic_id}


def test_a_missing_right_is_told_at_once() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        with kafka.locked() as cluster:
            cluster.denied_topics.add("orders")
        with (
            ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
            pytest.raises(TopicAuthorizationError, match="right WRITE") as caught,
        ):
            TopicCheck(["orders"]).run(client, 60.0)
        assert caught.value.topic == "orders"


@pytest.mark.parametrize("name", ["no name!", "", ".", "..", "x" * 250, "gr\u00fcsse", "orders\n"])
def test_a_name_that_cannot_be_one_is_told_without_asking(name: str) -> None:
    with (
        ControlClient({"bootstrap.servers": "127.0.0.1:1"}) as client,
        pytest.raises(InvalidTopicError) as caught,
    ):
        TopicCheck([name]).run(client, 60.0)
    assert str(caught.value).startswith(f"topic {name!r} cannot exist: a topic's name has 1 to 249 letters")


def test_every_name_that_kafka_allows_is_asked_for() -> None:
    names = ["...", "..x", "A.b_c-9", "x" * 249]
    with FakeKafka() as kafka, ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        look = TopicCheck(names)
        look.run(client, 60.0)
    assert sorted(look.partitions) == sorted(names)


def test_the_partitions_that_are_there_are_told() -> None:
    with FakeKafka(topics={"orders": 3, "users": 1}) as kafka:
        look = TopicCheck(["orders", "users"])
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            look.run(client, 60.0)
    assert look.partitions == {"orders": [0, 1, 2], "users": [0]}


def test_a_missing_topic_is_told_soon_however_patient_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.3)
    look = TopicCheck(["order"])
    started = time.monotonic()
    with (
        FakeKafka(settings=ClusterSettings(auto_create_topics=False)) as kafka,
        ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
        pytest.raises(KafkaTimeoutError),
    ):
        look.run(client, 60.0)
    assert look.missing == "order"
    assert time.monotonic() - started < 30


def test_brokers_at_addresses_of_no_use_are_told_from_a_wrong_bootstrap_server() -> None:
    look = TopicCheck(["orders"])
    with FakeKafka(topics={"orders": 1}, brokers=1) as kafka:
        servers = kafka.bootstrap_servers
        with kafka.locked() as cluster:
            (broker,) = cluster.nodes
            cluster.set_address(broker, "127.0.0.1", 1)
        with ControlClient({"bootstrap.servers": servers}) as client:
            run_out_of_time(look, client, 0.5, lambda: any(look.unreached.values()))
    assert [(node.id, node.port) for node in look.unreached] == [(broker, 1)]
    said = why_unreached(servers, look.unreached)
    assert said.startswith(f"{servers} answers, but ")
    assert f"broker {broker} at 127.0.0.1:1" in said
    assert "connection refused" in said
    assert "Check advertised.listeners" in said


def test_a_cluster_that_was_reached_and_is_gone_has_no_wrong_addresses() -> None:
    with FakeKafka(topics={"orders": 1}, brokers=1) as kafka:
        client = ControlClient({"bootstrap.servers": kafka.bootstrap_servers})
        client.brokers()
    look = TopicCheck(["orders"])
    with client, pytest.raises(KafkaTimeoutError):
        look.run(client, 0.5)
    assert not look.unreached


def test_nobody_listens_is_no_wrong_address_of_the_cluster() -> None:
    look = TopicCheck([])
    with ControlClient({"bootstrap.servers": "127.0.0.1:1"}) as client:
        with pytest.raises(KafkaTimeoutError) as caught:
            look.run(client, 0.3)
        assert not look.unreached
    up = caught.value
    assert why_unreachable(up).startswith("cannot connect to bootstrap server 127.0.0.1:1")
    assert up.waited_for is ANY
    assert why_unreachable(up) == str(up.obstacle)
    assert str(up).endswith(f"waiting for Metadata to any broker: {up.obstacle}")
    copied = pickle.loads(pickle.dumps(up))
    assert (copied.waited_for, str(copied.obstacle)) == (ANY, str(up.obstacle))


def test_a_last_trouble_that_says_something_else_is_told_too() -> None:
    up = KafkaTimeoutError("not done after 8.0 s, waiting for Metadata to any broker: no route")
    up.waited_for, up.obstacle = ANY, NetworkError("no route")
    same = with_last_trouble(up, NetworkError("no route"))
    same.__cause__ = NetworkError("no route")
    assert str(same) == str(up)
    assert why_unreachable(same) == str(up.obstacle)
    other = with_last_trouble(up, NetworkError("it broke"))
    other.__cause__ = NetworkError("it broke")
    assert str(other) == f"{up}; the last trouble was: {other.__cause__}"
    assert why_unreachable(other) == f"{up.obstacle}; the last trouble was: {other.__cause__}"
    sent = KafkaTimeoutError("not done after 8.0 s, waiting for the answer to Metadata to any broker")
    sent.waited_for = ANY
    asked = with_last_trouble(sent, NetworkError("it broke"))
    asked.__cause__ = NetworkError("it broke")
    assert why_unreachable(asked) == str(asked) == f"{sent}; the last trouble was: {asked.__cause__}"


def test_no_news_from_the_way_there_is_put_in_words() -> None:
    silence = KafkaTimeoutError("not done after 8.0 s, waiting for METADATA to any broker")
    silence.waited_for = ANY
    assert why_unreachable(silence) == "no answer"
    assert why_unreachable(KafkaTimeoutError("something else")) == "something else"
    said = why_unreached("kafka:9092", {Node(3, "internal", 9092): None})
    assert "cannot be reached from here: no answer from broker 3 at internal:9092. Check" in said


def test_answers_are_told_from_troubles_on_the_way() -> None:
    assert is_answer(broker_error(5))
    assert not is_answer(NetworkError("the connection broke"))
    assert not is_answer(None)


def play(kafka: FakeKafka, release: str) -> None:
    """Let the brokers have the versions of an old release."""
    with kafka.locked() as cluster:
        cluster.release = replace(cluster.release, ranges=ranges_of(release))


@pytest.mark.parametrize("release", ["0.10.0", "0.10.2", "0.11.0", "1.1", "2.2", "2.3"])
def test_topics_of_old_brokers_are_found(release: str) -> None:
    with FakeKafka(topics={"orders": 3}) as kafka:
        play(kafka, release)
        with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
            look = TopicCheck(["orders"])
            look.run(client, 10.0)
            assert [node.id for node in client.brokers()] == [0]
        assert look.partitions == {"orders": [0, 1, 2]}


@pytest.mark.parametrize("release", ["0.10.0", "0.10.2"])
def test_what_an_old_broker_cannot_be_asked_is_told(release: str) -> None:
    """Before 0.11 brokers cannot be told to make no topic."""
    with FakeKafka(topics={"orders": 1}) as kafka:
        play(kafka, release)
        with (
            ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
            pytest.raises(UnsupportedVersionError, match=r"Kafka 0\.11\.0 or later") as caught,
        ):
            client.leader("orders", 0, 10.0)
        assert release in str(caught.value)
