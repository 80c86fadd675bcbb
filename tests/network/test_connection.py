# SPDX-License-Identifier: Apache-2.0
"""A request on its way, its outcome, and the queue of those that wait for their answer."""

from __future__ import annotations

import math

import pytest
from network.harness import question

from penstock.errors import NetworkError, ProtocolError
from penstock.network._connection_cy import ClientRequest, InFlightRequest, InFlightRequests
from penstock.types import Node

NODE = Node(1, "h", 9092)


def asked(timeout: float = 1.0) -> ClientRequest:
    return ClientRequest(NODE, question(), timeout, lambda _: None)


def filled(*timeouts: float) -> InFlightRequests:
    queue = InFlightRequests()
    for number, timeout in enumerate(timeouts):
        queue.add(InFlightRequest(asked(timeout), 3, number, 100.0))
    return queue


def test_answers_come_in_order():
    queue = filled(1, 1, 1)
    assert [queue.take_answered(number).correlation_id for number in range(3)] == [0, 1, 2]
    assert len(queue) == 0
    assert queue.oldest() is None


def test_an_answer_out_of_order_is_refused_and_nothing_is_taken():
    queue = filled(1, 1)
    with pytest.raises(ProtocolError, match=r"correlation id 1, but 0 \(FindCoordinator v3\)"):
        queue.take_answered(1)
    assert len(queue) == 2


def test_the_youngest_ends_when_it_has_no_answer():
    queue = filled(1, 1)
    assert queue.take_last().correlation_id == 1
    assert repr(queue) == (
        "<InFlightRequests [<InFlightRequest FindCoordinator v3 #0 to h:9092 (id 1): no answer>]>"
    )


def test_deadlines():
    queue = filled(5, 2, 3)
    assert queue.next_deadline() == 102
    assert queue.first_expired(101.9) is None
    assert queue.first_expired(103.5).correlation_id == 1
    queue.extend_deadlines(10)
    assert queue.next_deadline() == 112
    assert [request.correlation_id for request in queue.take_all()] == [0, 1, 2]
    assert queue.next_deadline() == math.inf


def test_a_request_keeps_its_outcome():
    request = InFlightRequest(asked(5), 3, 7, 100.0)
    assert (request.deadline, request.latency, request.internal) == (105, 0, False)
    request.end({"port": 1}, None, 100.5)
    assert (request.body, request.error, request.latency) == ({"port": 1}, None, 0.5)
    assert repr(request) == "<InFlightRequest FindCoordinator v3 #7 to h:9092 (id 1): answered>"


def test_a_request_that_was_never_sent_has_no_version():
    error = NetworkError("gone")
    request = InFlightRequest.never_sent(asked(), error, 100.0)
    assert (request.version, request.body, request.error, request.received_at) == (-1, None, error, 100.0)
    assert repr(request).endswith(": NetworkError>")
