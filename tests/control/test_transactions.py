# SPDX-License-Identifier: Apache-2.0
"""Listing and describing transactions, and creating topics, against a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest
from control.fakes import COORDINATOR_LOADING, ID_AUTHORIZATION_FAILED, NOT_COORDINATOR, ScriptedCluster
from network.fakes import Received

from penstock.control.transactions import TransactionDescription, describe_transactions, list_transactions
from penstock.errors import KafkaTimeoutError, TransactionalIdAuthorizationError
from penstock.protocol.messages import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS
from penstock.types import TopicPartition

NOT_FOUND = 105


@pytest.fixture
def cluster() -> ScriptedCluster:
    """Three brokers; each coordinates the ids that end with its number."""
    cluster = ScriptedCluster(3)
    cluster.coordinator = lambda key: int(key[-1])
    for index, broker in enumerate(cluster.brokers):
        ids = [f"a-{index}", f"b-{index}"]
        broker.rules[LIST_TRANSACTIONS.key] = lambda request, ids=ids: listed(request, ids)
        broker.rules[DESCRIBE_TRANSACTIONS.key] = lambda request, index=index: described(request, index)
    return cluster


def listed(request: Received, ids: list[str]) -> dict[str, Any]:
    pattern = request.body.get("transactional_id_pattern")
    shown = [name for name in ids if pattern is None or name.startswith(pattern[0])]
    rows = [{"transactional_id": name, "producer_id": 1, "transaction_state": "Ongoing"} for name in shown]
    return {"error_code": 0, "unknown_state_filters": [], "transaction_states": rows}


def described(request: Received, index: int) -> dict[str, Any]:
    rows = []
    for name in request.body["transactional_ids"]:
        row: dict[str, Any] = {"transactional_id": name, "error_code": 0}
        if not name.endswith(str(index)):
            row["error_code"] = NOT_COORDINATOR
        elif name.startswith("gone"):
            row["error_code"] = NOT_FOUND
        else:
            row |= {
                "transaction_state": "Ongoing",
                "transaction_timeout_ms": 1000,
                "transaction_start_time_ms": 55,
                "producer_id": 7,
                "producer_epoch": 2,
                "topics": [{"topic": "t", "partitions": [1, 0]}],
            }
        rows.append(row)
    return {"transaction_states": rows}


def names(cluster: ScriptedCluster, **options: Any) -> list[tuple[str, int]]:
    with cluster.client() as client:
        found = list_transactions(client, **options)
    return [(listing.transactional_id, listing.coordinator_id) for listing in found]


def test_every_broker_is_asked(cluster: ScriptedCluster) -> None:
    assert names(cluster) == [("a-0", 0), ("a-1", 1), ("a-2", 2), ("b-0", 0), ("b-1", 1), ("b-2", 2)]


def test_states_are_passed_on(cluster: ScriptedCluster) -> None:
    names(cluster, states=["Ongoing"])
    assert {tuple(request.body["state_filters"]) for request in cluster.seen(LIST_TRANSACTIONS.key)} == {
        ("Ongoing",)
    }


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_patterns_match_whole_ids_with_old_brokers_too(cluster: ScriptedCluster, newest: int) -> None:
    cluster.limit_versions(ListTransactions=(0, newest))
    assert names(cluster, pattern="a-.") == [("a-0", 0), ("a-1", 1), ("a-2", 2)]
    assert names(cluster, pattern="a-") == []


def test_a_coordinator_that_loads_is_waited_for(cluster: ScriptedCluster) -> None:
    ready = cluster.brokers[1].rules[LIST_TRANSACTIONS.key]
    loading = {"error_code": COORDINATOR_LOADING, "unknown_state_filters": [], "transaction_states": []}
    cluster.brokers[1].rules[LIST_TRANSACTIONS.key] = lambda _: loading
    cluster.network.after(2.0, lambda: cluster.brokers[1].rules.update({LIST_TRANSACTIONS.key: ready}))
    assert len(names(cluster)) == 6


def test_a_coordinator_that_is_new_is_waited_for_briefly(cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[1]
    ready = dict(broker.rules)
    loading = {"error_code": COORDINATOR_LOADING, "unknown_state_filters": [], "transaction_states": []}
    not_yet = {"transaction_states": [{"transactional_id": "a-1", "error_code": NOT_COORDINATOR}]}
    broker.rules |= {LIST_TRANSACTIONS.key: lambda _: loading, DESCRIBE_TRANSACTIONS.key: lambda _: not_yet}
    with cluster.client() as client:
        client.brokers()
        cluster.network.after(0.03, lambda: broker.rules.update(ready))
        began = cluster.clock.now()
        assert len(list_transactions(client)) == 6
        broker.rules[DESCRIBE_TRANSACTIONS.key] = lambda _: not_yet
        cluster.network.after(0.03, lambda: broker.rules.update(ready))
        assert describe_transactions(["a-1"], client)["a-1"] is not None
    # Not as long as for a broker that is away, which is a tenth of a second each time.
    assert cluster.clock.now() - began < 0.15


def test_a_broker_that_does_not_answer_makes_it_fail(cluster: ScriptedCluster) -> None:
    cluster.brokers[2].rules[LIST_TRANSACTIONS.key] = lambda _: None
    with pytest.raises(KafkaTimeoutError, match="ListTransactions to broker b2"):
        names(cluster, timeout=5)


def test_mistakes_in_the_question(cluster: ScriptedCluster) -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        names(cluster, pattern="(")
    unknown = {"error_code": 0, "unknown_state_filters": ["Lost"], "transaction_states": []}
    cluster.brokers[0].rules[LIST_TRANSACTIONS.key] = lambda _: unknown
    with pytest.raises(ValueError, match="do not know the states Lost"):
        names(cluster, states=["Lost"])


def test_describe_asks_each_coordinator_once(cluster: ScriptedCluster) -> None:
    ids = [f"{letter}-{index}" for index in range(3) for letter in "abcdefgh"]
    with cluster.client() as client:
        found = describe_transactions([*ids, "gone-1", "a-0"], client)
    assert list(found) == [*ids, "gone-1"]
    assert found["gone-1"] is None
    partitions = (TopicPartition("t", 0), TopicPartition("t", 1))
    assert found["a-1"] == TransactionDescription("a-1", "Ongoing", 7, 2, 1000, 55, partitions)
    assert len(cluster.seen(DESCRIBE_TRANSACTIONS.key)) == 3


def test_describe_follows_a_coordinator_that_moves(cluster: ScriptedCluster) -> None:
    cluster.coordinator = lambda _: 2  # wrong for most
    cluster.network.after(3.0, lambda: setattr(cluster, "coordinator", lambda key: int(key[-1])))
    with cluster.client() as client:
        found = describe_transactions(["a-0", "a-2"], client)
    assert all(description is not None for description in found.values())


def test_describe_runs_out_of_time(cluster: ScriptedCluster) -> None:
    cluster.coordinator = lambda _: 2
    began = cluster.clock.now()
    with cluster.client() as client, pytest.raises(KafkaTimeoutError):
        describe_transactions(["a-0"], client, timeout=5)
    assert cluster.clock.now() - began == pytest.approx(5.0)


def test_describe_what_may_not_be_seen(cluster: ScriptedCluster) -> None:
    row = {"transactional_id": "a-0", "error_code": ID_AUTHORIZATION_FAILED}
    cluster.brokers[0].rules[DESCRIBE_TRANSACTIONS.key] = lambda _: {"transaction_states": [row]}
    with cluster.client() as client, pytest.raises(TransactionalIdAuthorizationError, match="'a-0'"):
        describe_transactions(["a-0"], client)


def test_describe_nothing_asks_nobody() -> None:
    assert describe_transactions([], {}) == {}
