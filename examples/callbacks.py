# SPDX-License-Identifier: Apache-2.0
"""Send many records and print only those that failed: python examples/callbacks.py [HOST:PORT [TOPIC]]

A serializer makes the values. If the brokers cannot keep up, send() waits, and raises after max.block.ms: memory is
always bounded.
"""

import json
import sys

from penstock import Producer, RecordMetadata
from penstock.errors import BufferExhaustedError

COUNT = 10_000


def on_delivery(metadata: RecordMetadata, error: Exception | None) -> None:
    # Runs on the producer's own thread: keep it short, and never block in it.
    if error is not None:
        print(f"not delivered: {error}", file=sys.stderr)


def main(servers: str = "localhost:9092", topic: str = "readings") -> None:
    def to_json(value: object) -> bytes:
        return json.dumps(value).encode()

    config = {"bootstrap.servers": servers, "linger.ms": 20, "max.block.ms": 10_000}
    with Producer(config, value_serializer=to_json) as producer:
        for number in range(COUNT):
            try:
                producer.send(topic, {"number": number}, key=b"%d" % (number % 100), on_delivery=on_delivery)
            except BufferExhaustedError as error:
                print(f"the brokers do not keep up: {error}", file=sys.stderr)
                break
        producer.flush(timeout=60)
        counters = producer.metrics()["producer-metrics"]
        print(f"{counters['record-send-total']} sent, {counters['record-error-total']} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
