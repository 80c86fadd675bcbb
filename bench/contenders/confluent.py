# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka: `produce` with a delivery callback for every record, as its documentation shows it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from functools import partial
from itertools import cycle, islice

from bench.pacing import Latencies
from bench.worker import Answer, PythonContender, Task, clock_stopped, expect, in_threads, work

POLL_EVERY = 1000  # records; callbacks run in poll
POLL_SECONDS = 0.1

CONTENDERS = [
    PythonContender(
        "confluent",
        "confluent-kafka produce + callback",
        700_000,
        module="confluent",
        packages=("confluent_kafka",),
    ),
]


def options(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings in its words: one name for the level of every codec, a file of certificates, user and password."""
    levels = {f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
    names = dict.fromkeys(levels, "compression.level") | {"ssl.truststore.location": "ssl.ca.location"}
    own = {names.get(name, name): value for name, value in settings.items() if name != "ssl.truststore.type"}
    jaas = own.pop("sasl.jaas.config", None)
    if jaas is not None:
        words = dict(re.findall(r'(\w+)="([^"]*)"', jaas))
        own |= {"sasl.username": words["username"], "sasl.password": words["password"]}
    return own


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

    producer = Producer(options(task.settings))
    send, poll, topic = producer.produce, producer.poll, task.topic

    def send_share(records: int) -> None:
        values = cycle(task.values)
        for sent in range(0, records, POLL_EVERY):
            for value in islice(values, min(POLL_EVERY, records - sent)):
                while True:
                    try:
                        send(topic, value, on_delivery=on_delivery)
                        break
                    except BufferError:  # its queue is full: let it work
                        poll(0.01)
            poll(0)

    send(topic, task.values[0], on_delivery=on_delivery)
    producer.flush()
    started = time.perf_counter()
    in_threads(task, send_share)
    producer.flush()
    answer = clock_stopped(started)
    # With several threads that poll, `+= 1` may miss one; the count at the broker does not.
    if task.threads == 1:
        expect(acknowledged, task.records + 1, failed)
    return answer


def latency(task: Task) -> Answer:
    """Send at a fixed rate, while another thread waits for callbacks."""
    from confluent_kafka import Producer

    latencies = Latencies(task)
    producer = Producer(options(task.settings))
    over = threading.Event()

    def arrived(number: int, started: float, error: object, message: object) -> None:
        del message
        latencies.ended(number, started, error)

    def wait_for_callbacks() -> None:
        while not over.is_set():
            producer.poll(POLL_SECONDS)

    def send(value: bytes, number: int, started: float) -> None:
        producer.produce(task.topic, value, on_delivery=partial(arrived, number, started))

    thread = threading.Thread(target=wait_for_callbacks)
    thread.start()
    try:
        first = latencies.send_all(send)
        producer.flush()
    finally:
        over.set()
        thread.join()
    answer = clock_stopped(first, task.warm_up, latencies.seconds)
    latencies.check()
    return answer


if __name__ == "__main__":
    work({"": produce, "latency": latency})
