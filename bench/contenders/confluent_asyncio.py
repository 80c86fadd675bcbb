# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's AIOProducer as it comes: it hands records on by the thousand, or when none came for a second.

There are two of it because the second of waiting changes the rate by five orders of magnitude, and the number of
records of the first run follows from a guess.
"""

from __future__ import annotations

from bench import aio
from bench.contenders.confluent import options
from bench.worker import Answer, PythonContender, Task, work

_MODULE = "confluent_asyncio"
_PACKAGES = ("confluent_kafka",)
# It has no back-pressure: records for which its queue has no room fail. So there is room for all.
_ROOM = {"queue.buffering.max.messages": 10_000_000, "queue.buffering.max.kbytes": 2_000_000}

CONTENDERS = [
    PythonContender(
        "confluent-asyncio",
        "confluent-kafka AIOProducer, every future awaited",
        100_000,
        module=_MODULE,
        packages=_PACKAGES,
        variant="asyncio",
    ),
    PythonContender(
        "confluent-asyncio-waits",
        "confluent-kafka AIOProducer",
        1,
        module=_MODULE,
        packages=_PACKAGES,
        variant="asyncio",
    ),
]


async def produce(task: Task) -> Answer:
    from confluent_kafka.aio import AIOProducer

    async with AIOProducer({**options(task.settings), **_ROOM}) as producer:

        async def send_and_wait(topic: str, value: bytes) -> object:
            return await (await producer.produce(topic, value))

        return await aio.run(task, producer.produce, send_and_wait)


if __name__ == "__main__":
    work(aio.variants(produce))
