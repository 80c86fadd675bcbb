# SPDX-License-Identifier: Apache-2.0
"""The Celery example: a worker with two processes, which it forks after it has sent a record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic
from services.process import FOLDER, Service

from penstock.devbroker import DevCluster
from penstock.testing import FakeKafka

pytestmark = pytest.mark.broker

TASKS = 60
STOP_SECONDS = 30.0
ALL = sorted(["worker started", *(f"order {number}" for number in range(TASKS))])


def test_every_task_sends_its_record_once(
    dev_cluster: DevCluster, topic: MakeTopic, consume: Consume, tmp_path: Path
) -> None:
    there = topic(partitions=3)
    environment = {
        "KAFKA_SERVERS": dev_cluster.bootstrap_servers,
        "BILLS_TOPIC": there,
        "CELERY_FOLDER": str(tmp_path / "celery"),
    }
    command = ["celery", "-A", "celery_tasks", "worker", "--concurrency", "2", "--loglevel", "INFO"]
    with Service(command, environment, tmp_path / "worker.log", r"celery@\S+ ready") as worker:
        ask_for_tasks(environment)
        records = consume(there, count=TASKS + 1)
        took = worker.stop(STOP_SECONDS)
        output = worker.output()
    check_output(output)
    values = [json.loads(record.value or b"") for record in consume(there)]
    assert len(values) == len(records)
    assert sorted(value["what"] for value in values) == ALL
    senders = {value["what"]: value["process"] for value in values}
    assert senders.pop("worker started") == worker.pid
    children = set(senders.values())
    assert len(children) == 2, "both processes have sent"
    assert worker.pid not in children
    assert took < STOP_SECONDS


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_pools_without_a_fork_have_one_producer(pool: str, tmp_path: Path) -> None:
    with FakeKafka(topics={"bills": 1}) as kafka:
        environment = {
            "KAFKA_SERVERS": kafka.bootstrap_servers,
            "CELERY_FOLDER": str(tmp_path / "celery"),
            "PYTHONWARNINGS": "default::ResourceWarning",  # one that is forgotten would be told
        }
        command = ["celery", "-A", "celery_tasks", "worker", "--pool", pool, "--loglevel", "INFO"]
        with Service(command, environment, tmp_path / "worker.log", r"celery@\S+ ready") as worker:
            ask_for_tasks(environment)
            deadline = time.monotonic() + 60
            while worker.output().count("succeeded in") < TASKS:
                assert time.monotonic() < deadline, worker.output()
                time.sleep(0.1)
            worker.stop(STOP_SECONDS)
            output = worker.output()
        values = [json.loads(record.value or b"") for record in kafka.records("bills")]
    check_output(output)
    assert sorted(value["what"] for value in values) == ALL
    assert {value["process"] for value in values} == {worker.pid}


def ask_for_tasks(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "celery_tasks.py", str(TASKS)],
        cwd=FOLDER,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def check_output(output: str) -> None:
    for word in ("Traceback", "ForkedProducerError", "ResourceWarning"):
        assert word not in output, output
    assert output.count("succeeded in") == TASKS
