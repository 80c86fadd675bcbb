# SPDX-License-Identifier: Apache-2.0
"""aiokafka as a program for asyncio uses it: `await send` and await the futures, or `await send_and_wait`."""

from __future__ import annotations

from bench import aio
from bench.contenders.aiokafka_send import options
from bench.worker import Answer, PythonContender, Task, work

_MODULE = "aiokafka_asyncio"

CONTENDERS = [
    PythonContender(
        "aiokafka-asyncio",
        "aiokafka send, every future awaited",
        100_000,
        module=_MODULE,
        packages=("aiokafka",),
        variant="asyncio",
    ),
    PythonContender(
        "aiokafka-uvloop",
        "aiokafka send, on uvloop",
        100_000,
        module=_MODULE,
        packages=("aiokafka", "uvloop"),
        variant="uvloop",
    ),
]


async def produce(task: Task) -> Answer:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(**options(task.settings)) as producer:
        return await aio.run(task, producer.send, producer.send_and_wait)


if __name__ == "__main__":
    work(aio.variants(produce))
