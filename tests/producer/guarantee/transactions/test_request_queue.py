# SPDX-License-Identifier: Apache-2.0
"""The order of transaction requests, and the brokers they go to, without a network."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._time import ExponentialBackoff
from penstock.producer.guarantee.transactions.request_queue import RequestQueue
from penstock.producer.guarantee.transactions.requests import (
    AddOffsetsRequest,
    AddPartitionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnRequest,
)
from penstock.protocol.requests import CoordinatorKind
from penstock.types import ConsumerGroupMetadata, Node, TopicPartition

OURS, GROUP = CoordinatorKind.TRANSACTION, CoordinatorKind.GROUP
COORDINATOR: Any = SimpleNamespace(uses_v2=True)
NODE = Node(3, "b3", 9092)


@pytest.fixture
def queue() -> RequestQueue:
    queue = RequestQueue(ExponentialBackoff(100, 100), random.Random(1))
    queue.use_key(OURS, "x")
    return queue


def end() -> EndTxnRequest:
    return EndTxnRequest(COORDINATOR, commit=True)


def add(*partitions: int) -> AddPartitionsRequest:
    return AddPartitionsRequest(COORDINATOR, frozenset(TopicPartition("t", number) for number in partitions))


def commit_offsets() -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(COORDINATOR, {}, ConsumerGroupMetadata("g"))


def taken(queue: RequestQueue) -> list[TxnRequest]:
    found = []
    while queue.head(0.0) is not None:
        found.append(queue.pop())
    return found


def test_requests_go_by_priority_then_by_age(queue):
    bump = InitProducerIdRequest(COORDINATOR, bump=True)
    ending, partitions, offsets = (
        end(),
        add(0),
        AddOffsetsRequest(COORDINATOR, {}, ConsumerGroupMetadata("g")),
    )
    init, search = (
        InitProducerIdRequest(COORDINATOR, bump=False),
        FindCoordinatorRequest(COORDINATOR, OURS, "x"),
    )
    for request in (bump, ending, partitions, offsets, init, search):
        queue.push(request)
    assert taken(queue) == [search, init, partitions, offsets, ending, bump]


def test_a_request_is_tried_again_after_the_backoff(queue):
    request = end()
    queue.retry(request, 10.0)
    assert request.attempts == 1
    assert queue.head(10.05) is None
    assert queue.seconds_to_head(10.05) == pytest.approx(0.05)
    assert queue.head(10.1) is request
    assert queue.seconds_to_head(10.1) == math.inf  # an event tells


def test_a_request_may_wait_for_less(queue):
    request = add(0)
    queue.retry(request, 10.0, wait_ms=20)
    assert queue.head(10.02) is request


def test_nobody_waits_for_the_head_while_a_request_is_under_way(queue):
    queue.retry(end(), 10.0)
    queue.sent(add(0))
    assert queue.is_busy
    assert queue.seconds_to_head(10.0) == math.inf
    queue.ended()
    assert not queue.is_busy
    assert queue.seconds_to_head(10.0) == pytest.approx(0.1)


def test_what_waits_is_dropped_by_what_it_is(queue):
    ending, partitions = end(), add(0)
    for request in (ending, commit_offsets(), partitions):
        queue.push(request)
    queue.drop(lambda request: request.for_a_group)
    assert taken(queue) == [partitions, ending]
    queue.push(end())
    queue.clear()
    assert taken(queue) == []


def test_the_request_under_way_counts_with_those_that_wait(queue):
    under_way, waiting = add(0), end()
    queue.sent(under_way)
    queue.push(waiting)
    assert list(queue) == [under_way, waiting]
    assert list(queue.waiting()) == [waiting]


def test_a_broker_is_known_until_it_is_lost(queue):
    request = end()
    assert not queue.knows_node(request)
    queue.found(OURS, NODE)
    assert queue.knows_node(request)
    assert queue.node(request) == NODE
    queue.lose(request)
    assert not queue.knows_node(request)


def test_a_search_goes_to_any_broker(queue):
    search = FindCoordinatorRequest(COORDINATOR, OURS, "x")
    assert queue.knows_node(search)
    assert queue.node(search) is None
    queue.found(OURS, NODE)
    queue.lose(search)  # which says nothing about the coordinator
    assert queue.knows_node(end())


def test_another_id_or_group_has_another_coordinator(queue):
    assert (queue.key(OURS), queue.key(GROUP)) == ("x", "")
    queue.use_key(GROUP, "g")
    queue.found(OURS, NODE)
    queue.found(GROUP, NODE)
    queue.use_key(OURS, "x")
    queue.use_key(GROUP, "another")
    assert queue.knows_node(end())
    assert not queue.knows_node(commit_offsets())
    queue.use_key(OURS, "y")
    assert not queue.knows_node(end())
    assert queue.key(OURS) == "y"
