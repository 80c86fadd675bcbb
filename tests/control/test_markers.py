# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from control.fakes import (
    NOT_LEADER,
    TOPIC_AUTHORIZATION_FAILED,
    ScriptedCluster,
    control_batch,
)
from control.support import batch_of

from penstock.control import markers
from penstock.control.markers import Found, Marker, MarkerSearch, SearchEnd
from penstock.errors import BrokerError, TopicAuthorizationError
from penstock.protocol.messages import FETCH
from penstock.records._batch_cy import BatchWriter
from penstock.records.format import CONTROL_BIT, TRANSACTIONAL_BIT

PID, EPOCH = 9, 3


@pytest.fixture
def cluster() -> ScriptedCluster:
    """A log in which our batch is at offset 5, behind others' records."""
    cluster = ScriptedCluster()
    cluster.add_batch(batch_of([b"a"] * 5, transactional=False), 5)
    cluster.add_batch(batch_of([b"x", b"y"], PID, EPOCH, 0), 2)
    return cluster


def search(offset: int = 5, epoch: int = EPOCH) -> MarkerSearch:
    return MarkerSearch("t", 0, offset, PID, epoch)


def look(cluster: ScriptedCluster, which: MarkerSearch | None = None) -> Found:
    with cluster.client() as client:
        return client.run((which or search()).look())


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_the_marker_behind_the_batch_is_read(cluster: ScriptedCluster, commit: bool, epoch: int) -> None:
    cluster.add_batch(control_batch(PID, epoch, commit=commit))
    assert look(cluster) == Found(marker=Marker(commit, 7, epoch, 7, 1_700_000_000_000))


def test_the_first_marker_counts(cluster: ScriptedCluster) -> None:
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    cluster.add_batch(control_batch(PID, EPOCH + 1, commit=False))
    found = look(cluster).marker
    assert found is not None
    assert found.committed


def test_others_and_their_markers_do_not_count(cluster: ScriptedCluster) -> None:
    cluster.add_batch(batch_of([b"z"], PID + 1, 0, 0))
    cluster.add_batch(control_batch(PID + 1, 0, commit=True))
    cluster.add_batch(batch_of([b"more of ours"], PID, EPOCH, 2))
    assert look(cluster).end is SearchEnd.OPEN
    cluster.add_batch(control_batch(PID, EPOCH, commit=False))
    found = look(cluster).marker
    assert found is not None
    assert not found.committed


def test_a_marker_before_the_batch_does_not_count() -> None:
    cluster = ScriptedCluster()
    cluster.add_batch(control_batch(PID, EPOCH - 1, commit=True))
    cluster.add_batch(batch_of([b"x"], PID, EPOCH, 0))
    assert look(cluster, search(1)).end is SearchEnd.OPEN


def test_any_record_of_the_batch_is_a_good_place_to_begin(cluster: ScriptedCluster) -> None:
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    assert look(cluster, search(6)).marker is not None


# ---- when the batch is not there, nothing counts


def test_another_batch_in_its_place(cluster: ScriptedCluster) -> None:
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    assert look(cluster, search(0)).end is SearchEnd.GONE


def test_the_batch_of_another_epoch_in_its_place(cluster: ScriptedCluster) -> None:
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    assert look(cluster, search(epoch=EPOCH - 1)).end is SearchEnd.GONE


def test_a_hole_in_its_place(cluster: ScriptedCluster) -> None:
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    del cluster.log[1]
    assert look(cluster).end is SearchEnd.GONE


def test_a_hole_before_another_batch_of_the_same_transaction(cluster: ScriptedCluster) -> None:
    cluster.add_batch(batch_of([b"z"], PID, EPOCH, 2))
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    del cluster.log[1]
    found = look(cluster).marker
    assert found is not None
    assert found.committed


def test_a_later_transaction_without_a_marker_between(cluster: ScriptedCluster) -> None:
    cluster.add_batch(batch_of([b"x"], PID, EPOCH + 1, 0))
    cluster.add_batch(control_batch(PID, EPOCH + 1, commit=True))
    assert look(cluster).end is SearchEnd.GONE


def test_removed_by_retention(cluster: ScriptedCluster) -> None:
    cluster.log_start = 7
    found = look(cluster)
    assert found.end is SearchEnd.GONE
    assert isinstance(found.error, BrokerError)
    assert found.error.code == 1


def test_a_leader_that_lags_behind_is_no_proof(cluster: ScriptedCluster) -> None:
    # Out of range, but at the end: what was acknowledged must come back.
    assert look(cluster, search(100)).end is SearchEnd.TROUBLE


# ---- reading


def test_a_long_log_is_read_page_by_page_and_goes_on_where_it_stopped(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "PAGE_BYTES", 400)
    for _ in range(30):
        cluster.add_batch(batch_of([b"." * 100], transactional=False))
    which = search()
    assert look(cluster, which).end is SearchEnd.OPEN
    pages = len(cluster.seen(FETCH.key))
    assert pages > 10
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    assert look(cluster, which).marker is not None
    assert len(cluster.seen(FETCH.key)) == pages + 1


def test_only_what_is_below_the_high_watermark_counts(cluster: ScriptedCluster) -> None:
    # The broker shows no more than that; a page that ends there is the end.
    assert search().read_page(cluster.log[1][1], 7) == Found(end=SearchEnd.OPEN)
    assert search().read_page(cluster.log[1][1], 8) is None
    assert search().read_page(b"", 8) == Found(end=SearchEnd.OPEN)


def test_the_fetch_is_read_uncommitted_and_by_name(cluster: ScriptedCluster) -> None:
    look(cluster)
    (request,) = cluster.seen(FETCH.key)
    assert request.body["isolation_level"] == 0
    assert request.version <= 12


def test_a_leader_that_moved_is_trouble_and_looked_up_anew() -> None:
    cluster = ScriptedCluster(2)
    cluster.add_batch(batch_of([b"x"], PID, EPOCH, 0))
    cluster.add_batch(control_batch(PID, EPOCH, commit=True))
    which = search(0)
    row = {"partition_index": 0, "error_code": NOT_LEADER, "high_watermark": -1, "records": None}
    refusal = {"responses": [{"topic": "t", "partitions": [row]}]}
    cluster.brokers[0].rules[FETCH.key] = lambda _: refusal
    with cluster.client() as client:
        assert client.run(which.look()).end is SearchEnd.TROUBLE
        cluster.leaders["t"] = 1
        assert client.run(which.look()).marker is not None
    assert len(cluster.seen(FETCH.key, 1)) == 1


def test_a_topic_that_may_not_be_read(cluster: ScriptedCluster) -> None:
    cluster.fetch_code = TOPIC_AUTHORIZATION_FAILED
    found = look(cluster)
    assert found.end is SearchEnd.FORBIDDEN
    assert isinstance(found.error, TopicAuthorizationError)


def test_a_topic_that_is_gone_is_trouble(cluster: ScriptedCluster) -> None:
    cluster.leaders.clear()
    found = look(cluster)
    assert found.end is SearchEnd.TROUBLE
    assert "'t'" in str(found.error)


@pytest.mark.parametrize("damage", ["checksum", "type", "key"])
def test_damage_is_trouble_not_an_outcome(cluster: ScriptedCluster, damage: str) -> None:
    marker = bytearray(control_batch(PID, EPOCH, commit=True))
    if damage == "checksum":
        marker[-1] ^= 1
    else:
        marker = bytearray(odd_control_batch(b"\0\0\0\7" if damage == "type" else b"\0"))
    cluster.add_batch(bytes(marker))
    assert look(cluster).end is SearchEnd.TROUBLE


def odd_control_batch(key: bytes) -> bytes:
    writer = BatchWriter(bytearray(200), 200)
    writer.append(0, key, b"", None)
    return bytes(writer.seal(CONTROL_BIT | TRANSACTIONAL_BIT, PID, EPOCH, 0))


def test_an_answer_without_the_partition_is_an_error(cluster: ScriptedCluster) -> None:
    answer: dict[str, Any] = {"error_code": 0, "responses": []}
    cluster.brokers[0].rules[FETCH.key] = lambda _: answer
    assert look(cluster).end in (SearchEnd.TROUBLE, SearchEnd.FORBIDDEN)
