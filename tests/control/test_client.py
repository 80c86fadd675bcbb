# SPDX-License-Identifier: Apache-2.0
"""The client, its jobs and what it knows of the cluster, on a network in memory and in virtual time."""

from __future__ import annotations

import errno

import pytest
from control.fakes import ID_AUTHORIZATION_FAILED, ScriptedCluster
from network.fakes import FakeBroker, FakeTransport

from penstock.control.client import ControlClient
from penstock.control.steps import (
    ANY,
    CONTROLLER,
    Ask,
    Backoff,
    CoordinatorOf,
    OnNode,
    Steps,
    Target,
    ask_until_answered,
)
from penstock.errors import (
    AuthenticationError,
    BootstrapError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    RequestTimedOutError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
from penstock.network.transport import Address, Endpoint, RefusedError
from penstock.protocol.messages import (
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    METADATA,
)
from penstock.protocol.requests import CoordinatorKind, FindCoordinator, SchemaRequest
from penstock.protocol.schema import Buffer
from penstock.types import Node

INIT = SchemaRequest.of(INIT_PRODUCER_ID, {"transaction_timeout_ms": 1})


def end_txn(key: str = "x") -> SchemaRequest:
    body = {"transactional_id": key, "producer_id": 1, "producer_epoch": 0, "committed": True}
    return SchemaRequest.of(END_TXN, body)


# ---- whom to ask


def test_request_to_any_broker() -> None:
    cluster = ScriptedCluster()
    cluster.brokers[0].rules[INIT_PRODUCER_ID.key] = lambda _: {
        "error_code": 0,
        "producer_id": 7,
        "producer_epoch": 0,
    }
    with cluster.client() as client:
        assert client.request("any", INIT)["producer_id"] == 7


def test_request_to_a_node_and_to_the_controller() -> None:
    cluster = ScriptedCluster(3)
    with cluster.client() as client:
        client.request(cluster.nodes[1], end_txn())
        client.request(CONTROLLER, end_txn())
    assert [len(cluster.seen(END_TXN.key, index)) for index in range(3)] == [0, 1, 1]


def test_coordinator_and_leader() -> None:
    cluster = ScriptedCluster(3)
    cluster.coordinator = lambda key: 1 if key == "x" else 2
    cluster.leaders["u"] = 2
    with cluster.client() as client:
        assert client.find_coordinator("x") == cluster.nodes[1]
        assert client.find_coordinator("g", CoordinatorKind.GROUP) == cluster.nodes[2]
        assert client.leader("u", 0) == cluster.nodes[2]
        assert client.brokers() == cluster.nodes
    assert {request.body["key_type"] for request in cluster.seen(FIND_COORDINATOR.key)} == {0, 1}


def test_a_coordinator_is_waited_for() -> None:
    cluster = ScriptedCluster()
    cluster.coordinator = lambda _: -1
    cluster.network.after(5.0, lambda: setattr(cluster, "coordinator", lambda _: 0))
    began = cluster.clock.now()
    with cluster.client() as client:
        assert client.find_coordinator("x") == cluster.nodes[0]
    assert 5.0 <= cluster.clock.now() - began < 7.0
    # The waits grow: 0.1, 0.2, 0.4, ... s, at most 1 s.
    assert len(cluster.seen(FIND_COORDINATOR.key)) < 12


def test_a_leader_is_waited_for() -> None:
    cluster = ScriptedCluster()
    cluster.leaders["u"] = -1
    cluster.network.after(3.0, lambda: cluster.leaders.update(u=0))
    with cluster.client() as client:
        assert client.leader("u", 0) == cluster.nodes[0]


def test_topics_are_never_created_by_asking() -> None:
    cluster = ScriptedCluster()
    with cluster.client() as client, pytest.raises(KafkaTimeoutError, match="'nowhere'"):
        client.leader("nowhere", 0, timeout=5)
    assert not any(request.body["allow_auto_topic_creation"] for request in cluster.seen(METADATA.key))


def test_a_partition_that_is_not_there() -> None:
    with ScriptedCluster().client() as client, pytest.raises(KafkaTimeoutError, match="has no partition 7"):
        client.leader("t", 7, timeout=5)


def test_an_id_that_may_not_be_used() -> None:
    cluster = ScriptedCluster()
    cluster.coordinator = lambda _: -ID_AUTHORIZATION_FAILED
    with cluster.client() as client, pytest.raises(TransactionalIdAuthorizationError):
        client.find_coordinator("x")


def test_many_coordinators_are_found_with_few_requests() -> None:
    cluster = ScriptedCluster(2)
    cluster.coordinator = lambda key: int(key) % 2
    keys = [str(number) for number in range(1200)]
    with cluster.client() as client:
        found = client.find_coordinators(keys)
    assert found == {key: cluster.nodes[int(key) % 2] for key in keys}
    assert len(cluster.seen(FIND_COORDINATOR.key)) == 3


def test_an_older_broker_is_asked_key_by_key() -> None:
    cluster = ScriptedCluster()
    cluster.limit_versions(FindCoordinator=(0, 3))
    with cluster.client() as client:
        assert set(client.find_coordinators(["a", "b"])) == {"a", "b"}
    assert sorted(request.body["key"] for request in cluster.seen(FIND_COORDINATOR.key)) == ["a", "b"]


def test_one_key_that_is_refused_does_not_harm_the_others() -> None:
    cluster = ScriptedCluster()
    cluster.coordinator = lambda key: -ID_AUTHORIZATION_FAILED if key == "bad" else 0
    cluster.end_codes = [0]
    with cluster.client() as client:
        jobs = [ask_until_answered(CoordinatorOf(key), end_txn(key)) for key in ("a", "bad", "b")]
        good, bad, other = client.run_all(jobs)
    assert good.result["error_code"] == other.result["error_code"] == 0
    with pytest.raises(TransactionalIdAuthorizationError):
        _ = bad.result


# ---- troubles


def test_a_coordinator_that_died_is_looked_up_anew() -> None:
    cluster = ScriptedCluster(2)
    cluster.coordinator = lambda _: 1
    with cluster.client() as client:
        client.run(ask_until_answered(CoordinatorOf("x"), end_txn()))
        cluster.stop(1)
        cluster.network.after(2.0, lambda: setattr(cluster, "coordinator", lambda _: 0))
        client.run(ask_until_answered(CoordinatorOf("x"), end_txn()))
    assert len(cluster.seen(END_TXN.key, 0)) == 1


def test_without_a_backoff_a_broker_that_is_refused_at_once_is_tried_until_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ScriptedCluster(2)
    (unreachable,) = cluster.network.names["b1"]
    connect = cluster.network.connect
    tried_at: list[float] = []

    def refuse(address: Address, endpoint: Endpoint) -> FakeTransport:
        if address.ip != unreachable:
            return connect(address, endpoint)
        tried_at.append(cluster.clock.now())
        raise OSError(errno.ENETUNREACH, "network is unreachable")

    monkeypatch.setattr(cluster.network, "connect", refuse)
    with cluster.client(**{"retry.backoff.ms": 0}) as client:
        began = cluster.clock.now()
        with pytest.raises(KafkaTimeoutError, match="unreachable"):
            client.run(ask_until_answered(OnNode(cluster.nodes[1]), end_txn()), 5)
    assert cluster.clock.now() - began == pytest.approx(5)
    assert len(tried_at) > 2


def test_a_refused_identity_is_told_at_once_by_each_call_until_it_is_put_right() -> None:
    cluster = ScriptedCluster()
    cluster.network.refusal = RefusedError("the certificate has expired", "Renew it.")
    with cluster.client() as client:
        for _ in range(3):
            began = cluster.clock.now()
            with pytest.raises(AuthenticationError, match=r"the certificate has expired\. Renew it\."):
                client.brokers()
            assert cluster.clock.now() - began <= 1.3
        cluster.network.refusal = None
        assert client.brokers() == cluster.nodes


def test_a_single_request_is_not_repeated() -> None:
    cluster = ScriptedCluster()
    cluster.brokers[0].rules[END_TXN.key] = lambda request: request.peer.reset()
    with cluster.client() as client, pytest.raises(NetworkError):
        client.request("any", end_txn())
    assert len(cluster.seen(END_TXN.key)) == 1


def test_a_node_that_cannot_be_reached() -> None:
    cluster = ScriptedCluster()
    cluster.network.names["b9"] = ["10.0.0.99"]
    with cluster.client() as client, pytest.raises(NetworkError, match="cannot connect to broker 9"):
        client.request(Node(9, "b9", 9092), end_txn())


def test_any_broker_means_another_one_when_the_first_is_gone() -> None:
    cluster = ScriptedCluster(3)
    with cluster.client() as client:
        client.brokers()
        for index in (0, 1):
            cluster.stop(index)
        assert client.request("any", end_txn())["error_code"] == 0
    assert len(cluster.seen(END_TXN.key, 2)) == 1


def test_the_request_time_out_is_that_of_the_configuration() -> None:
    cluster = ScriptedCluster()
    cluster.brokers[0].rules[END_TXN.key] = lambda _: None
    with cluster.client(request_timeout_ms=4000) as client:
        began = cluster.clock.now()
        with pytest.raises(RequestTimedOutError):
            client.request("any", end_txn())
    assert cluster.clock.now() - began == pytest.approx(4.0)


def test_no_broker_at_all_is_a_time_out_that_names_the_cause() -> None:
    cluster = ScriptedCluster()
    cluster.stop(0)
    began = cluster.clock.now()
    with cluster.client() as client, pytest.raises(KafkaTimeoutError, match=r"b0:9092.*refused"):
        client.request("any", end_txn(), timeout=10)
    assert cluster.clock.now() - began == pytest.approx(10.0)


def test_no_coordinator_is_a_time_out_that_names_the_cause() -> None:
    cluster = ScriptedCluster()
    cluster.coordinator = lambda _: -1
    with (
        cluster.client() as client,
        pytest.raises(KafkaTimeoutError, match="COORDINATOR_NOT_AVAILABLE") as caught,
    ):
        client.request(CoordinatorOf("x"), end_txn(), timeout=3)
    assert "EndTxn to the transaction coordinator of 'x'" in str(caught.value)


def test_an_answer_that_stays_away_is_a_time_out() -> None:
    cluster = ScriptedCluster()
    cluster.brokers[0].rules[END_TXN.key] = lambda _: None
    with (
        cluster.client() as client,
        pytest.raises(KafkaTimeoutError, match="waiting for the answer to EndTxn"),
    ):
        client.request("any", end_txn(), timeout=1)


def test_a_version_that_the_broker_lacks() -> None:
    cluster = ScriptedCluster()
    cluster.limit_versions(ListTransactions=(7, 9))
    request = SchemaRequest.of(LIST_TRANSACTIONS, {"state_filters": [], "producer_id_filters": []})
    with cluster.client() as client, pytest.raises(UnsupportedVersionError, match="ListTransactions"):
        client.request("any", request)


def test_a_cluster_without_a_common_version_ends_all_jobs() -> None:
    cluster = ScriptedCluster()
    cluster.limit_versions(Metadata=(90, 99))
    with cluster.client() as client, pytest.raises(UnsupportedVersionError, match="Metadata"):
        client.request("any", end_txn())


def test_brokers_that_know_nobody_yet_are_asked_again() -> None:
    cluster = ScriptedCluster()
    whole = cluster.brokers[0].rules[METADATA.key]
    cluster.brokers[0].rules[METADATA.key] = lambda _: {"brokers": [], "topics": []}
    cluster.network.after(1.0, lambda: cluster.brokers[0].rules.update({METADATA.key: whole}))
    with cluster.client() as client:
        assert client.brokers() == cluster.nodes


# ---- jobs


def test_jobs_share_the_time_and_end_in_order() -> None:
    cluster = ScriptedCluster()

    def rest_thrice(number: int) -> Steps[int]:
        for attempt in range(3):
            yield Backoff(attempt)
        return number

    began = cluster.clock.now()
    with cluster.client() as client:
        tickets = client.run_all([rest_thrice(number) for number in range(50)])
    assert [ticket.result for ticket in tickets] == list(range(50))
    assert (
        0.5 < cluster.clock.now() - began < 1.0
    )  # 0.1 + 0.2 + 0.4 s, more or less, for all of them together


def test_no_more_jobs_than_allowed_are_under_way() -> None:
    running = most = 0

    def count() -> Steps[None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        yield Backoff(0)
        running -= 1

    with ScriptedCluster().client() as client:
        assert len(client.run_all([count() for _ in range(20)], at_most=4)) == 20
    assert most == 4


def test_jobs_that_never_had_their_turn_run_out_of_time_too() -> None:
    def rest_long() -> Steps[None]:
        while True:
            yield Backoff(10)

    with ScriptedCluster().client() as client:
        tickets = client.run_all([rest_long() for _ in range(3)], timeout=5, at_most=1)
    for ticket, text in zip(
        tickets, ["not done after 5.0 s", "not even begun", "not even begun"], strict=True
    ):
        with pytest.raises(KafkaTimeoutError, match=text):
            _ = ticket.result


def test_a_job_that_returns_when_the_time_is_up_has_no_answer() -> None:
    def returns() -> Steps[dict[str, int]]:
        try:
            yield Backoff(50)
        except KafkaTimeoutError:
            return {}

    with ScriptedCluster().client() as client, pytest.raises(KafkaTimeoutError, match="not done after"):
        client.run(returns(), timeout=0.5)


def test_a_job_may_not_go_on_when_the_time_is_up() -> None:
    def stubborn() -> Steps[None]:
        while True:
            try:
                yield Backoff(10)
            except KafkaTimeoutError:
                continue

    with ScriptedCluster().client() as client, pytest.raises(KafkaTimeoutError):
        client.run(stubborn(), timeout=5)


def test_what_a_job_raises_is_its_own_outcome() -> None:
    def fail() -> Steps[None]:
        yield Backoff(0)
        raise LookupError("mine")

    def succeed() -> Steps[int]:
        yield Backoff(0)
        return 1

    with ScriptedCluster().client() as client:
        failed, succeeded = client.run_all([fail(), succeed()])
    with pytest.raises(LookupError, match="mine"):
        _ = failed.result
    assert succeeded.result == 1


def test_a_request_that_cannot_be_said_to_that_broker_fails_its_job() -> None:
    cluster = ScriptedCluster()
    cluster.limit_versions(ListTransactions=(0, 1))
    body = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "x"}
    request = SchemaRequest.of(LIST_TRANSACTIONS, body)
    with cluster.client() as client, pytest.raises(ValueError, match="transactional_id_pattern"):
        client.request("any", request)


class Unencodable(SchemaRequest):
    """A request that cannot be written."""

    def encode(self, version: int) -> list[Buffer]:
        raise RecursionError("too deep")


@pytest.mark.parametrize("target", [ANY, CoordinatorOf("x")], ids=["any", "coordinator"])
def test_a_request_that_cannot_be_sent_fails_its_job_and_no_other(target: Target) -> None:
    cluster = ScriptedCluster()
    unencodable = Unencodable.of(END_TXN, end_txn().body)
    jobs = [
        ask_until_answered(CoordinatorOf("y"), end_txn("y")),
        ask_until_answered(target, unencodable),
        ask_until_answered(ANY, end_txn("z")),
    ]
    with cluster.client() as client:
        first, failed, last = client.run_all(jobs, 5)
        with pytest.raises(KafkaError, match=r"EndTxn could not be sent .*too deep") as caught:
            _ = failed.result
        assert isinstance(caught.value.__cause__, RecursionError)
        assert [ticket.result["error_code"] for ticket in (first, last)] == [0, 0]


def test_a_look_up_that_cannot_be_sent_fails_those_who_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    cluster = ScriptedCluster()
    with cluster.client(**{"retry.backoff.ms": 0}) as client:
        client.brokers()
        with monkeypatch.context() as broken:
            broken.setattr(FindCoordinator, "encode", fail)
            waiting, other = client.run_all(
                [ask_until_answered(CoordinatorOf("x"), end_txn()), ask_until_answered(ANY, end_txn("z"))], 5
            )
        with pytest.raises(KafkaError, match=r"FindCoordinator could not be sent .*no room"):
            _ = waiting.result
        assert other.result["error_code"] == 0
        assert client.run(ask_until_answered(CoordinatorOf("x"), end_txn()), 5)["error_code"] == 0


def test_an_interrupt_ends_the_wait_and_the_client_stays_usable() -> None:
    cluster = ScriptedCluster()
    kept = cluster.brokers[0].rules[END_TXN.key]
    cluster.brokers[0].rules[END_TXN.key] = lambda _: None

    def interrupt() -> None:
        raise KeyboardInterrupt

    with cluster.client() as client:
        cluster.network.after(2.0, interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.request("any", end_txn())
        cluster.brokers[0].rules[END_TXN.key] = kept
        for request in list(cluster.brokers[0].seen):
            if request.api is END_TXN:
                cluster.brokers[0].answer(request, {"error_code": 16})  # too late: its request has ended
        assert client.request("any", end_txn())["error_code"] == 0


def test_a_node_once_known_is_asked_without_looking_anybody_up() -> None:
    cluster = ScriptedCluster()
    with cluster.client() as client:
        for _ in range(5):
            client.request(CoordinatorOf("x"), end_txn())
    assert len(cluster.seen(FIND_COORDINATOR.key)) == 1
    assert len(cluster.seen(METADATA.key)) == 1


# ---- life


def test_a_closed_client_refuses() -> None:
    cluster = ScriptedCluster()
    client = cluster.client()
    client.close()
    client.close()
    assert repr(client) == "<ControlClient: closed>"
    with pytest.raises(IllegalStateError, match="closed"):
        client.brokers()
    assert cluster.network.closed


def test_a_name_that_cannot_be_resolved() -> None:
    cluster = ScriptedCluster()
    with pytest.raises(BootstrapError):
        cluster.client(**{"bootstrap.servers": "nowhere:9092"})
    assert cluster.network.closed
    with pytest.raises(ConfigError):
        ControlClient({})


def test_steps_tell_what_they_are() -> None:
    asks = [Ask(target, end_txn()) for target in (ANY, OnNode(Node(1, "h", 2)), CoordinatorOf("x"))]
    assert [str(ask) for ask in asks] == [
        "EndTxn to any broker",
        "EndTxn to broker h:2 (id 1)",
        "EndTxn to the transaction coordinator of 'x'",
    ]


def test_many_short_lived_brokers_cost_what_a_few_do() -> None:
    cluster = ScriptedCluster()

    def ask(node: Node) -> Steps[KafkaError | None]:
        reply = yield Ask(OnNode(node), end_txn())
        return reply.error

    with cluster.client(**{"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 50}) as client:
        pool = client._network._pool
        for number in range(1, 200):
            node = Node(number, f"c{number}", 9092)
            if number % 2:
                broker = FakeBroker(cluster.network, node)
                broker.rules[END_TXN.key] = cluster.brokers[0].rules[END_TXN.key]
            else:
                cluster.network.names[node.host] = ["10.1.0.1"]
            assert (client.run(ask(node)) is None) == (number % 2 == 1)
            for connected in [number] * (number % 2):
                pool.close_connection(connected, cluster.clock.now(), "a test wants it")
            cluster.clock.advance(30)
            assert node.id in pool.states
            assert len(pool.states.nodes()) < 40
            assert len(client._network.metrics.nodes) < 40
            assert len(client._metadata._connection_failures) < 40
        first = Node(1, "c1", 9092)
        assert first.id not in pool.states
        assert client.run(ask(first)) is None  # it begins anew
        assert 0 in pool.states
