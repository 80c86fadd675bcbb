# SPDX-License-Identifier: Apache-2.0
"""The producer's view of the cluster, driven by hand: what it asks, when, and what becomes of those who wait."""

from __future__ import annotations

import itertools
import math
import random
import threading
from typing import Any

import pytest
from producer.fakes_metadata import hand_over

from penstock._ticket import Ticket
from penstock.errors import (
    AuthenticationError,
    BootstrapError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NetworkError,
    NotKafkaError,
    ProducerClosedError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.producer.metadata.metadata import MetadataSettings, ProducerMetadata
from penstock.types import Node

BOOTSTRAP = (Node(-1, "boot-a", 9092), Node(-2, "boot-b", 9093))
BROKERS = (Node(1, "broker-1", 9092), Node(2, "broker-2", 9092))
TOPIC_ID = bytes(range(16))
SETTINGS = MetadataSettings(
    max_age_ms=300_000, max_idle_ms=60_000, retry_backoff_ms=100, retry_backoff_max_ms=1_000
)
START = 1_000.0


class Driver:
    """Stands for the network client and the cluster, and counts how often the I/O thread is woken."""

    def __init__(self, settings: MetadataSettings = SETTINGS) -> None:
        self.wakeups = 0
        self.now = START
        self.metadata = ProducerMetadata(settings, BOOTSTRAP, random.Random(7), self._woken)

    def _woken(self) -> None:
        self.wakeups += 1

    def is_due(self) -> bool:
        return self.metadata.seconds_to_update(self.now) == 0.0

    def run_until_due(self) -> float:
        """Let virtual time pass until an update is due; how long that took."""
        wait = self.metadata.seconds_to_update(self.now)
        assert wait < math.inf
        self.now += wait
        return wait

    def answer(self, *topics: dict[str, Any], version: int = 13, **body: Any) -> list[str]:
        """Have the next update answered; the topics it asked for."""
        self.run_until_due()
        request = self.metadata.build_request(self.now)
        asked = [topic["name"] for topic in request.body["topics"]]  # type: ignore[attr-defined]
        hand_over(self.metadata, request, response(*topics, **body), self.now, version)
        return asked

    def fail(self, error: KafkaError) -> float:
        """Have the next update fail; how long it took until it was due."""
        wait = self.run_until_due()
        self.metadata.build_request(self.now)
        self.metadata.on_failure(error, self.now)
        return wait

    def wait_for(self, topic: str, partition: int | None = None) -> Ticket[ClusterSnapshot]:
        return self.metadata.await_topic(topic, partition, self.now)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def started(driver: Driver) -> Driver:
    """After the first answer, with topic "orders" known."""
    driver.metadata.want_topic("orders", driver.now)
    driver.answer(topic("orders"))
    return driver


def topic(
    name: str,
    partitions: int = 2,
    *,
    error: int = 0,
    leader: int = 1,
    epoch: int = 5,
    topic_id: bytes = TOPIC_ID,
) -> dict[str, Any]:
    rows = [
        {
            "error_code": 0 if leader >= 0 else 5,
            "partition_index": index,
            "leader_id": leader,
            "leader_epoch": epoch,
            "replica_nodes": [1, 2],
            "isr_nodes": [1],
            "offline_replicas": [2],
        }
        for index in range(partitions)
    ]
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": [] if error else rows}


def response(
    *topics: dict[str, Any], brokers: tuple[Node, ...] = BROKERS, error_code: int = 0
) -> dict[str, Any]:
    return {
        "brokers": [{"node_id": n.id, "host": n.host, "port": n.port, "rack": n.rack} for n in brokers],
        "cluster_id": "cluster-x",
        "controller_id": 2,
        "topics": list(topics),
        "error_code": error_code,
    }


# ------------------------------------------------------------------------------------------ asking and knowing


def test_starts_with_the_bootstrap_nodes_and_an_update_due(driver: Driver) -> None:
    assert list(driver.metadata.nodes()) == list(BOOTSTRAP)
    assert driver.is_due()
    assert driver.metadata.snapshot.partition_count("orders") is None


@pytest.mark.parametrize("version", [1, 5, 8, 9, 10, 12, 13])
def test_reads_what_the_codec_decodes_in_every_version(driver: Driver, version: int) -> None:
    ticket = driver.wait_for("orders")
    request = driver.metadata.build_request(driver.now)
    assert request.encode(version)
    hand_over(driver.metadata, request, response(topic("orders", 3)), driver.now, version)
    snapshot = ticket.result
    assert snapshot is driver.metadata.snapshot
    assert snapshot.partition_count("orders") == 3
    assert snapshot.leader("orders", 2) == BROKERS[0]
    assert snapshot.topic_id("orders") == (TOPIC_ID if version >= 10 else bytes(16))
    partition = snapshot.partition("orders", 0)
    assert partition is not None
    assert partition.leader_epoch == (5 if version >= 9 else -1)
    assert (partition.replicas, partition.isr) == ((1, 2), (1,))


def test_no_update_for_a_known_topic_and_one_for_an_unknown(started: Driver) -> None:
    """Requirement 7."""
    wakeups = started.wakeups
    assert started.wait_for("orders", 1).result.partition_count("orders") == 2
    assert not started.is_due()
    assert started.wakeups == wakeups

    ticket = started.wait_for("payments")
    assert not ticket.done
    assert started.wakeups == wakeups + 1
    assert started.is_due()  # at once: a new topic does not wait for the backoff
    assert started.answer(topic("payments")) == ["payments"]
    assert ticket.result.partition_count("payments") == 2
    assert ticket.result.partition_count("orders") == 2
    assert started.run_until_due() == pytest.approx(300)


def test_a_second_sender_of_a_topic_asked_for_causes_no_second_request(started: Driver) -> None:
    started.wait_for("payments")
    request = started.metadata.build_request(started.now)
    second = started.wait_for("payments")
    assert started.metadata.seconds_to_update(started.now) == math.inf
    hand_over(started.metadata, request, response(topic("payments")), started.now)
    assert second.result.partition_count("payments") == 2
    assert started.metadata.seconds_to_update(started.now) > 100


def test_a_topic_wanted_while_a_question_is_under_way_is_asked_for_right_after(started: Driver) -> None:
    started.wait_for("payments")
    request = started.metadata.build_request(started.now)
    later = started.wait_for("refunds")
    hand_over(started.metadata, request, response(topic("payments")), started.now)
    assert started.is_due()
    assert started.answer(topic("refunds")) == ["refunds"]
    assert later.result.partition_count("payments") == 2


def test_an_update_asked_for_while_a_question_is_under_way_is_not_lost(started: Driver) -> None:
    started.metadata.request_update(started.now)
    started.run_until_due()
    request = started.metadata.build_request(started.now)
    started.metadata.request_update(started.now)
    hand_over(started.metadata, request, response(topic("orders")), started.now)
    assert started.run_until_due() < 1
    started.answer(topic("orders"))
    assert started.metadata.seconds_to_update(started.now) > 100


def test_listeners_see_each_snapshot_before_those_who_waited(driver: Driver) -> None:
    order: list[str] = []
    driver.metadata.on_snapshot(
        lambda snapshot: order.append(f"listener {snapshot.partition_count('orders')}")
    )
    driver.wait_for("orders").on_done(lambda _: order.append("waiter"))
    driver.answer(topic("orders"))
    assert order == ["listener 2", "waiter"]
    assert driver.metadata.version == 1


def test_tickets_end_outside_the_lock(driver: Driver) -> None:
    """A callback that uses the metadata from another thread must not find it locked."""
    reached = []

    def use_metadata(_: Ticket[ClusterSnapshot]) -> None:
        worker = threading.Thread(target=lambda: reached.append(driver.metadata.age(driver.now)))
        worker.start()
        worker.join(timeout=60)

    driver.wait_for("orders").on_done(use_metadata)
    driver.answer(topic("orders"))
    assert reached == [0.0]


# ------------------------------------------------------------------------------------------------ time-outs


def test_missing_topic_is_retried_and_then_explained(driver: Driver) -> None:
    """Requirement 8."""
    ticket = driver.wait_for("ordres")
    waits = []
    for _ in range(6):
        waits.append(driver.run_until_due())
        driver.answer(topic("ordres", error=3))
    assert not ticket.done
    assert waits[0] == 0.0
    assert all(later > earlier for earlier, later in itertools.pairwise(waits[:5]))
    assert max(waits) <= 1.0

    assert ticket.give_up()
    error = driver.metadata.explain_timeout("ordres", None, 60_000)
    assert isinstance(error, KafkaTimeoutError)
    assert str(error).startswith("Topic ordres not present in metadata after 60000 ms. ")
    assert (
        "Topic 'ordres' does not exist on the cluster at boot-a:9092, boot-b:9093 (6 metadata answers)"
        in str(error)
    )
    assert "not created automatically" in str(error)
    assert isinstance(error.__cause__, UnknownTopicOrPartitionError)


def test_partition_out_of_range_waits_for_growth_then_is_explained(started: Driver) -> None:
    """Requirement 9."""
    ticket = started.wait_for("orders", 2)
    assert started.answer(topic("orders", 2)) == ["orders"]
    assert not ticket.done
    assert started.run_until_due() <= 1.0  # the waiter keeps the updates coming
    error = started.metadata.explain_timeout("orders", 2, 500)
    headline = "Partition 2 of topic orders with partition count 2 is not present in metadata after 500 ms."
    assert str(error) == f"{headline} Its partitions are numbered from 0 to 1."
    assert isinstance(error.__cause__, UnknownTopicOrPartitionError)

    started.answer(topic("orders", 3))
    assert ticket.result.partition_count("orders") == 3
    assert started.metadata.seconds_to_update(started.now) > 100


@pytest.mark.parametrize(
    "cause",
    [
        NetworkError("cannot connect to boot-a:9092: connection refused"),
        BootstrapError("the host name boot-a cannot be resolved"),
        NotKafkaError("boot-a:9092 does not speak Kafka"),
    ],
)
def test_timeout_names_why_no_broker_could_be_reached(driver: Driver, cause: KafkaError) -> None:
    driver.wait_for("orders")
    driver.metadata.on_connection_failed(BOOTSTRAP[0], cause, driver.now)
    error = driver.metadata.explain_timeout("orders", None, 100)
    assert (
        str(error) == f"Topic orders not present in metadata after 100 ms. No metadata answer came: {cause}."
    )
    assert error.__cause__ is cause


def test_timeout_without_any_sign_of_life_names_the_addresses(driver: Driver) -> None:
    error = driver.metadata.explain_timeout("orders", 0, 100)
    assert "No broker at boot-a:9092, boot-b:9093 has answered yet." in str(error)
    driver.fail(NetworkError("the connection to boot-b:9093 broke"))
    error = driver.metadata.explain_timeout("orders", 0, 100)
    assert "No metadata answer came: the connection to boot-b:9093 broke" in str(error)


def test_an_answer_clears_what_went_wrong_before_it(started: Driver) -> None:
    started.metadata.on_connection_failed(BROKERS[1], NetworkError("old news"), started.now)
    started.wait_for("ordres")
    started.answer(topic("ordres", error=5))
    error = started.metadata.explain_timeout("ordres", None, 100)
    assert "old news" not in str(error)
    assert "The last of 1 metadata answer from the cluster" in str(error)
    assert isinstance(error.__cause__, LeaderNotAvailableError)


def test_a_sender_that_gives_up_leaves_nothing_behind(started: Driver) -> None:
    for _ in range(50):
        started.wait_for("orders", 9).give_up()
    started.answer(topic("orders"))
    assert started.metadata.seconds_to_update(started.now) > 100  # nobody asks any more


# -------------------------------------------------------------------------------------- refusals, errors, close


def test_invalid_topic_fails_at_once_and_again_later(started: Driver) -> None:
    """Requirement 19."""
    first = started.wait_for("bad topic")
    started.answer(topic("bad topic", error=17))
    with pytest.raises(
        InvalidTopicError, match=r"'bad topic': a topic's name has 1 to 249 letters \(a-z, A-Z\), digits"
    ):
        _ = first.result
    again = started.wait_for("bad topic")
    assert again.done  # without asking
    with pytest.raises(InvalidTopicError):
        _ = again.result
    assert started.metadata.seconds_to_update(started.now) > 100
    assert started.wait_for("orders").result.invalid_topics == {"bad topic"}


def test_unauthorized_topic_fails_its_waiters_only_and_is_asked_for_again(started: Driver) -> None:
    refused = [started.wait_for("secret"), started.wait_for("secret", 3)]
    other = started.wait_for("payments")
    started.answer(topic("secret", error=29), topic("payments"))
    assert other.result.unauthorized_topics == {"secret"}
    errors = []
    for ticket in refused:
        with pytest.raises(TopicAuthorizationError, match="'secret'") as caught:
            _ = ticket.result
        errors.append(caught.value)
    assert errors[0] is not errors[1]

    later = started.wait_for("secret")  # the permission may have been given meanwhile
    assert started.answer(topic("secret"), topic("orders"), topic("payments")) == [
        "orders",
        "payments",
        "secret",
    ]
    assert later.result.partition_count("secret") == 2


def test_fatal_error_wakes_all_waiters(started: Driver) -> None:
    """Requirement 89: a fatal error ends the wait."""
    tickets = [started.wait_for("a"), started.wait_for("b", 1)]
    started.metadata.on_fatal(AuthenticationError("wrong password"))
    for ticket in tickets:
        with pytest.raises(AuthenticationError, match="wrong password"):
            _ = ticket.result
    assert not started.wait_for("a").done  # told once; the next sender tries again


def test_fatal_error_that_nobody_waited_for_meets_the_next_who_would_wait(started: Driver) -> None:
    """Requirement 89."""
    started.metadata.on_fatal(AuthenticationError("wrong password"))
    assert started.wait_for("orders").result  # known: no need to wait
    with pytest.raises(AuthenticationError):
        _ = started.wait_for("payments").result
    assert not started.wait_for("payments").done


def test_an_answer_outdates_a_fatal_error(started: Driver) -> None:
    started.metadata.on_fatal(AuthenticationError("wrong password"))
    started.metadata.request_update(started.now)
    started.answer(topic("orders"))
    assert not started.wait_for("payments").done


def test_a_broker_that_cannot_be_reached_is_a_reason_to_ask_who_leads_now(started: Driver) -> None:
    started.now += 1
    assert started.metadata.seconds_to_update(started.now) > 0
    started.metadata.on_connection_failed(BROKERS[1], NetworkError("broken"), started.now)
    assert started.metadata.seconds_to_update(started.now) == 0


def test_unresolvable_bootstrap_fails_every_wait(driver: Driver) -> None:
    driver.metadata.on_fatal(BootstrapError("no address"))
    for _ in range(2):
        with pytest.raises(BootstrapError):
            _ = driver.wait_for("orders").result


def test_close_ends_waits_now_and_later(started: Driver) -> None:
    """Requirements 11 and 89: close ends the wait."""
    ticket = started.wait_for("payments")
    started.metadata.close()
    with pytest.raises(ProducerClosedError):
        _ = ticket.result
    with pytest.raises(ProducerClosedError):
        _ = started.wait_for("orders").result


def test_close_unblocks_a_waiting_thread(started: Driver) -> None:
    """Requirement 11."""
    ticket = started.wait_for("payments")
    outcome: list[BaseException] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        assert ticket.wait(timeout=60)
        try:
            _ = ticket.result
        except ProducerClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(60)
    started.metadata.close()
    thread.join(60)
    assert [type(error) for error in outcome] == [ProducerClosedError]


def test_waiting_ends_by_giving_up_when_the_time_is_up(started: Driver) -> None:
    """Requirement 89: time-out."""
    ticket = started.wait_for("payments")
    assert ticket.give_up()
    started.answer(topic("payments"))
    assert ticket.done
    with pytest.raises(RuntimeError):
        _ = ticket.result


# -------------------------------------------------------------------------------------------------- expiry


def test_idle_topic_is_forgotten_at_an_update_and_added_again_on_use(started: Driver) -> None:
    """Requirement 10."""
    started.wait_for("payments")
    started.answer(topic("payments"))
    started.now += 59
    started.metadata.touch("orders", started.now)
    started.now += 2
    assert started.metadata.snapshot.partition_count("payments") == 2  # nothing happens without an update
    started.metadata.request_update(started.now)
    assert started.answer(topic("orders")) == ["orders"]
    assert started.metadata.snapshot.partition_count("payments") is None

    ticket = started.wait_for("payments")
    assert started.is_due()
    assert started.answer(topic("payments")) == ["payments"]
    assert ticket.result.partition_count("orders") == 2


def test_topics_used_on_the_fast_path_do_not_expire(started: Driver) -> None:
    """Requirement 10."""
    used = ["orders"]
    started.metadata.used_topics = lambda: used
    for _ in range(3):
        started.now += 61
        started.metadata.request_update(started.now)
        assert started.answer(topic("orders")) == ["orders"]
    used.clear()
    started.now += 61
    started.metadata.request_update(started.now)
    assert started.answer() == []


def test_topics_that_are_new_or_waited_for_do_not_expire(started: Driver) -> None:
    """Requirements 10 and 88 (retain rules)."""
    started.wait_for("orders", 7)
    started.metadata.want_topic("payments", started.now)
    started.now += 1_000
    assert started.answer(topic("orders"), topic("payments")) == ["orders", "payments"]
    started.now += 1_000
    assert started.answer(topic("orders")) == [
        "orders"
    ]  # payments was answered once, and nobody used it since


def test_an_answer_about_a_topic_that_nobody_wants_is_left_out(started: Driver) -> None:
    """Requirement 88 (retain rules)."""
    started.metadata.request_update(started.now)
    started.answer(topic("orders"), topic("stranger"))
    assert set(started.metadata.snapshot.topics) == {"orders"}


# ------------------------------------------------------------------------------------------- partial and full


def test_partial_update_keeps_the_other_topics(started: Driver) -> None:
    """Requirement 88 (partial merge)."""
    started.wait_for("bad topic")
    started.answer(topic("bad topic", error=17))
    started.wait_for("payments")
    assert started.answer(topic("payments", 4), brokers=BROKERS[:1]) == ["payments"]
    snapshot = started.metadata.snapshot
    assert snapshot.partition_count("orders") == 2
    assert snapshot.partition_count("payments") == 4
    assert snapshot.invalid_topics == {"bad topic"}
    assert list(started.metadata.nodes()) == [BROKERS[0]]


def test_a_partial_update_does_not_put_off_the_full_one(started: Driver) -> None:
    started.now += 200
    started.metadata.touch("orders", started.now)
    started.wait_for("payments")
    assert started.answer(topic("payments")) == ["payments"]
    assert started.run_until_due() == pytest.approx(100)
    started.metadata.touch("orders", started.now)
    started.metadata.touch("payments", started.now)
    assert started.answer(topic("orders"), topic("payments")) == ["orders", "payments"]


def test_full_update_when_one_was_requested_besides_a_new_topic(started: Driver) -> None:
    started.metadata.request_update(started.now)
    started.wait_for("payments")
    assert started.answer(topic("orders"), topic("payments")) == ["orders", "payments"]


# --------------------------------------------------------------------------------------------- backoff, failures


def test_failures_back_off_exponentially_until_an_answer(driver: Driver) -> None:
    """Requirement 88."""
    waits = [driver.fail(NetworkError("gone")) for _ in range(7)]
    assert waits[0] == 0.0
    for attempt, wait in enumerate(waits[1:]):
        assert min(0.08 * 2**attempt, 0.8) <= wait <= min(0.12 * 2**attempt, 1.0)
    driver.answer()
    driver.metadata.request_update(driver.now)
    assert driver.run_until_due() <= 0.12


def test_equivalent_answers_back_off_and_new_topics_reset_that(started: Driver) -> None:
    """Requirement 88 (equivalent-response backoff)."""
    waits = []
    for _ in range(5):
        started.metadata.request_update(started.now)
        waits.append(started.run_until_due())
        started.answer(topic("orders"))
    assert waits[-1] > 0.5 > 0.2 > waits[0]
    started.metadata.want_topic("payments", started.now)
    assert started.is_due()


def test_reset_backoff_forgets_equivalent_answers(started: Driver) -> None:
    for _ in range(5):
        started.metadata.request_update(started.now)
        started.answer(topic("orders"))
    started.metadata.request_update(started.now, reset_backoff=True)
    assert started.run_until_due() <= 0.12


def test_a_refresh_waits_for_nothing(started: Driver) -> None:
    for _ in range(5):
        started.metadata.request_update(started.now)
        started.answer(topic("orders"))
    assert not started.is_due()
    started.metadata.refresh()
    assert started.is_due()
    assert started.answer(topic("orders")) == ["orders"]
    assert started.metadata.age(started.now) == 0


def test_a_newer_epoch_is_progress(started: Driver) -> None:
    """Requirement 88."""
    for epoch in range(6, 12):
        started.metadata.request_update(started.now)
        assert started.run_until_due() <= 0.12
        started.answer(topic("orders", epoch=epoch))


def test_empty_broker_list_is_a_failed_update(started: Driver) -> None:
    """Requirement 88."""
    before = started.metadata.snapshot
    started.metadata.request_update(started.now)
    started.answer(brokers=())
    assert started.metadata.snapshot is before
    assert 0 < started.run_until_due() <= 0.12  # asked again
    assert "empty list of brokers" in str(started.metadata.explain_timeout("x", None, 1))


@pytest.mark.parametrize("answer", [topic("orders", error=3), topic("orders", leader=-1)])
def test_answer_that_says_it_is_stale_asks_for_another(started: Driver, answer: dict[str, Any]) -> None:
    """Requirement 88: topic and partition errors of that kind."""
    started.metadata.request_update(started.now)
    started.answer(answer)
    assert started.run_until_due() <= 1.0


def test_other_topic_errors_do_not_ask_for_another(started: Driver) -> None:
    started.metadata.want_topic("secret", started.now)
    started.answer(topic("secret", error=29))
    assert started.metadata.seconds_to_update(started.now) > 100


def test_answer_to_an_older_question_is_ignored(started: Driver) -> None:
    started.metadata.request_update(started.now)
    started.run_until_due()
    old = started.metadata.build_request(started.now)
    started.metadata.rebootstrap(started.now)
    version = started.metadata.version
    hand_over(started.metadata, old, response(topic("orders")), started.now)
    assert started.metadata.version == version
    assert list(started.metadata.nodes()) == list(BOOTSTRAP)


# ------------------------------------------------------------------------------------------------ rebootstrap


def test_rebootstrap_is_due_after_a_long_time_without_an_answer(started: Driver) -> None:
    """Requirement 86: by time."""
    started.now += 200
    assert not started.metadata.rebootstrap_due(started.now)  # no update is due: nothing is missing
    started.run_until_due()
    assert not started.metadata.rebootstrap_due(started.now)
    started.now += 299
    started.fail(NetworkError("gone"))
    assert not started.metadata.rebootstrap_due(started.now)
    started.now += 2
    assert started.metadata.rebootstrap_due(started.now)
    ticket = started.wait_for("orders", 5)
    started.metadata.rebootstrap(started.now)
    assert not started.metadata.rebootstrap_due(started.now)
    assert list(started.metadata.nodes()) == list(BOOTSTRAP)
    assert started.metadata.snapshot.partition_count("orders") is None

    assert started.answer(topic("orders", 6)) == ["orders"]  # what is used, and who waits for it, is kept
    assert ticket.result.partition_count("orders") == 6
    started.now += 250
    assert not started.metadata.rebootstrap_due(started.now)


def test_the_client_need_not_ask_while_nothing_is_due(started: Driver) -> None:
    assert started.metadata.seconds_to_update(started.now) > 100
    assert started.metadata.quiet.until > started.now + 100
    started.metadata.request_update(started.now)
    assert started.metadata.quiet.until <= started.now


def test_the_client_asks_until_an_update_has_its_answer(started: Driver) -> None:
    """Also in the pause after a failure: meanwhile it may be time to start from the bootstrap servers."""
    started.run_until_due()
    started.fail(NetworkError("gone"))
    assert started.metadata.seconds_to_update(started.now) > 0
    assert started.metadata.quiet.until <= started.now
    started.run_until_due()
    started.answer(topic("orders"))
    assert started.metadata.seconds_to_update(started.now) > 0
    assert started.metadata.quiet.until > started.now


def test_rebootstrap_when_a_broker_demands_it(started: Driver) -> None:
    """Requirement 86: by error, in a metadata answer."""
    started.metadata.request_update(started.now)
    started.answer(version=13, error_code=129)
    assert started.metadata.snapshot.partition_count("orders") == 2
    assert started.metadata.rebootstrap_due(started.now)
    started.metadata.rebootstrap(started.now)
    assert not started.metadata.rebootstrap_due(started.now)
    assert started.run_until_due() <= 0.12


def test_rebootstrap_when_a_connection_ends_with_that_error(started: Driver) -> None:
    """Requirement 86: by error, while connecting."""
    started.metadata.on_connection_failed(BROKERS[0], broker_error(129), started.now)
    assert started.metadata.rebootstrap_due(started.now)


def test_rebootstrap_with_a_question_under_way_asks_again(started: Driver) -> None:
    """Requirement 86: with requests in flight."""
    started.metadata.request_update(started.now)
    started.run_until_due()
    started.metadata.build_request(started.now)
    started.metadata.rebootstrap(started.now)
    started.metadata.on_failure(NetworkError("closed"), started.now)
    assert started.answer(topic("orders", epoch=0)) == ["orders"]
    info = started.metadata.snapshot.partition("orders", 0)
    assert info is not None
    assert info.leader_epoch == 0  # the cluster may be another one: epochs start over


def test_no_rebootstrap_without_that_strategy() -> None:
    """Requirement 86."""
    driver = Driver(MetadataSettings(recovery_strategy="none", rebootstrap_trigger_ms=0))
    driver.metadata.want_topic("orders", driver.now)
    driver.answer(topic("orders"))
    driver.metadata.on_connection_failed(BROKERS[0], broker_error(129), driver.now)
    driver.now += 1e6
    assert not driver.metadata.rebootstrap_due(driver.now)
    driver.metadata.rebootstrap(driver.now)
    assert driver.metadata.snapshot.partition_count("orders") == 2


# ------------------------------------------------------------------------------------------------ leader hints


def test_leader_hint_is_used_at_once(started: Driver) -> None:
    """Requirement 48."""
    seen: list[ClusterSnapshot] = []
    started.metadata.on_snapshot(seen.append)
    new_broker = Node(3, "broker-3", 9092)
    changed = started.metadata.update_leader_hints([("orders", 0, 2, 6), ("orders", 1, 3, 6)], [new_broker])
    assert changed == {("orders", 0), ("orders", 1)}
    snapshot = started.metadata.snapshot
    assert seen == [snapshot]
    assert snapshot.leader("orders", 0) == BROKERS[1]
    assert snapshot.leader("orders", 1) == new_broker
    assert snapshot.topic_id("orders") == TOPIC_ID
    # An answer from a broker that is behind does not undo it.
    started.metadata.request_update(started.now)
    started.answer(topic("orders", leader=1, epoch=5))
    assert started.metadata.snapshot.leader("orders", 0) == BROKERS[1]


@pytest.mark.parametrize(
    "hint",
    [
        pytest.param(("orders", 0, 9, 6), id="leader not among the nodes"),
        pytest.param(("orders", 0, -1, 6), id="no leader"),
        pytest.param(("orders", 0, 2, -1), id="no epoch"),
        pytest.param(("orders", 0, 2, 5), id="same epoch"),
        pytest.param(("orders", 0, 2, 4), id="older epoch"),
        pytest.param(("orders", 7, 2, 6), id="unknown partition"),
        pytest.param(("payments", 0, 2, 6), id="unknown topic"),
    ],
)
def test_incomplete_leader_hint_is_ignored(started: Driver, hint: tuple[str, int, int, int]) -> None:
    """Requirement 48."""
    before = started.metadata.snapshot
    assert started.metadata.update_leader_hints([hint], []) == set()
    assert started.metadata.snapshot is before
