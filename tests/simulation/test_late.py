# SPDX-License-Identifier: Apache-2.0
"""Which requests of a cut connection take effect, and which would fall into a hole of Kafka's protocol."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from testing.wire import Producer, Wire, batch, make_cluster

from penstock._identity import ProducerIdentity
from penstock.network.transport import Address, Endpoint
from penstock.producer.batch._batch_cy import Batch, BatchIdentity
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee._sequences_cy import Numbering
from penstock.producer.guarantee.response_policy import Action, Decision
from penstock.protocol._framing_cy import frame_request
from penstock.protocol.codec import encode_request_body
from penstock.protocol.messages import END_TXN, PRODUCE
from penstock.records._batch_cy import BatchWriter
from penstock.types import TopicPartition
from simulation.late import LateRequests
from simulation.wire import SimClock, World

P = Producer(1000, 0)
OUT_OF_ORDER = 45
V1, V2 = {"transaction.version": 1}, {"transaction.version": 2}


def frame(api, version, body):
    return b"".join(frame_request(api, version, 1, "sim", encode_request_body(api, version, body)))


def produce(producer, sequence, *, version=11, transactional_id=None):
    records = batch(1, producer, sequence, transactional=transactional_id is not None)
    rows = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    body = {"acks": -1, "timeout_ms": 100, "transactional_id": transactional_id, "topic_data": rows}
    return frame(PRODUCE, version, body)


def end(producer, version):
    body = {
        "transactional_id": "x",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "committed": True,
    }
    return frame(END_TXN, version, body)


def written(cluster):
    return [each.base_sequence for each in cluster.partition("t", 0).log.batches]


# ------------------------------------------------------------------------------------------------ order


def after_a_cut(seed):
    """What is written of three batches that were on their way when their connection was cut."""
    cluster, clock = make_cluster(), SimClock()
    world = World(cluster, clock, random.Random(seed), LateRequests(cluster))
    link = world.connect(Address(2, ("10.0.0.0", 9092)), Endpoint("b0", 9092))
    world._establish(link)
    link.send_some([produce(P, sequence) for sequence in range(3)])
    world.cut(link)
    while (moment := world.next_at()) < clock.time + 60:
        world.happen(moment, moment)
    return written(cluster)


def test_late_requests_take_effect_in_order_and_never_behind_a_lost_one():
    outcomes = [after_a_cut(seed) for seed in range(60)]
    assert {len(outcome) for outcome in outcomes} == {0, 1, 2, 3}
    assert all(outcome == [0, 1, 2][: len(outcome)] for outcome in outcomes)


# ------------------------------------------------------------------------------------------------ the holes


def numbered_anew(late, sequence):
    """Tell that a producer has seen a batch refused behind a gap, and goes on with it under a new epoch."""
    refused = SimpleNamespace(
        queue=None, topic_partition=TopicPartition("t", 0), identity=BatchIdentity(*P, sequence, False)
    )
    book = SimpleNamespace(of=lambda queue: SimpleNamespace(in_flight=[refused]))
    gate = SimpleNamespace(
        decide=lambda *_: Decision(Action.RETRY, bump_epoch=True), numbering=SimpleNamespace(book=book)
    )
    late.watch(gate)
    gate.decide(OUT_OF_ORDER, -1, refused, None)


def test_a_batch_that_goes_on_under_a_new_epoch_is_lost_until_the_broker_has_seen_it():
    cluster = make_cluster()
    late, wire = LateRequests(cluster), Wire(cluster)
    wire.produce(batch(1, P, 0))
    numbered_anew(late, 2)
    before, itself = late.read(produce(P, 1)), late.read(produce(P, 2))
    assert (late.is_lost(before), late.is_lost(itself)) == (False, True)
    wire.produce(batch(1, P.bumped(), 0))
    assert not late.is_lost(itself)


def one_record(queue):
    writer = BatchWriter(bytearray(200), 200)
    assert writer.append(0, None, b"v", None) > 0
    return Batch(queue, writer, 0.0, [])


def test_a_batch_whose_number_moved_down_is_lost_under_its_old_one():
    cluster = make_cluster()
    late, wire = LateRequests(cluster), Wire(cluster)
    producer = wire.init()
    wire.add(producer)
    numbering = Numbering(retries=5, transactional=True)
    late.watch_gaps(SimpleNamespace(_numbers=numbering))
    queue = PartitionQueue("t", 0, set(), set())
    batches = [one_record(queue) for _ in range(3)]
    for each in batches:
        numbering.book.number(each, ProducerIdentity(*producer), transactional=True)
    requests = [late.read(produce(producer, at, version=12, transactional_id="x")) for at in (1, 2)]
    assert [late.is_lost(request) for request in requests] == [False, False]
    numbering.book.close_gap(batches[1])
    assert [late.is_lost(request) for request in requests] == [False, True]


@pytest.mark.parametrize(("features", "version", "lost"), [(V1, 4, True), (V2, 5, False)])
def test_an_end_is_lost_where_it_would_end_the_next_transaction(features, version, lost):
    cluster = make_cluster(features=features)
    late, wire = LateRequests(cluster), Wire(cluster)
    producer = wire.init()
    wire.add(producer)
    request = late.read(end(producer, version))
    assert not late.is_lost(request)
    _, following = wire.end(producer, True, version)
    wire.now += 1
    wire.add(following if version == 5 else producer)
    assert late.is_lost(request) is lost


@pytest.mark.parametrize(("release", "lost"), [("3.0", True), ("3.7", False)])
def test_a_batch_is_lost_where_nobody_asks_whose_transaction_it_is(release, lost):
    cluster = make_cluster(release=release)
    late, wire = LateRequests(cluster), Wire(cluster)
    producer = wire.init()
    wire.add(producer)
    request = late.read(produce(producer, 0, version=9, transactional_id="x"))
    assert not late.is_lost(request)
    wire.end(producer, True, 3)
    assert late.is_lost(request) is lost
