# SPDX-License-Identifier: Apache-2.0
"""Penstock's `send`, with every Delivery kept.

Two ways to learn the outcomes. "penstock" looks at the Delivery of every record while it sends, as an application that
keeps no more than it must. "penstock-flush" keeps them all and waits once, in `flush`: what `send` itself can do. That
nothing was lost is then known from the count at the broker.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import cycle, islice
from typing import TYPE_CHECKING

from bench.model import BenchError, Job, Timing
from bench.worker import Task, python_command, read_answer, work

if TYPE_CHECKING:
    from penstock import Delivery

CHUNK = 1000  # records between two looks at the oldest Deliveries


class _Send:
    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title

    def missing(self) -> str | None:
        return None

    def command(self, job: Job) -> list[str]:
        return python_command("bench.contenders.penstock_send", job, self.name)

    def read_timing(self, job: Job, output: str) -> Timing:
        del job
        return read_answer(output)


CONTENDERS = [
    _Send("penstock", "Penstock send, every Delivery checked"),
    _Send("penstock-flush", "Penstock send, Deliveries kept, one flush"),
]


def send_and_check(task: Task) -> float:
    """Send, and look at each Delivery as soon as the oldest ones are done; seconds."""
    from penstock import Producer

    deliveries: deque[Delivery] = deque()
    values = cycle(task.values)
    with Producer(task.settings) as producer:
        send, keep, topic = producer.send, deliveries.append, task.topic
        started = time.perf_counter()
        for sent in range(0, task.records, CHUNK):
            for value in islice(values, min(CHUNK, task.records - sent)):
                keep(send(topic, value))
            while deliveries and deliveries[0].done():
                _check(deliveries.popleft())
        producer.flush()
        while deliveries:
            _check(deliveries.popleft())
        return time.perf_counter() - started


def send_and_flush(task: Task) -> float:
    """Send, keep every Delivery, flush; seconds."""
    from penstock import Producer

    deliveries: list[Delivery] = []
    with Producer(task.settings) as producer:
        send, keep, topic = producer.send, deliveries.append, task.topic
        started = time.perf_counter()
        for value in islice(cycle(task.values), task.records):
            keep(send(topic, value))
        producer.flush()
        seconds = time.perf_counter() - started
    # Not each of them: that would be CPU time of the process outside the time that is measured.
    _check(deliveries[0])
    _check(deliveries[-1])
    return seconds


def _check(delivery: Delivery) -> None:
    error = delivery.exception(0)
    if error is not None:
        raise BenchError("a record was not acknowledged") from error


if __name__ == "__main__":
    work({"penstock": send_and_check, "penstock-flush": send_and_flush})
