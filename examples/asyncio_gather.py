# SPDX-License-Identifier: Apache-2.0
"""Await deliveries in an asyncio program: python examples/asyncio_gather.py [HOST:PORT [TOPIC]]

send() itself returns at once if there is memory and the topic is known. So the program first asks the cluster for the
topic, on another thread, and the event loop is not blocked.
"""

import asyncio
import sys

from penstock import Delivery, Producer, RecordMetadata


async def outcome(delivery: Delivery) -> RecordMetadata:
    return await delivery


async def send_all(producer: Producer, topic: str) -> None:
    await asyncio.to_thread(producer.partitions_for, topic)
    deliveries = [producer.send(topic, b"drop %d" % number) for number in range(1000)]
    found = await asyncio.gather(*map(outcome, deliveries))
    print(f"{len(found)} records, the last at offset {found[-1].offset} of partition {found[-1].partition}")


def main(servers: str = "localhost:9092", topic: str = "readings") -> None:
    with Producer(bootstrap_servers=servers) as producer:
        asyncio.run(send_all(producer, topic))


if __name__ == "__main__":
    main(*sys.argv[1:])
