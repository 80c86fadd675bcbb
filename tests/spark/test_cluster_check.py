# SPDX-License-Identifier: Apache-2.0
"""One look from the driver: a wrong address or topic fails soon, with the address and the cause."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from fix_patience import wait_until

from penstock.control import reach
from penstock.control.client import ControlClient
from penstock.control.reach import TopicCheck
from penstock.errors import (
    AuthenticationError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationError,
)
from penstock.protocol.messages import API_VERSIONS, METADATA
from penstock.sink import SinkSettings, driver_client, prepare, was_used
from penstock.sink.driver import forget_clusters
from penstock.spark import cluster_check
from penstock.spark.cluster_check import check_cluster
from penstock.spark.options import SinkOptions
from penstock.testing import FakeKafka
from penstock.testing.faults import Fault
from penstock.testing.settings import ClusterSettings

NOBODY_LISTENS = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_check, "_seen", {})


def options(servers: str, topic: str | None = "orders", dead_letter_topic: str | None = None) -> SinkOptions:
    return SinkOptions(
        streaming=False,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        producer={"bootstrap.servers": servers},
    )


def trouble(found: SinkOptions, words: str) -> KafkaError:
    """What the check raises where it waits without an answer; its time is in words.

    It waits half a second; and longer, where that was over before anything was learned: the machine may be busy.
    """
    for patience in (0.5, 5.0, 50.0):
        with pytest.raises(KafkaError) as caught:
            check_cluster(found, patience=patience)
        error = caught.value
        error.args = (str(error).replace(f"{patience:g} s", "so many seconds"),)
        if words in str(error):
            break
    return error


def test_a_cluster_with_the_topic_is_in_order() -> None:
    with FakeKafka(topics={"orders": 1, "bad": 1}) as kafka:
        check_cluster(options(kafka.bootstrap_servers, dead_letter_topic="bad"))
        check_cluster(options(kafka.bootstrap_servers, topic=None))


def test_a_file_that_the_driver_lacks_is_named_with_the_place() -> None:
    security = {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere/ca.pem"}
    wrong = SinkOptions(streaming=False, producer={"bootstrap.servers": NOBODY_LISTENS, **security})
    settings = SinkSettings(sink_id="a sink", config=wrong.producer)
    for client in (None, driver_client(settings)):
        with pytest.raises(ConfigError, match=r"wrong on the driver: .*'/nowhere/ca\.pem'") as caught:
            check_cluster(wrong, client=client)
        assert caught.value.option == "kafka.ssl.truststore.location"


def test_the_next_planning_uses_the_same_connections() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        found = options(kafka.bootstrap_servers)
        settings = SinkSettings(sink_id="a sink", config=found.producer)
        check_cluster(found, client=driver_client(settings))
        with kafka.locked() as cluster:
            assert any(request.api is METADATA for request in cluster.received)
            cluster.received.clear()
        with driver_client(settings) as client:
            client.brokers()
        with kafka.locked() as cluster:
            assert not any(request.api is API_VERSIONS for request in cluster.received)


@pytest.mark.slow
def test_an_address_where_nobody_listens_is_named_with_the_cause() -> None:
    said = str(trouble(options(NOBODY_LISTENS), "connection refused"))
    assert said.startswith(
        "the driver cannot reach Kafka at 127.0.0.1:1 within so many seconds: cannot connect"
    )
    assert "connection refused" in said
    assert "kafka.bootstrap.servers" in said


def test_a_name_that_cannot_be_resolved_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nosuch\.invalid"):
        check_cluster(options("nosuch.invalid:9092"))


@pytest.mark.slow
def test_a_topic_that_is_not_there_is_named() -> None:
    with FakeKafka(topics={"orders": 1}, settings=ClusterSettings(auto_create_topics=False)) as kafka:
        said = "topic 'order' (option topic) does not exist at 127"
        error = trouble(options(kafka.bootstrap_servers, "order"), said)
        assert isinstance(error, ConfigError)
        assert said in str(error)
        said = "'bad' (option deadLetterTopic) does not exist"
        error = trouble(options(kafka.bootstrap_servers, "orders", "bad"), said)
        assert isinstance(error, ConfigError)
        assert said in str(error)


def test_an_advertised_listener_that_cannot_be_reached_is_told_from_a_wrong_address() -> None:
    with FakeKafka(topics={"orders": 1}, brokers=1) as kafka:
        servers = kafka.bootstrap_servers
        with kafka.locked() as cluster:
            (broker,) = cluster.nodes
            cluster.set_address(broker, "127.0.0.1", 1)
        said = str(trouble(options(servers), "advertised.listeners"))
    assert said.startswith(f"{servers} answers, but ")
    assert f"broker {broker} at 127.0.0.1:1" in said
    assert "Check advertised.listeners" in said
    assert "kafka.bootstrap.servers" not in said


@pytest.mark.parametrize("given", ["600000", "100"])
def test_how_long_tasks_may_wait_is_not_how_long_the_driver_does(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(TopicCheck, "run", lambda look, client, seconds: asked.append(seconds))
    patient = SinkOptions(
        streaming=False,
        topic="orders",
        producer={"bootstrap.servers": NOBODY_LISTENS, "max.block.ms": given},
    )
    check_cluster(patient)
    assert asked == [8.0]


def test_brokers_that_answer_and_are_not_ready_are_not_called_unreachable() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        about_topics = Fault(
            api=METADATA, match=lambda request: bool(request.body["topics"]), error=5, times=None
        )
        kafka.add_fault(about_topics)
        error = trouble(options(kafka.bootstrap_servers), "is not ready")
    said = str(error)
    assert "answers, but is not ready after so many seconds: " in said
    assert error.topic is None
    assert "cannot reach" not in said


def test_a_refusal_is_not_called_unreachable() -> None:
    with FakeKafka() as kafka:
        with pytest.raises(KafkaError, match=r"refuses what the driver asks: .*'no name!'") as caught:
            check_cluster(options(kafka.bootstrap_servers, "no name!"))
        assert caught.value.topic == "no name!"


def test_what_was_found_in_order_is_not_asked_again_so_soon() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        found = options(kafka.bootstrap_servers)
        check_cluster(found)
    check_cluster(found, patience=0.1)  # nobody is there any more


def test_a_client_that_is_not_let_in_is_told_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AuthenticationError(
            "no connection to broker 1: wrong password.", mechanism="PLAIN", user="alice", broker="broker 1"
        )

    monkeypatch.setattr(ControlClient, "run", refuse)
    with pytest.raises(
        AuthenticationError, match=r"wrong password\. Check the options kafka\.sasl\.\* and kafka"
    ) as caught:
        check_cluster(options("127.0.0.1:1"))
    error = caught.value
    assert (error.mechanism, error.user, error.broker) == ("PLAIN", "alice", "broker 1")


def test_a_right_that_is_missing_is_named() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        with kafka.locked() as cluster:
            cluster.denied_topics.add("orders")
        with pytest.raises(TopicAuthorizationError, match="may not write to topic 'orders'"):
            check_cluster(options(kafka.bootstrap_servers))


# ---- patience with a cluster that was found before


class Looks:
    """Stands for the looks at a cluster of which the first ones get no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unanswered: int = 0) -> None:
        self.patience: list[float] = []
        self._unanswered = unanswered
        monkeypatch.setattr(TopicCheck, "run", self._run)

    def _run(self, client: ControlClient, seconds: float) -> None:
        self.patience.append(seconds)
        if len(self.patience) <= self._unanswered:
            raise KafkaTimeoutError("no answer")


def streaming(checkpoint: str | None) -> SinkOptions:
    return SinkOptions(
        streaming=True,
        topic="orders",
        checkpoint_location=checkpoint,
        producer={"bootstrap.servers": NOBODY_LISTENS},
    )


def test_a_cluster_that_this_process_has_found_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    check_cluster(streaming(None))
    (key,) = cluster_check._seen
    cluster_check._seen[key] -= 1000  # long ago, so that it is looked at again
    check_cluster(streaming(None))
    assert looks.patience == [8.0, 120.0]


def test_a_long_wait_is_logged_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "penstock.spark"]

    def look(_check: TopicCheck, _client: ControlClient, seconds: float) -> None:
        if seconds == 1.5:
            wait_until(lines)
        raise KafkaTimeoutError("no answer")

    monkeypatch.setattr(TopicCheck, "run", look)
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(cluster_check, "FOUND_PATIENCE_SECONDS", 1.5)
    with pytest.raises(KafkaError):
        check_cluster(streaming(None))
    assert lines() == []  # a mistake is told soon
    cluster_check._seen[NOBODY_LISTENS, "orders"] = -1000.0
    with pytest.raises(KafkaError):
        check_cluster(streaming(None))
    (told,) = lines()
    assert told.getMessage() == (
        "Kafka at 127.0.0.1:1 does not answer yet. It has answered before, so the driver waits for it for 1.5 s in all"
    )


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
@pytest.mark.parametrize(("committed", "patience"), [(["0", ".0.crc"], 120.0), ([], 8.0), ([".0.crc"], 8.0)])
def test_a_new_process_knows_from_the_checkpoint_that_the_query_has_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str, committed: list[str], patience: float
) -> None:
    folder = tmp_path / "a checkpoint"
    (folder / "commits").mkdir(parents=True)
    for name in committed:
        (folder / "commits" / name).touch()
    looks = Looks(monkeypatch)
    written = str(folder) if not prefix else prefix + quote(str(folder))
    check_cluster(streaming(written))
    assert looks.patience == [patience]


@pytest.mark.parametrize(
    "checkpoint", [None, "s3://bucket/checkpoint", "/nowhere", "file://elsewhere/x", "x\0y"]
)
def test_a_checkpoint_that_cannot_be_seen_says_nothing(
    monkeypatch: pytest.MonkeyPatch, checkpoint: str | None
) -> None:
    looks = Looks(monkeypatch)
    check_cluster(streaming(checkpoint))
    assert looks.patience == [8.0]


def test_a_new_process_asks_the_log_when_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, unanswered=1)
    check_cluster(streaming(None), was_used=lambda _: True)
    assert looks.patience == [8.0, 120.0]


@pytest.mark.parametrize(
    ("checkpoint", "seconds"), [(None, 30.0), ("s3://bucket/checkpoint", 30.0), ("/nowhere", 5.0)]
)
def test_where_only_the_log_tells_it_is_asked_for_longer_than_a_broker_pauses(
    monkeypatch: pytest.MonkeyPatch, checkpoint: str | None, seconds: float
) -> None:
    asked: list[float] = []
    Looks(monkeypatch, unanswered=9)
    with pytest.raises(KafkaError, match="cannot reach Kafka"):
        check_cluster(streaming(checkpoint), was_used=lambda seconds: bool(asked.append(seconds)))
    assert asked == [seconds]


@pytest.mark.parametrize("found_before", [True, False])
def test_who_has_been_patient_does_not_ask_the_log_and_wait_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found_before: bool
) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    looks = Looks(monkeypatch, unanswered=9)
    asked: list[float] = []
    checked = streaming(str(tmp_path) if found_before else None)
    with pytest.raises(KafkaError, match="cannot reach Kafka"):
        check_cluster(
            checked, None if found_before else 3.0, was_used=lambda seconds: not asked.append(seconds)
        )
    assert (looks.patience, asked) == ([120.0 if found_before else 3.0], [])


def test_a_topic_that_was_not_looked_for_is(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    check_cluster(options(NOBODY_LISTENS))
    check_cluster(options(NOBODY_LISTENS, "others"))
    check_cluster(options(NOBODY_LISTENS), dead_letter_topic="bad")
    check_cluster(options(NOBODY_LISTENS), dead_letter_topic="bad")
    assert len(looks.patience) == 3


def test_without_an_owner_in_the_log_it_is_a_mistake_that_is_told_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, unanswered=9)
    with pytest.raises(KafkaError, match="cannot reach Kafka") as caught:
        check_cluster(streaming(None))
    assert type(caught.value) is KafkaError
    assert looks.patience == [8.0]


def test_the_log_tells_whether_a_sink_was_used() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        config = {"bootstrap.servers": kafka.bootstrap_servers}
        settings = SinkSettings(sink_id="used", topic="orders", config=config)
        assert not was_used(settings, 60.0)
        prepare(settings)
        assert was_used(settings, 60.0)
        assert not was_used(SinkSettings(sink_id="another", topic="orders", config=config), 60.0)
        forget_clusters()
    gone = SinkSettings(sink_id="used", topic="orders", config={"bootstrap.servers": NOBODY_LISTENS})
    assert not was_used(gone, timeout=0.3)


def test_a_broker_that_pauses_is_waited_for_once_the_cluster_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would be 8 s and 20 s here is 0.1 s and the time of three attempts."""
    with FakeKafka(topics={"orders": 1}, brokers=1) as kafka:
        found = options(kafka.bootstrap_servers)
        check_cluster(found)
        monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.1)
        (key,) = cluster_check._seen
        cluster_check._seen[key] -= 1000
        kafka.add_fault(
            Fault(api=METADATA, error=5, times=3)
        )  # LEADER_NOT_AVAILABLE: more than 0.1 s of them
        check_cluster(found)
        assert cluster_check._seen[key] > time.monotonic() - 100
