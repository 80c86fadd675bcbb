# SPDX-License-Identifier: Apache-2.0
"""The FastAPI example on uvicorn: events and orders, back-pressure, and shut-down with and without a broker."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fix_broker import consume_from, end_offsets
from services.load import NO_ANSWER, Load, Outcome
from services.process import Service

from penstock.devbroker import DevCluster

pytestmark = pytest.mark.broker

EVENTS, ORDERS = "events", "orders"
BROKER = 1
# What the service promises: requests that run have 5 seconds, the producer has 10. The rest is for the process itself.
GRACEFUL_SECONDS = 5
CLOSE_SECONDS = 10
LIMIT_SECONDS = GRACEFUL_SECONDS + CLOSE_SECONDS + 3.0
RATE = 500
MINUTE = 60  # seconds
ORDER_EVERY = 20  # requests


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """A cluster of its own: its broker is stopped and paused."""
    with DevCluster() as one:
        for name in (EVENTS, ORDERS):
            one.create_topic(name, 3)
        yield one


@contextmanager
def serving(cluster: DevCluster, folder: Path) -> Iterator[Service]:
    environment = {"KAFKA_SERVERS": cluster.bootstrap_servers, "EVENTS_TOPIC": EVENTS, "ORDERS_TOPIC": ORDERS}
    command = [
        *("uvicorn", "fastapi_events:app", "--port", "0", "--no-access-log"),
        *("--timeout-graceful-shutdown", str(GRACEFUL_SECONDS)),
    ]
    with Service(
        command, environment, folder / "service.log", r"running on http://127\.0\.0\.1:(\d+)"
    ) as one:
        yield one


def ids(cluster: DevCluster, topic: str) -> Counter[str]:
    """How often each event or order is in its topic. There are no transactions, so each offset is a record."""
    count = sum(end_offsets(cluster, topic).values())
    records = consume_from(cluster, topic, count=count)
    return Counter(json.loads(record.value or b"")["id"] for record in records)


def stop(service: Service) -> float:
    took = service.stop(LIMIT_SECONDS, -signal.SIGTERM)
    assert "Application shutdown complete" in service.output()
    return took


def check_silent(service: Service) -> None:
    output = service.output()
    for word in ("Traceback", "never retrieved", "never awaited", "Warning"):
        assert word not in output, output


def test_an_order_is_stored_when_it_is_answered(cluster: DevCluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as service:
        answer = service.post("/orders", {"id": "1", "what": "two pumps"})
        assert answer.status == 201
        (record,) = consume_from(cluster, ORDERS, count=1)
        assert (record.partition, record.offset) == (answer.body["partition"], answer.body["offset"])
        assert record.key == b"1"
        assert service.post("/orders", {"what": "no id"}).status == 422
        for path in ("/events", "/orders"):
            assert service.post(path, {"id": "2", "what": "x" * 2_000_000}).status == 413
        assert stop(service) < LIMIT_SECONDS
        check_silent(service)


def test_when_memory_is_full_events_are_refused_at_once_and_nothing_accepted_is_lost(
    cluster: DevCluster, tmp_path: Path
) -> None:
    large = "x" * 200_000  # so that the memory is full after some requests
    accepted: list[str] = []
    with serving(cluster, tmp_path) as service:
        cluster.pause(BROKER)
        for number in range(400):
            started = time.monotonic()
            answer = service.post("/events", {"id": str(number), "what": large})
            assert time.monotonic() - started < 2.0  # nobody waits for memory
            if answer.status == 503:
                break
            assert answer.status == 202
            accepted.append(str(number))
        else:
            pytest.fail("memory was never full")
        assert answer.headers["retry-after"] == "1"
        assert len(accepted) > 100
        started = time.monotonic()
        assert service.post("/orders", {"id": "1", "what": "it waits"}).status == 504
        assert 4.5 < time.monotonic() - started < 10.0
        cluster.resume(BROKER)
        deadline = time.monotonic() + 60
        while service.post("/events", {"id": "after", "what": "small"}).status != 202:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        accepted.append("after")
        assert stop(service) < LIMIT_SECONDS
        check_silent(service)
    assert ids(cluster, EVENTS) == Counter(accepted)


def test_without_a_broker_the_end_comes_in_time_and_every_event_is_accounted_for(
    cluster: DevCluster, tmp_path: Path
) -> None:
    with serving(cluster, tmp_path) as service:
        cluster.pause(BROKER)
        for number in range(20):
            assert service.post("/events", {"id": str(number), "what": "late"}).status == 202
        took = stop(service)
        output = service.output()
    assert CLOSE_SECONDS - 1 < took < LIMIT_SECONDS
    assert output.count("an accepted event was not delivered") == 20


@pytest.mark.timeout(900)
def test_a_minute_under_load_with_a_broker_restart(
    cluster: DevCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(cluster, tmp_path) as service:
        outcome, took = asyncio.run(_a_minute(cluster, service))
        check_silent(service)
    events, orders = ids(cluster, EVENTS), ids(cluster, ORDERS)
    accepted = {str(number) for number in outcome.with_status(202)}
    stored = {str(number) for number in outcome.with_status(201)}
    unknown = {str(number) for number in outcome.with_status(NO_ANSWER, 504)}
    with capsys.disabled():
        sys.stdout.write(f"\n{_told(outcome)}; shut-down took {took:.2f} s\n")
    assert set(outcome.statuses.values()) <= {201, 202, 504, NO_ANSWER}
    waited = max(outcome.seconds[number] for number in outcome.with_status(201, 504))
    assert waited > 0.5, "no order has noticed that the broker was away"
    assert set(events.values()) == set(orders.values()) == {1}
    assert accepted - events.keys() == stored - orders.keys() == set()
    # Nothing is there that was refused. Of a request without an answer nobody can tell.
    assert events.keys() - accepted <= unknown
    assert orders.keys() - stored <= unknown
    assert took < LIMIT_SECONDS
    reached = len(outcome.statuses) / outcome.took
    assert reached > 0.95 * RATE, (
        f"all is well, but this machine was too busy: {reached:.0f} requests a second"
    )
    assert len(accepted) + len(stored) > 0.98 * RATE * MINUTE


def _told(outcome: Outcome) -> str:
    slow = sorted(1000 * outcome.seconds[number] for number in outcome.with_status(202))
    slowest = max(outcome.seconds, key=lambda number: outcome.seconds[number])
    return (
        f"{len(outcome.statuses):,} requests at {RATE}/s in {outcome.took:.1f} s, "
        f"sent at most {1000 * outcome.most_late:.0f} ms late; "
        f"answers {dict(Counter(outcome.statuses.values()))}, "
        f"the slowest, {slowest}, with {outcome.statuses[slowest]} after {outcome.seconds[slowest]:.1f} s; "
        f"events were answered in {slow[len(slow) // 2]:.1f} ms (p50), {slow[len(slow) * 99 // 100]:.1f} ms (p99)"
    )


async def _a_minute(cluster: DevCluster, service: Service) -> tuple[Outcome, float]:
    """Load for a minute and a second; the broker is restarted in between, the service ends under load."""

    def request(number: int) -> tuple[str, object]:
        path = "/orders" if number % ORDER_EVERY == 0 else "/events"
        return path, {"id": str(number), "what": "x" * 100}

    load = Load(service.port, request)
    third, whole = load.mark(RATE * MINUTE // 3), load.mark(RATE * MINUTE)

    async def restart() -> None:
        await third.wait()
        await asyncio.to_thread(cluster.restart, BROKER)

    async def end() -> float:
        await whole.wait()
        return await asyncio.to_thread(stop, service)

    async with asyncio.TaskGroup() as group:
        all_sent = group.create_task(load.run(RATE, RATE * (MINUTE + 1)))
        group.create_task(restart())
        ended = group.create_task(end())
    return all_sent.result(), ended.result()
