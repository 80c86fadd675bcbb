# SPDX-License-Identifier: Apache-2.0
"""Eight threads, one request in flight, a broker that goes away twice: order is kept and nothing is missing."""

from __future__ import annotations

import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable

import pytest
from fix_broker import consume_from
from fix_patience import wait_until

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.errors import KafkaError

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

THREADS = 8
RECORDS = 1_000_000 if os.environ.get("PENSTOCK_CHAOS") else 100_000
PARTITIONS = 6
# Each part is sent when its gate opens: before the trouble; while the broker is being stopped; while it is down; while
# it is frozen, just before it is killed; while it is down again.
PARTS = 5
FROZEN = 3


class Senders:
    """The threads, held back by a gate before each part of their records."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.gates = [threading.Event() for _ in range(PARTS)]
        self.busy = [threading.Event() for _ in range(PARTS)]  # somebody is in the middle of that part
        self.all_is_well = threading.Event()  # what was sent before the broker is frozen is acknowledged
        self.errors: list[BaseException] = []
        self._acknowledged = 0  # written by the I/O thread
        self._producer = producer
        self._topic = topic
        self._threads = [
            threading.Thread(target=self._run, args=[number], daemon=True) for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, thread: int) -> None:
        share = RECORDS // THREADS
        part = share // PARTS
        try:
            for number in range(share):
                if number % part == 0 and number // part < PARTS:
                    self.gates[number // part].wait()
                if number % part == part // 10:
                    self.busy[min(number // part, PARTS - 1)].set()
                key = b"%d" % (number % 29)
                self._producer.send(
                    self._topic, b"%d:%d" % (thread, number), key, on_delivery=self._on_delivery
                )
        except BaseException as error:
            self.errors.append(error)

    def _on_delivery(self, metadata: object, error: KafkaError | None) -> None:
        if error is not None:
            self.errors.append(error)
        self._acknowledged += 1
        if self._acknowledged == RECORDS // THREADS // PARTS * FROZEN * THREADS:
            self.all_is_well.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def test_order_survives_restarts_of_the_broker(breakable: DevCluster, note: Callable[[str], None]) -> None:
    topic = f"order-{uuid.uuid4().hex[:12]}"
    breakable.create_topic(topic, PARTITIONS)
    # Little memory, so that senders have to wait for the broker: what they send during an outage stays to be sent.
    options = {
        "buffer_memory": 1_000_000,
        "max_in_flight_requests_per_connection": 1,
        "request_timeout_ms": 10_000,
    }
    with Producer(bootstrap_servers=breakable.bootstrap_servers, **options) as producer:
        senders = Senders(producer, topic)
        senders.gates[0].set()
        senders.gates[1].set()
        assert senders.busy[1].wait(60)
        breakable.stop_node(1)
        senders.gates[2].set()
        breakable.start_node(1)
        # Frozen first, so that what is in flight when it dies was certainly not written: sent again at the wrong place,
        # it would be out of order.
        assert senders.all_is_well.wait(60)
        breakable.pause(1)
        senders.gates[FROZEN].set()
        assert senders.busy[FROZEN].wait(60)
        wait_until(
            lambda: producer.metrics()["producer-metrics"]["requests-in-flight"] >= 1,
            "nothing was sent to the frozen broker",
        )
        breakable.kill(1)
        senders.gates[4].set()
        breakable.start_node(1)
        senders.join()
        producer.flush(60)
        retries = producer.metrics()["producer-metrics"]["record-retry-total"]
    assert senders.errors == []
    assert retries > 0, "the restarts did not disturb anything: this test proves nothing"

    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by partition and thread
    total = 0
    for record in consume_from(breakable, topic):
        thread, number = (record.value or b"").split(b":")
        found[record.partition, int(thread)].append(int(number))
        total += 1
    # Without idempotence a batch may be in the log twice; what counts is where each record is first.
    firsts = {place: list(dict.fromkeys(numbers)) for place, numbers in found.items()}
    out_of_order = [place for place, numbers in firsts.items() if numbers != sorted(numbers)]
    assert out_of_order == []
    for thread in range(THREADS):
        arrived = sorted(
            number for (_, owner), numbers in firsts.items() if owner == thread for number in numbers
        )
        assert arrived == list(range(RECORDS // THREADS))
    note(f"{RECORDS:,} records, {total - RECORDS:,} twice, {retries:,} sent again")
