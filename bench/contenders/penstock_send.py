# SPDX-License-Identifier: Apache-2.0
"""Penstock's `send`, with every Delivery kept.

Two ways to learn the outcomes. "penstock" keeps them all and waits once, in `flush`; each Delivery is looked at after
the clock has stopped. "penstock-checked" looks at each of them while it sends, as an application that keeps no more
than it must. "penstock-pure" is the first on the Python sources, as where there is no compiler.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

from bench.model import BenchError
from bench.pacing import Latencies
from bench.worker import FIRST_SECONDS, Answer, PythonContender, Task, clock_stopped, in_threads, work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock import Delivery, RecordMetadata
    from penstock.errors import KafkaError

CHUNK = 1000  # records between two looks at the oldest Deliveries
_MODULE = "penstock_send"

CONTENDERS = [
    PythonContender(
        "penstock", "Penstock send, every Delivery kept", 2_000_000, module=_MODULE, variant="keep"
    ),
    PythonContender(
        "penstock-checked",
        "Penstock send, every Delivery checked",
        1_000_000,
        module=_MODULE,
        variant="check",
    ),
    PythonContender(
        "penstock-pure",
        "Penstock send, no compiled modules",
        100_000,
        module=_MODULE,
        variant="keep",
        environment={"PENSTOCK_PURE": "1"},
    ),
]


def send_and_keep(task: Task) -> Answer:
    """Send, keep every Delivery, flush; look at them when the clock has stopped."""
    from penstock import Producer

    kept: list[list[Delivery]] = []
    with Producer(task.settings) as producer:
        send, topic = producer.send, task.topic
        send(topic, task.values[0]).result(FIRST_SECONDS)

        def send_share(records: int) -> None:
            deliveries: list[Delivery] = []
            kept.append(deliveries)
            keep = deliveries.append
            for value in islice(cycle(task.values), records):
                keep(send(topic, value))

        started = time.perf_counter()
        in_threads(task, send_share)
        producer.flush()
        answer = clock_stopped(started)
    if sum(map(len, kept)) != task.records:
        raise BenchError("a Delivery is missing")
    for deliveries in kept:
        _check_all(deliveries)
    return answer


def send_and_check(task: Task) -> Answer:
    """Send, and look at each Delivery as soon as the oldest ones are done."""
    from penstock import Producer

    with Producer(task.settings) as producer:
        send, topic = producer.send, task.topic
        send(topic, task.values[0]).result(FIRST_SECONDS)

        def send_share(records: int) -> None:
            deliveries: deque[Delivery] = deque()
            keep, values = deliveries.append, cycle(task.values)
            for sent in range(0, records, CHUNK):
                for value in islice(values, min(CHUNK, records - sent)):
                    keep(send(topic, value))
                while deliveries and deliveries[0].done():
                    _check_all((deliveries.popleft(),))
            producer.flush()
            _check_all(deliveries)

        started = time.perf_counter()
        in_threads(task, send_share)
        return clock_stopped(started)


def _check_all(deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        error = delivery.exception(0)
        if error is not None:
            raise BenchError("a record was not acknowledged") from error


def latency(task: Task) -> Answer:
    """Send at a fixed rate; on_delivery stops each record's clock."""
    from penstock import Producer

    latencies = Latencies(task)

    def arrived(number: int, started: float, metadata: RecordMetadata, error: KafkaError | None) -> None:
        del metadata
        latencies.ended(number, started, error)

    with Producer(task.settings) as producer:

        def send(value: bytes, number: int, started: float) -> None:
            producer.send(task.topic, value, on_delivery=partial(arrived, number, started))

        first = latencies.send_all(send)
        producer.flush()
        answer = clock_stopped(first, task.warm_up, latencies.seconds)
    latencies.check()
    return answer


if __name__ == "__main__":
    work({"keep": send_and_keep, "check": send_and_check, "latency": latency})
