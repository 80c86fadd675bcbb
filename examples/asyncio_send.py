# SPDX-License-Identifier: Apache-2.0
"""Await deliveries in an asyncio program: python examples/asyncio_send.py [HOST:PORT [TOPIC]]

`send` returns when the record is accepted; it waits only if there is no memory, or the topic is not known yet. Outcomes
are awaited when all records are on their way.
"""

import asyncio
import sys

from penstock import AsyncProducer


async def main(servers: str = "localhost:9092", topic: str = "readings") -> None:
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        deliveries = [await producer.send(topic, b"drop %d" % number) for number in range(1000)]
        found = [await delivery for delivery in deliveries]
    print(f"{len(found)} records, the last at offset {found[-1].offset} of partition {found[-1].partition}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
