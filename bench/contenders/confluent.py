# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka: `produce` with a delivery callback for every record, as its documentation shows it."""

from __future__ import annotations

import importlib.util
import time
from itertools import cycle, islice

from bench.model import BenchError, Job, Timing
from bench.worker import Task, python_command, read_answer, work

POLL_EVERY = 1000  # records; callbacks run in poll


class _ProduceWithCallback:
    name = "confluent"
    title = "confluent-kafka produce + callback"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("confluent_kafka") else "confluent-kafka is not installed"

    def command(self, job: Job) -> list[str]:
        return python_command("bench.contenders.confluent", job)

    def read_timing(self, job: Job, output: str) -> Timing:
        del job
        return read_answer(output)


CONTENDERS = [_ProduceWithCallback()]


def produce(task: Task) -> float:
    """Send with a callback for each record; seconds until the last callback."""
    from confluent_kafka import Producer

    acknowledged = failed = 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal acknowledged, failed
        del message
        if error is None:
            acknowledged += 1
        else:
            failed += 1

    producer = Producer(dict(task.settings))
    send, poll, topic = producer.produce, producer.poll, task.topic
    values = cycle(task.values)
    started = time.perf_counter()
    for sent in range(0, task.records, POLL_EVERY):
        for value in islice(values, min(POLL_EVERY, task.records - sent)):
            while True:
                try:
                    send(topic, value, on_delivery=on_delivery)
                    break
                except BufferError:  # its queue is full: let it work
                    poll(0.01)
        poll(0)
    producer.flush()
    seconds = time.perf_counter() - started
    if failed or acknowledged != task.records:
        raise BenchError(f"{acknowledged} of {task.records} records acknowledged, {failed} failed")
    return seconds


if __name__ == "__main__":
    work({"": produce})
