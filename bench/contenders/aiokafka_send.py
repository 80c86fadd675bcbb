# SPDX-License-Identifier: Apache-2.0
"""aiokafka: `send` in one coroutine, with every future kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from itertools import cycle, islice
from typing import Any

from bench.contenders.kafka_python import options as keywords
from bench.pacing import Latencies
from bench.worker import Answer, PythonContender, Task, clock_stopped, expect, work

CONTENDERS = [
    PythonContender("aiokafka", "aiokafka send", 130_000, module="aiokafka_send", packages=("aiokafka",)),
]


def options(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings as keywords; the size of a batch has another name here."""
    names = {"batch_size": "max_batch_size"}
    return {names.get(name, name): value for name, value in keywords(settings).items()}


async def produce(task: Task) -> Answer:
    """Send, keep every future, flush; look at them when the clock has stopped."""
    from aiokafka import AIOKafkaProducer

    kept: list[Any] = []
    producer = AIOKafkaProducer(**options(task.settings))
    await producer.start()
    try:
        send, keep, topic = producer.send, kept.append, task.topic
        await producer.send_and_wait(topic, task.values[0])
        started = time.perf_counter()
        for value in islice(cycle(task.values), task.records):
            keep(await send(topic, value))
        await producer.flush()
        answer = clock_stopped(started)
    finally:
        await producer.stop()
    expect(sum(future.done() and future.exception() is None for future in kept), task.records)
    return answer


async def latency(task: Task) -> Answer:
    """Send at a fixed rate; callbacks of the futures stop each record's clock."""
    from aiokafka import AIOKafkaProducer

    latencies = Latencies(task)

    def arrived(number: int, started: float, future: Any) -> None:
        latencies.ended(number, started, future.exception())

    producer = AIOKafkaProducer(**options(task.settings))
    await producer.start()
    try:
        first, began = 0.0, time.perf_counter()
        for number in range(-task.warm_up, task.records):
            wait = latencies.due(began, number) - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            started = time.perf_counter()
            if number == 0:
                first = started
            future = await producer.send(task.topic, task.values[number % len(task.values)])
            future.add_done_callback(partial(arrived, number, started))
        await producer.flush()
        await asyncio.sleep(0)  # callbacks of futures run in the loop's next turn
        answer = clock_stopped(first, task.warm_up, latencies.seconds)
    finally:
        await producer.stop()
    latencies.check()
    return answer


if __name__ == "__main__":
    work({"": lambda task: asyncio.run(produce(task)), "latency": lambda task: asyncio.run(latency(task))})
