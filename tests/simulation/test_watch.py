# SPDX-License-Identifier: Apache-2.0
"""What the simulator watches is seen also where the producer is compiled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.producer.batch._delivery_cy import BatchResult, Delivery
from simulation.watch import watched_order


def told_in_order(*numbers: int) -> list[str]:
    """What is wrong with the order of the callbacks of one batch; the records are told in the order of `numbers`."""
    problems: list[str] = []
    sim: Any = SimpleNamespace(told=[], violate=problems.append)
    result = BatchResult("orders", 0)
    for index, number in enumerate(numbers):
        entry = SimpleNamespace(number=number, sender=1)
        result.callbacks.append((Delivery(result, index), lambda *_, entry=entry: sim.told.append(entry)))
    with watched_order(sim):
        result.settle(40)
    assert len(sim.told) == len(numbers)
    return problems


def test_callbacks_in_the_order_of_the_records_are_right():
    assert told_in_order(3, 5, 9) == []


def test_a_callback_out_of_order_is_seen():
    [problem] = told_in_order(3, 9, 5)
    assert "came after that of record 9 in its batch" in problem
