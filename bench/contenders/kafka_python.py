# SPDX-License-Identifier: Apache-2.0
"""kafka-python: `send`, with every future kept."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import cycle, islice
from typing import Any

from bench.pacing import Latencies
from bench.worker import FIRST_SECONDS, Answer, PythonContender, Task, clock_stopped, expect, in_threads, work

CONTENDERS = [
    PythonContender("kafka-python", "kafka-python send", 50_000, module="kafka_python", packages=("kafka",)),
]


def options(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings as keywords, with numbers and truth values of Python."""
    found: dict[str, Any] = {name.replace(".", "_"): value for name, value in settings.items()}
    for name, value in found.items():
        if value in ("true", "false"):
            found[name] = value == "true"
        elif value.isdigit():
            found[name] = int(value)
    return found


def produce(task: Task) -> Answer:
    """Send, keep every future, flush; look at them when the clock has stopped."""
    from kafka import KafkaProducer

    kept: list[Any] = []
    producer = KafkaProducer(**options(task.settings))
    send, keep, topic = producer.send, kept.append, task.topic

    def send_share(records: int) -> None:
        for value in islice(cycle(task.values), records):
            keep(send(topic, value))

    send(topic, task.values[0]).get(FIRST_SECONDS)
    started = time.perf_counter()
    in_threads(task, send_share)
    producer.flush()
    answer = clock_stopped(started)
    producer.close()
    expect(sum(future.succeeded() for future in kept), task.records)
    return answer


def latency(task: Task) -> Answer:
    """Send at a fixed rate; callbacks of the futures stop each record's clock."""
    from kafka import KafkaProducer

    latencies = Latencies(task)
    producer = KafkaProducer(**options(task.settings))

    def arrived(number: int, started: float, metadata: object) -> None:
        del metadata
        latencies.ended(number, started)

    def failed(number: int, started: float, error: object) -> None:
        latencies.ended(number, started, error)

    def send(value: bytes, number: int, started: float) -> None:
        future = producer.send(task.topic, value)
        future.add_callback(partial(arrived, number, started))
        future.add_errback(partial(failed, number, started))

    first = latencies.send_all(send)
    producer.flush()
    answer = clock_stopped(first, task.warm_up, latencies.seconds)
    producer.close()
    latencies.check()
    return answer


if __name__ == "__main__":
    work({"": produce, "latency": latency})
