# SPDX-License-Identifier: Apache-2.0
"""The queue of requests that wait for their answer."""

from __future__ import annotations

import math

import pytest
from network.harness import question

from penstock.errors import ProtocolError
from penstock.network.in_flight import Exchange, InFlightRequests


def filled(*timeouts: float) -> InFlightRequests:
    queue = InFlightRequests()
    for number, timeout in enumerate(timeouts):
        queue.add(Exchange(question(), 3, number, 100.0, timeout, lambda *_: None))
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
    assert repr(queue) == "<InFlightRequests [<Exchange FindCoordinator v3 #0>]>"


def test_deadlines():
    queue = filled(5, 2, 3)
    assert queue.next_deadline() == 102
    assert queue.first_expired(101.9) is None
    assert queue.first_expired(103.5).correlation_id == 1
    queue.extend_deadlines(10)
    assert queue.next_deadline() == 112
    assert [exchange.correlation_id for exchange in queue.take_all()] == [0, 1, 2]
    assert queue.next_deadline() == math.inf
