# SPDX-License-Identifier: Apache-2.0
"""The broker is gone: memory stays bounded, callers are told, and what was accepted arrives once it is back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fix_broker import consume_from

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.errors import KafkaError, KafkaTimeoutError, ProducerClosedError

pytestmark = [pytest.mark.broker, pytest.mark.slow]

FLOOD = Path(__file__).with_name("flood.py")
BUFFER_MEMORY = 33_554_432  # the default
MAX_BLOCK_MS = 2000


@pytest.fixture
def topic(breakable: DevCluster) -> str:
    name = f"outage-{uuid.uuid4().hex[:12]}"
    breakable.create_topic(name, 3)
    return name


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_memory_is_bounded_and_accepted_records_arrive_when_the_broker_is_back(
    breakable: DevCluster, topic: str, note: Callable[[str], None]
) -> None:
    command = [sys.executable, str(FLOOD), breakable.bootstrap_servers, topic, str(MAX_BLOCK_MS)]
    with started(command) as flood:
        assert flood.stdin is not None
        assert flood.stdout is not None
        assert flood.stdout.readline() == "sending\n"
        breakable.kill(1)
        refused = json.loads(flood.stdout.readline())
        breakable.start_node(1)
        flood.stdin.write("back\n")
        flood.stdin.flush()
        settled = json.loads(flood.stdout.readline())
        assert flood.wait(20) == 0

    # A thread may have waited a little while the broker was still there, and then not again from the start.
    assert len(refused["waits"]) == 16
    assert all(MAX_BLOCK_MS / 1000 - 0.01 <= wait < MAX_BLOCK_MS / 1000 + 1.5 for wait in refused["waits"])
    limit = BUFFER_MEMORY + 40_000_000
    assert refused["peak"] - refused["idle"] < limit
    assert settled["peak"] - settled["idle"] < limit

    assert settled["errors"] == {}
    assert settled["acknowledged"] == sum(settled["accepted"])
    accepted = {
        (thread, number) for thread, count in enumerate(settled["accepted"]) for number in range(count)
    }
    found: Counter[tuple[int, int]] = Counter()
    for record in consume_from(breakable, topic):
        thread, number, _ = (record.value or b"").split(b":")
        found[int(thread), int(number)] += 1
    assert found.keys() == accepted
    above = (settled["peak"] - settled["idle"]) / 1e6
    note(
        f"{len(accepted):,} records, {found.total() - len(found):,} twice, {above:.0f} MB above the idle interpreter"
    )


def test_close_without_time_fails_everything_at_once(breakable: DevCluster, topic: str) -> None:
    producer = Producer(
        bootstrap_servers=breakable.bootstrap_servers, buffer_memory=2_000_000, max_block_ms=60_000
    )
    producer.send(topic, b"there").result(10)
    breakable.kill(1)
    told: list[KafkaError | None] = []
    deliveries = [
        producer.send(topic, b"x" * 1000, on_delivery=lambda _, error: told.append(error))
        for _ in range(1000)
    ]
    refusals: list[BaseException] = []

    def send_until_refused() -> None:
        try:
            while True:
                deliveries.append(producer.send(topic, b"y" * 1000))
        except BaseException as error:
            refusals.append(error)

    threads = [threading.Thread(target=send_until_refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    with pytest.raises(KafkaTimeoutError):
        producer.flush(1)  # by then the threads have used up the memory and wait

    before = time.monotonic()
    producer.close(timeout=0)
    assert time.monotonic() - before < 1
    for thread in threads:
        thread.join(1)
        assert not thread.is_alive()
    assert all(delivery.done() for delivery in deliveries)
    assert {type(delivery.exception(0)) for delivery in deliveries} == {ProducerClosedError}
    assert [type(error) for error in refusals] == [ProducerClosedError] * 4
    assert [type(error) for error in told] == [ProducerClosedError] * 1000
