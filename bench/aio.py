# SPDX-License-Identifier: Apache-2.0
"""What the contenders for asyncio do, the same for all: only the calls of their clients differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import cycle, islice
from typing import Any

from bench.worker import Answer, Task, clock_stopped, expect

Send = Callable[[str, bytes], Coroutine[Any, Any, Awaitable[object]]]
SendAndWait = Callable[[str, bytes], Coroutine[Any, Any, object]]


def variants(produce: Callable[[Task], Coroutine[Any, Any, Answer]]) -> dict[str, Callable[[Task], Answer]]:
    """A contender's program on the loop of asyncio, and on that of uvloop."""

    def on_uvloop(task: Task) -> Answer:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(produce(task))

    return {"asyncio": lambda task: asyncio.run(produce(task)), "uvloop": on_uvloop}


async def run(task: Task, send: Send, send_and_wait: SendAndWait) -> Answer:
    """Do what the case asks for, after one record that does not count.

    Args:
        send: accepts a record, and gives what is to be awaited for its outcome.
        send_and_wait: does both.
    """
    await send_and_wait(task.topic, task.values[0])
    if task.tasks:
        return await _wait_for_each(task, send_and_wait)
    return await _send_all(task, send)


async def _send_all(task: Task, send: Send) -> Answer:
    kept: list[Awaitable[object]] = []
    keep, topic = kept.append, task.topic
    started = time.perf_counter()
    for value in islice(cycle(task.values), task.records):
        keep(await send(topic, value))
    for outcome in kept:  # raises where a record failed
        await outcome
    answer = clock_stopped(started)
    expect(len(kept), task.records)
    return answer


async def _wait_for_each(task: Task, send_and_wait: SendAndWait) -> Answer:
    latencies: list[float] = []

    async def send_share(records: int) -> None:
        topic, keep, clock = task.topic, latencies.append, time.perf_counter
        for value in islice(cycle(task.values), records):
            began = clock()
            await send_and_wait(topic, value)
            keep(clock() - began)

    share, rest = divmod(task.records, task.tasks)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(task.tasks):
            group.create_task(send_share(share + (number < rest)))
    answer = clock_stopped(started, latencies=latencies)
    expect(len(latencies), task.records)
    return answer
