# SPDX-License-Identifier: Apache-2.0
"""Ending transactions against a cluster in memory: what is sent, when it is repeated, which answers count."""

from __future__ import annotations

from typing import Any

import pytest
from control.fakes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    ScriptedCluster,
    control_batch,
)
from control.support import batch_of

from penstock.control.complete import complete_all, complete_transaction
from penstock.control.ending import Decision
from penstock.errors import (
    KafkaTimeoutError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionUnknownError,
    UnsupportedVersionError,
)
from penstock.protocol.messages import END_TXN, FETCH, FIND_COORDINATOR
from penstock.transaction_handle import TransactionHandle

PID, EPOCH = 9, 3


def handle(**changed: Any) -> TransactionHandle:
    values: dict[str, Any] = {
        "transactional_id": "x",
        "producer_id": PID,
        "producer_epoch": EPOCH,
        "end_txn_version": 5,
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "record_count": 1,
        "timeout_ms": 60_000,
    }
    return TransactionHandle(**(values | changed))


@pytest.fixture
def cluster() -> ScriptedCluster:
    cluster = ScriptedCluster(2)
    cluster.add_batch(batch_of([b"x"], PID, EPOCH, 0))
    return cluster


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_one_end_txn_in_the_version_of_the_handle(
    cluster: ScriptedCluster, version: int, commit: bool
) -> None:
    with cluster.client() as client:
        outcome = complete_transaction(handle(end_txn_version=version), commit, config=client)
    assert outcome.committed is commit
    (request,) = cluster.seen(END_TXN.key)
    assert request.version == version
    body = request.body
    assert (body["transactional_id"], body["producer_id"], body["producer_epoch"], body["committed"]) == (
        "x",
        PID,
        EPOCH,
        commit,
    )


@pytest.mark.parametrize(("commit", "decision"), [(True, Decision.COMMITTED), (False, Decision.ABORTED)])
def test_an_empty_one_needs_no_cluster(commit: bool, decision: Decision) -> None:
    empty = handle(topic=None, partition=-1, offset=-1, record_count=0, empty=True)
    assert complete_transaction(empty, commit, config={}).decision is decision
    (completion,) = complete_all([empty], commit, config={})
    assert completion.outcome is not None
    assert completion.outcome.decision is decision


def test_a_version_that_this_release_does_not_know() -> None:
    with pytest.raises(ValueError, match="EndTxn"):
        complete_transaction(handle(end_txn_version=6), config={})
    with pytest.raises(ValueError, match="EndTxn"):
        complete_all([handle(), handle(end_txn_version=6)], config={})


@pytest.mark.parametrize("wrong", [handle().to_json(), handle().to_json().encode()])
def test_the_text_of_a_handle_is_not_a_handle(wrong: Any) -> None:
    for call in (lambda: complete_transaction(wrong, config={}), lambda: complete_all([wrong], config={})):
        with pytest.raises(TypeError, match=r"TransactionHandle\.from_json"):
            call()
    with pytest.raises(TypeError, match=r"not int$"):
        complete_transaction(7, config={})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["abort", None, 1])
def test_the_wish_is_true_or_false(wrong: Any) -> None:
    empty = handle(topic=None, partition=-1, offset=-1, record_count=0, empty=True)
    for each in (handle(), empty):
        with pytest.raises(TypeError, match="commit must be True or False"):
            complete_transaction(each, wrong, config={})


def test_a_version_that_the_broker_does_not_know(cluster: ScriptedCluster) -> None:
    cluster.limit_versions(EndTxn=(0, 4))
    with cluster.client() as client, pytest.raises(UnsupportedVersionError):
        complete_transaction(handle(), config=client)
    assert cluster.seen(END_TXN.key) == []


def test_markers_being_written_are_waited_for_at_the_same_coordinator(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [CONCURRENT_TRANSACTIONS, CONCURRENT_TRANSACTIONS, 0]
    began = cluster.clock.now()
    with cluster.client() as client:
        assert complete_transaction(handle(), config=client).committed
    # Not at once, and not as long as for a broker that is away: they take milliseconds.
    assert 0.02 <= cluster.clock.now() - began < 0.1
    assert len(cluster.seen(FIND_COORDINATOR.key)) == 1
    assert cluster.seen(FETCH.key) == []


def test_a_coordinator_that_moved_is_followed(cluster: ScriptedCluster) -> None:
    def moved(_: Any) -> dict[str, Any]:
        cluster.coordinator = lambda _: 1
        return {"error_code": NOT_COORDINATOR}

    cluster.brokers[0].rules[END_TXN.key] = moved
    with cluster.client() as client:
        assert complete_transaction(handle(), config=client).committed
    assert len(cluster.seen(END_TXN.key, 1)) == 1


def test_a_coordinator_that_dies_before_its_answer_is_replaced(cluster: ScriptedCluster) -> None:
    cluster.brokers[0].rules[END_TXN.key] = lambda _: cluster.stop(0)
    cluster.network.after(6.0, lambda: setattr(cluster, "coordinator", lambda _: 1))
    with cluster.client() as client:
        assert complete_transaction(handle(), config=client).committed
    assert len(cluster.seen(END_TXN.key, 1)) == 1


def test_a_fence_after_the_commit_is_recognised(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [PRODUCER_FENCED]
    cluster.add_batch(control_batch(PID, EPOCH + 1, commit=True))
    with cluster.client() as client:
        outcome = complete_transaction(handle(), config=client)
    assert outcome.committed
    assert outcome.marker is not None
    assert outcome.marker.offset == 1


def test_a_fence_before_the_commit_is_an_error(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [PRODUCER_FENCED]
    cluster.add_batch(control_batch(PID, EPOCH + 1, commit=False))
    with cluster.client() as client, pytest.raises(TransactionAbortedError, match="fence"):
        complete_transaction(handle(), config=client)


def test_an_abort_that_comes_too_late_is_an_error(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [INVALID_TXN_STATE]
    cluster.add_batch(control_batch(PID, EPOCH + 1, commit=True))
    with cluster.client() as client, pytest.raises(TransactionCommittedError):
        complete_transaction(handle(), commit=False, config=client)


def test_an_ambiguous_answer_without_a_marker_is_repeated_until_there_is_one(
    cluster: ScriptedCluster,
) -> None:
    cluster.end_codes = [INVALID_TXN_STATE]
    marker = control_batch(PID, EPOCH + 1, commit=False)
    cluster.network.after(12.0, lambda: cluster.add_batch(marker))
    with cluster.client() as client, pytest.raises(TransactionAbortedError, match="time-out"):
        complete_transaction(handle(), config=client)
    assert len(cluster.seen(END_TXN.key)) > 5
    assert cluster.seen(END_TXN.key, 1) == []


def test_still_open_when_the_time_is_up_may_be_repeated(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [INVALID_TXN_STATE]
    with cluster.client() as client:
        with pytest.raises(KafkaTimeoutError, match="safe to ask again") as caught:
            complete_transaction(handle(), config=client, timeout=20)
        assert "INVALID_TXN_STATE" in str(caught.value)
        cluster.end_codes = [0]
        assert complete_transaction(handle(), config=client).committed


def test_without_a_limit_the_time_out_of_the_transaction_is_one(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [INVALID_TXN_STATE]
    began = cluster.clock.now()
    with cluster.client() as client, pytest.raises(TransactionUnknownError, match="time-out is long over"):
        complete_transaction(handle(timeout_ms=20_000), config=client, timeout=None)
    assert 20 < cluster.clock.now() - began < 60


def test_a_log_that_lost_the_batch_is_unknown(cluster: ScriptedCluster) -> None:
    cluster.end_codes = [PRODUCER_FENCED]
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    cluster.log_start = 1
    with cluster.client() as client, pytest.raises(TransactionUnknownError):
        complete_transaction(handle(), config=client)


def test_no_cluster_is_a_time_out() -> None:
    cluster = ScriptedCluster()
    cluster.stop(0)
    with cluster.client() as client, pytest.raises(KafkaTimeoutError, match="refused"):
        complete_transaction(handle(), config=client, timeout=5)


# ---- many


def test_each_of_many_has_its_own_outcome(cluster: ScriptedCluster) -> None:
    def end(request: Any) -> dict[str, Any]:
        number = int(request.body["transactional_id"])
        return {"error_code": PRODUCER_FENCED if number % 10 == 3 else 0}

    for broker in cluster.brokers:
        broker.rules[END_TXN.key] = end
        broker.latency = 0.01
    cluster.coordinator = lambda key: int(key) % 2
    cluster.add_batch(control_batch(PID, EPOCH + 1, commit=False))
    handles = [handle(transactional_id=str(number)) for number in range(200)]
    began = cluster.clock.now()
    with cluster.client() as client:
        completions = complete_all(handles, config=client)
    assert [completion.handle for completion in completions] == handles
    for number, completion in enumerate(completions):
        if number % 10 == 3:
            assert completion.outcome is None
            assert isinstance(completion.error, TransactionAbortedError)
        else:
            assert completion.error is None
            assert completion.outcome is not None
            assert completion.outcome.committed
    assert len(cluster.seen(END_TXN.key)) == 200
    assert len(cluster.seen(FIND_COORDINATOR.key)) == 1
    # 16 on their way to each of two brokers: far less than 200 round trips one after the other.
    assert cluster.clock.now() - began < 0.5
    assert sum(len(broker.peers) for broker in cluster.brokers) <= 3


def test_those_that_run_out_of_time_do_not_hide_the_others(cluster: ScriptedCluster) -> None:
    def end(request: Any) -> dict[str, Any]:
        return {"error_code": CONCURRENT_TRANSACTIONS if request.body["transactional_id"] == "stuck" else 0}

    cluster.brokers[0].rules[END_TXN.key] = end
    handles = [handle(transactional_id=name) for name in ("a", "stuck", "b")]
    with cluster.client() as client:
        first, stuck, last = complete_all(handles, config=client, timeout=5)
    assert first.error is last.error is None
    assert isinstance(stuck.error, KafkaTimeoutError)
