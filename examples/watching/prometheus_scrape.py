# SPDX-License-Identifier: Apache-2.0
"""Sends some records a second, and shows the producer's metrics to Prometheus.

    python examples/watching/prometheus_scrape.py localhost:9092 orders 8000

Needs prometheus-client: pip install prometheus-client.
"""

from __future__ import annotations

import sys
import time

from prometheus_client import start_http_server

from penstock import Producer
from penstock.watching.prometheus import collector


def main(servers: str, topic: str, port: int) -> None:
    """Send until Ctrl-C."""
    server, _ = start_http_server(port, addr="127.0.0.1")
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
    with Producer(bootstrap_servers=servers, linger_ms=5, metric_reporters=[collector]) as producer:
        while True:
            for number in range(100):
                producer.send(topic, f"order {number}".encode(), on_delivery=on_delivery)
            time.sleep(0.1)


def on_delivery(_metadata: object, error: Exception | None) -> None:
    if error is not None:
        print(error, file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except KeyboardInterrupt:
        pass
