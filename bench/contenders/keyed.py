# SPDX-License-Identifier: Apache-2.0
"""Records with keys, whose partitions follow from them: Penstock with every Delivery kept, confluent-kafka's callbacks.

CPU is that of sending. The start is left out: it would be a larger part of the price of a record, the fewer records are
sent in the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import TYPE_CHECKING

from bench.contenders.confluent import POLL_EVERY, options
from bench.worker import FIRST_SECONDS, Answer, PythonContender, Task, clock_stopped, expect, work

if TYPE_CHECKING:
    from penstock import Delivery

KEYS = 1 << 17  # ten for each of the most partitions
_GUESS = 300_000  # with so many partitions, nobody is taken to be faster before it has shown it

CONTENDERS = [
    PythonContender("penstock-keyed", "Penstock send with a key", _GUESS, module="keyed", variant="penstock"),
    PythonContender(
        "confluent-keyed",
        "confluent-kafka produce with a key + callback",
        _GUESS,
        module="keyed",
        packages=("confluent_kafka",),
        variant="confluent",
    ),
]


def pairs(task: Task) -> Iterator[tuple[bytes, bytes]]:
    """Values and keys without end."""
    return zip(cycle(task.values), cycle([b"%07d" % number for number in range(KEYS)]), strict=False)


def timed(send: Callable[[], None]) -> Answer:
    """Do it; what it took alone."""
    started, used = time.perf_counter(), time.process_time()
    send()
    answer = clock_stopped(started)
    return answer._replace(cpu_seconds=answer.cpu_seconds - used)


def send_and_keep(task: Task) -> Answer:
    """Send, keep every Delivery, flush; look at them when the clock has stopped."""
    from penstock import Producer

    kept: list[Delivery] = []
    records = pairs(task)
    with Producer(task.settings) as producer:
        send, keep, topic = producer.send, kept.append, task.topic

        def send_all() -> None:
            for value, key in islice(records, task.records):
                keep(send(topic, value, key))
            producer.flush()

        send(topic, *next(records)).result(FIRST_SECONDS)
        answer = timed(send_all)
    expect(sum(delivery.exception(0) is None for delivery in kept), task.records)
    return answer


def produce(task: Task) -> Answer:
    """Send with a callback for each record, until the last callback."""
    from confluent_kafka import Producer

    acknowledged = failed = 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal acknowledged, failed
        del message
        if error is None:
            acknowledged += 1
        else:
            failed += 1

    records = pairs(task)
    producer = Producer(options(task.settings))
    send, poll, topic = producer.produce, producer.poll, task.topic

    def send_all() -> None:
        for sent in range(0, task.records, POLL_EVERY):
            for value, key in islice(records, min(POLL_EVERY, task.records - sent)):
                while True:
                    try:
                        send(topic, value, key, on_delivery=on_delivery)
                        break
                    except BufferError:  # its queue is full: let it work
                        poll(0.01)
            poll(0)
        producer.flush()

    send(topic, *next(records), on_delivery=on_delivery)
    producer.flush()
    answer = timed(send_all)
    expect(acknowledged, task.records + 1, failed)
    return answer


if __name__ == "__main__":
    work({"penstock": send_and_keep, "confluent": produce})
