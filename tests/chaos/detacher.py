# SPDX-License-Identifier: Apache-2.0
"""A process that opens a transaction, detaches it, and waits to be killed.

Run as a module, `chaos.detacher SERVERS TOPIC TRANSACTIONAL_ID TIMEOUT_MS RECORDS`. Says the handle as a line of JSON.
For each id that comes on standard input it opens and detaches another transaction with the same producer. When the
input ends, the one who started it is gone, and so it goes too.
"""

from __future__ import annotations

import sys

from penstock import Producer


def open_and_detach(producer: Producer, transactional_id: str, topic: str, records: int) -> None:
    """One transaction, with its records spread over three partitions; its handle is said."""
    producer.init_transactions(transactional_id)
    producer.begin_transaction()
    for number in range(records):
        producer.send(topic, b"%s %d" % (transactional_id.encode(), number), partition=number % 3)
    handle = producer.detach_transaction()
    sys.stdout.write(handle.to_json() + "\n")
    sys.stdout.flush()


def main(servers: str, topic: str, transactional_id: str, timeout_ms: str, records: str) -> None:
    """Do what the text above says."""
    options = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    with Producer(bootstrap_servers=servers, **options) as producer:
        open_and_detach(producer, transactional_id, topic, int(records))
        for line in sys.stdin:
            open_and_detach(producer, line.strip(), topic, int(records))


if __name__ == "__main__":
    main(*sys.argv[1:])
