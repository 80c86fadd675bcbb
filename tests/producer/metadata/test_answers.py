# SPDX-License-Identifier: Apache-2.0
"""What an answer costs: one that says what the last one said is compared, any other one is taken in pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from producer.fakes_metadata import arrived, hand_over

from penstock.errors import ProtocolError, UnknownTopicOrPartitionError
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.producer.metadata.metadata import MetadataSettings, ProducerMetadata
from penstock.protocol.requests import MetadataResponse
from penstock.types import Node

BOOTSTRAP = Node(-1, "boot", 9092)
ID, NEW_ID = bytes([1]) * 16, bytes([2]) * 16
UNKNOWN_TOPIC = {"name": "missing", "error_code": 3}


def topic(name: str, partitions: int = 10, *, epoch: int = 5, leader: int = 1, topic_id: bytes = ID) -> Any:
    rows = [
        {"partition_index": number, "leader_id": leader, "leader_epoch": epoch}
        for number in range(partitions)
    ]
    return {"name": name, "topic_id": topic_id, "partitions": rows}


def body(*topics: Any, brokers: int = 2, **more: Any) -> dict[str, Any]:
    nodes = [{"node_id": number, "host": "h", "port": 9000 + number} for number in range(1, brokers + 1)]
    return {"brokers": nodes, "cluster_id": "c", "topics": list(topics), **more}


class Keeper:
    """A ProducerMetadata that uses topic "t" of ten partitions; `decoded` has the sizes of the pieces."""

    def __init__(self, decoded: list[int]) -> None:
        self.now = 0.0
        self.decoded = decoded
        self.heard: list[ClusterSnapshot] = []
        self.metadata = ProducerMetadata(MetadataSettings(), [BOOTSTRAP], random.Random(1), lambda: None)
        self.metadata.piece = 3
        self.metadata.on_snapshot(self.heard.append)
        self.metadata.want_topic("t", self.now)
        self.answer(topic("t"))

    def ask(self) -> Any:
        self.now += 10
        self.metadata.refresh()
        return self.metadata.build_request(self.now)

    def answer(self, *topics: Any, version: int = 13, **more: Any) -> int:
        """Have the brokers asked, and answer; the partitions that were decoded."""
        self.decoded.clear()
        hand_over(self.metadata, self.ask(), body(*topics, **more), self.now, version)
        return sum(self.decoded)

    def begin(self, *topics: Any, **more: Any) -> Iterator[None]:
        """An answer of which one piece was taken."""
        request = self.ask()
        pieces = self.metadata.on_response(request, arrived(body(*topics, **more)), 13, self.now)
        next(pieces)
        return pieces

    def leader(self, partition: int = 0) -> tuple[int, int]:
        info = self.metadata.snapshot.partition("t", partition)
        assert info is not None
        return info.leader_id, info.leader_epoch


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    pieces = MetadataResponse.pieces
    decoded: list[int] = []

    def counted(response: MetadataResponse, most: int) -> Any:
        for piece in pieces(response, most):
            decoded.append(len(piece.partitions))
            yield piece

    monkeypatch.setattr(MetadataResponse, "pieces", counted)
    return Keeper(decoded)


# ---- the same again


def test_an_answer_that_says_what_the_last_one_said_is_not_decoded(keeper: Keeper) -> None:
    before = keeper.metadata.snapshot
    # Since KRaft each broker names any of them as the controller, and the throttle time is of the moment.
    assert keeper.answer(topic("t"), controller_id=2, throttle_time_ms=7) == 0
    assert keeper.metadata.snapshot is before
    assert keeper.metadata.age(keeper.now) == 0
    assert keeper.heard[-2:] == [before, before]


def test_brokers_that_changed_are_taken_over_without_the_topics(keeper: Keeper) -> None:
    topics = keeper.metadata.snapshot.topics
    assert keeper.answer(topic("t"), brokers=3) == 0
    assert sorted(keeper.metadata.snapshot.nodes) == [1, 2, 3]
    assert keeper.metadata.snapshot.topics is topics
    assert keeper.answer(topic("t"), brokers=3) == 0


def partial_update(keeper: Keeper) -> list[Any]:
    keeper.metadata.want_topic("u", keeper.now)
    hand_over(keeper.metadata, keeper.metadata.build_request(keeper.now), body(topic("u")), keeper.now)
    return [topic("t"), topic("u")]


@pytest.mark.parametrize(
    "change",
    [
        lambda keeper: [topic("t", epoch=6)],
        lambda keeper: [topic("t", leader=2)],
        lambda keeper: [topic("t", 11)],
        lambda keeper: [{**topic("t"), "error_code": 5, "partitions": []}],
        partial_update,
        lambda keeper: keeper.metadata.update_leader_hints([("t", 0, 2, 6)], ()) and [topic("t")],
        lambda keeper: keeper.metadata.rebootstrap(keeper.now) or [topic("t")],
        lambda keeper: keeper.metadata.want_topic("later", keeper.now) or [topic("t")],
    ],
    ids=["epoch", "leader", "partition", "error", "partial", "hint", "rebootstrap", "wanted"],
)
def test_any_other_answer_is_decoded(keeper: Keeper, change: Callable[[Keeper], list[Any]]) -> None:
    topics = change(keeper)
    keeper.answer(*topics)
    assert keeper.decoded
    assert sum(keeper.decoded) == sum(len(each["partitions"]) for each in topics)


def test_an_answer_in_another_version_is_decoded(keeper: Keeper) -> None:
    keeper.answer(topic("t"), version=11)  # whose bytes are the same, but mean something else in general
    assert keeper.answer(topic("t"), version=12) == 10


def test_leaders_are_found_again_after_a_restart_that_changed_nothing(keeper: Keeper) -> None:
    keeper.metadata.rebootstrap(keeper.now)
    keeper.answer(topic("t"))
    assert keeper.leader() == (1, 5)


def test_a_topic_that_is_missing_as_before_is_asked_for_again_with_growing_waits(keeper: Keeper) -> None:
    ticket = keeper.metadata.await_topic("missing", None, keeper.now)
    keeper.answer(topic("t"), UNKNOWN_TOPIC)
    waits = []
    for _ in range(3):
        assert keeper.answer(topic("t"), UNKNOWN_TOPIC) == 0
        waits.append(keeper.metadata.seconds_to_update(keeper.now))
    assert 0 < waits[0] < waits[1] < waits[2]
    assert not ticket.done
    error = keeper.metadata.explain_timeout("missing", None, 1)
    assert isinstance(error.__cause__, UnknownTopicOrPartitionError)
    assert "4 metadata answers" in str(error)


# ---- in pieces


def test_an_answer_counts_when_its_last_piece_was_taken(keeper: Keeper) -> None:
    waiting = keeper.metadata.await_topic("t", 10, keeper.now)
    before = keeper.metadata.snapshot
    turns = 0
    for _ in keeper.begin(topic("t", 11)):
        turns += 1
        assert keeper.metadata.snapshot is before
        assert not waiting.done
        assert keeper.metadata.seconds_to_update(keeper.now) == float("inf")
    assert turns == 3
    assert waiting.result is keeper.metadata.snapshot
    assert keeper.metadata.snapshot.partition_count("t") == 11


def test_many_small_topics_are_taken_in_pieces_too(keeper: Keeper) -> None:
    for number in range(6):
        keeper.metadata.want_topic(str(number), keeper.now)
    assert len(list(keeper.begin(*(topic(str(number), 1) for number in range(6))))) == 2


@pytest.mark.parametrize(
    ("partition", "epoch", "topic_id", "expected"),
    [
        pytest.param(0, 7, ID, (2, 7), id="newer, of a piece that was taken"),
        pytest.param(9, 7, ID, (2, 7), id="newer, of a later piece"),
        pytest.param(0, 6, ID, (1, 6), id="as old as the answer"),
        pytest.param(0, 7, NEW_ID, (1, 6), id="of a topic that the answer says was deleted"),
    ],
)
def test_a_leader_learned_meanwhile_is_kept_when_it_is_newer(
    keeper: Keeper, partition: int, epoch: int, topic_id: bytes, expected: tuple[int, int]
) -> None:
    pieces = keeper.begin(topic("t", epoch=6, topic_id=topic_id))
    keeper.metadata.update_leader_hints([("t", partition, 2, epoch)], ())
    assert keeper.leader(partition) == (2, epoch)
    assert list(pieces)
    assert keeper.leader(partition) == expected
    assert keeper.answer(topic("t", epoch=6, topic_id=topic_id)) == 0


@pytest.mark.parametrize("bad", [{"error_code": 129}, {"brokers": 0}])
def test_an_answer_that_is_no_use_changes_nothing(keeper: Keeper, bad: dict[str, Any]) -> None:
    before = keeper.metadata.snapshot
    list(keeper.begin(topic("t"), **bad))
    assert keeper.metadata.snapshot is before
    assert keeper.metadata.seconds_to_update(keeper.now) < 1


def test_an_answer_that_cannot_be_decoded_to_its_end_changes_nothing(keeper: Keeper) -> None:
    before = keeper.metadata.snapshot
    request, response = keeper.ask(), arrived(body(topic("t", epoch=6)))
    response._topics = response._topics[:-1]
    with pytest.raises(ProtocolError):
        list(keeper.metadata.on_response(request, response, 13, keeper.now))
    assert keeper.metadata.snapshot is before
