# SPDX-License-Identifier: Apache-2.0
"""Penstock's AsyncProducer: `await send` and await the Deliveries, or `await send_and_wait`."""

from __future__ import annotations

from bench import aio
from bench.worker import Answer, PythonContender, Task, work

_MODULE = "penstock_asyncio"

CONTENDERS = [
    PythonContender(
        "penstock-asyncio",
        "Penstock await send, every Delivery awaited",
        800_000,
        module=_MODULE,
        variant="asyncio",
    ),
    PythonContender(
        "penstock-uvloop",
        "Penstock await send, on uvloop",
        800_000,
        module=_MODULE,
        packages=("uvloop",),
        variant="uvloop",
    ),
]


async def produce(task: Task) -> Answer:
    from penstock import AsyncProducer

    async with AsyncProducer(task.settings) as producer:
        return await aio.run(task, producer.send, producer.send_and_wait)


if __name__ == "__main__":
    work(aio.variants(produce))
