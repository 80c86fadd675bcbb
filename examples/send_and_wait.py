# SPDX-License-Identifier: Apache-2.0
"""Send a few records and print the partition and offset of each: python examples/send_and_wait.py [HOST:PORT [TOPIC]]

`penstock broker start` starts a Kafka for this example.
"""

import sys

from penstock import Producer


def main(servers: str = "localhost:9092", topic: str = "readings") -> None:
    with Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
        # send() returns at once; records of the same key stay in order, in one partition.
        deliveries = [
            producer.send(topic, b"level %d" % level, key=b"weir-7", headers=[("unit", b"cm")])
            for level in (212, 215, 219)
        ]
        for delivery in deliveries:
            metadata = delivery.result(timeout=30)
            print(f"partition {metadata.partition}, offset {metadata.offset}")


if __name__ == "__main__":
    main(*sys.argv[1:])
