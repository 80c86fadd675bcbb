# SPDX-License-Identifier: Apache-2.0
"""The Django example behind gunicorn, which forks two workers after the module has made a producer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic
from services.process import Service

from penstock.devbroker import DevCluster

pytestmark = pytest.mark.broker

REQUESTS = 200
BROKER = 1
STOP_SECONDS = 30.0


@pytest.fixture
def orders(topic: MakeTopic) -> str:
    return topic(partitions=3)


@contextmanager
def serving(cluster: DevCluster, orders: str, folder: Path) -> Iterator[Service]:
    environment = {"KAFKA_SERVERS": cluster.bootstrap_servers, "ORDERS_TOPIC": orders}
    command = [
        *("gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0", "--no-control-socket"),
        "django_orders:application",
    ]
    ready = r"Listening at: http://127\.0\.0\.1:(\d+)"
    with Service(command, environment, folder / "server.log", ready) as one:
        yield one


@pytest.fixture
def server(dev_cluster: DevCluster, orders: str, tmp_path: Path) -> Iterator[Service]:
    with serving(dev_cluster, orders, tmp_path) as one:
        yield one


def test_every_order_is_stored_once(server: Service, orders: str, consume: Consume) -> None:
    with ThreadPoolExecutor(8) as threads:
        bodies = [{"item": f"pump {number}"} for number in range(REQUESTS)]
        answers = list(threads.map(lambda body: server.post("/orders", body), bodies))
    assert {answer.status for answer in answers} == {201}
    took = server.stop(STOP_SECONDS)
    output = server.output()
    assert "Traceback" not in output
    assert "Warning" not in output
    stored = {
        (record.partition, record.offset): json.loads(record.value or b"") for record in consume(orders)
    }
    assert sorted(value["item"] for value in stored.values()) == sorted(body["item"] for body in bodies)
    for body, answer in zip(bodies, answers, strict=True):
        assert stored[answer.body["partition"], answer.body["offset"]]["item"] == body["item"]
    senders = {value["process"] for value in stored.values()}
    assert len(senders) == 2, "both workers have sent"
    assert server.pid not in senders
    assert took < STOP_SECONDS


def test_a_request_without_an_order_is_refused(server: Service) -> None:
    assert server.post("/orders", ["pump"]).status == 400
    assert server.post("/orders", {"thing": "pump"}).status == 400
    assert server.post("/orders", {"item": "x" * 2_000_000}).status == 413


def test_without_a_broker_a_request_is_answered_before_its_worker_would_be_killed(tmp_path: Path) -> None:
    with DevCluster() as cluster:
        cluster.create_topic("orders", 1)
        with serving(cluster, "orders", tmp_path) as server:
            for _ in range(20):  # now both workers know the topic, or will answer sooner
                assert server.post("/orders", {"item": "before"}).status == 201
            cluster.pause(BROKER)
            assert server.post("/orders", {"item": "late"}).status in (503, 504)
            cluster.resume(BROKER)
            deadline = time.monotonic() + 60
            while server.post("/orders", {"item": "after"}).status != 201:
                assert time.monotonic() < deadline
            server.stop(STOP_SECONDS)
            output = server.output()
    assert "WORKER TIMEOUT" not in output
    assert "stored: " in output, "the log says why"
