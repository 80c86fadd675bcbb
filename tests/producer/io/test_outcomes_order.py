# SPDX-License-Identifier: Apache-2.0
"""Each batch gets the answer for its own partition, in whatever order the answers come."""

from __future__ import annotations

import random
from typing import Any

import pytest
from producer.fakes_core import Core, encoded
from producer.fakes_sender import Rig, produce_body

from penstock.errors import ProducerClosedError
from penstock.producer.batch._batch_cy import Batch, BatchState
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.io._outcomes_cy import match_answers
from penstock.protocol._produce_cy import PartitionResponse
from penstock.records._batch_cy import BatchWriter
from penstock.types import Node


def in_flight(topic: str, partition: int) -> Batch:
    writer = BatchWriter(bytearray(200), 200)
    writer.append(0, None, b"v", None)
    batch = Batch(PartitionQueue(topic, partition, set(), set()), writer, 0.0, [])
    batch.move_to(BatchState.IN_FLIGHT)
    return batch


def answer(topic: str, partition: int, code: int = 0) -> PartitionResponse:
    return PartitionResponse("".join(topic), partition, code, base_offset=7)


def by_place(batches: list[Batch], answers: list[PartitionResponse]) -> tuple[list[Any], list[Any]]:
    known = {(each.topic, each.partition): each for each in answers}
    written, others = [], []
    for batch in batches:
        found = known.get(batch.queue.place)
        plain = found is not None and found.error_code == 0 and batch.state is BatchState.IN_FLIGHT
        (written if plain else others).append((batch, found))
    return written, others


def matched(batches: list[Batch], answers: list[PartitionResponse]) -> tuple[list[Any], list[Any]]:
    written: list[Any] = []
    told: list[Any] = []
    others = match_answers(batches, answers, written, told)
    return list(zip(written, told, strict=True)), others


def test_whatever_the_order_an_answer_goes_to_the_batch_of_its_place():
    rng = random.Random(3)
    places = [(topic, partition) for topic in ("a", "b") for partition in range(3)]
    for _ in range(2_000):
        chosen = rng.sample(places, rng.randrange(1, 5))
        batches = [in_flight(*place) for place in chosen]
        if rng.random() < 0.2:
            rng.choice(batches).move_to(BatchState.FAILED)
        answered = [place for place in chosen if rng.random() > 0.1]
        if rng.random() < 0.5:
            rng.shuffle(answered)
        if answered and rng.random() < 0.3:
            answered[rng.randrange(len(answered))] = rng.choice([*places, ("c", 0)])
        answers = [answer(*place, rng.choice([0, 0, 0, 6])) for place in answered]
        assert matched(batches, answers) == by_place(batches, answers)


def test_the_same_partitions_of_two_topics_are_told_apart():
    batches = [in_flight("a", 0), in_flight("b", 0)]
    answers = [answer("b", 0, 6), answer("a", 0)]
    written, others = matched(batches, answers)
    assert [(batch.queue.topic, found.topic) for batch, found in written] == [("a", "a")]
    assert [(batch.queue.topic, found.topic) for batch, found in others] == [("b", "b")]


def test_a_leader_is_taken_from_an_answer_of_which_another_part_was_written():
    rig = Rig(brokers=2, retry_backoff_ms=5000, retry_backoff_max_ms=5000)
    rig.know("t", leaders=[0, 0])
    first, second = rig.send("t", b"a", partition=0), rig.send("t", b"b", partition=1)
    rig.await_request(broker=0)
    (request,) = rig.waiting(0)
    body = produce_body(request, nodes=(Node(1, "b1", 9092),))
    rows = {row["index"]: row for topic in body["responses"] for row in topic["partition_responses"]}
    assert set(rows) == {0, 1}
    rows[1].update(error_code=6, current_leader={"leader_id": 1, "leader_epoch": 7})
    rig.brokers[0].answer(request, body)
    rig.settle(2)
    assert first.done()
    rig.await_request(broker=1)
    rig.answer(broker=1)
    assert second.done()


def test_a_spare_segment_that_nobody_needs_any_more_goes_back(monkeypatch: pytest.MonkeyPatch):
    core = Core(batch_size=256, compression="zstd")
    topic = core.topic()
    core.sealer.ratios.reset(topic.name, core.sealer.codec.id, 0.1)  # so that batches grow
    fields = encoded(b"v" * 100)
    assert core.accumulator.appender.append_now(topic, 0, fields, None) is not None
    free = core.pool.available()
    take = core.pool.try_take
    taken = []

    def take_and_close(size: int) -> Any:
        taken.append(size)
        topic.queues[0].close()
        return take(size)

    monkeypatch.setattr(core.pool, "try_take", take_and_close)
    with pytest.raises(ProducerClosedError):
        core.accumulator.appender.try_append(topic, 0, fields, None)
    assert taken
    assert core.pool.available() == free
