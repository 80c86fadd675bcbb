# SPDX-License-Identifier: Apache-2.0
"""The Celery example: a worker with two processes, which it forks after it has sent a record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic
from services.process import FOLDER, Service

from penstock.devbroker import DevCluster

pytestmark = pytest.mark.broker

TASKS = 60
STOP_SECONDS = 30.0


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
        done = subprocess.run(
            [sys.executable, "-W", "error", "celery_tasks.py", str(TASKS)],
            cwd=FOLDER,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        records = consume(there, count=TASKS + 1)
        took = worker.stop(STOP_SECONDS)
        output = worker.output()
    assert "Traceback" not in output
    assert "ForkedProducerError" not in output
    assert output.count("succeeded in") == TASKS
    values = [json.loads(record.value or b"") for record in consume(there)]
    assert len(values) == len(records)
    assert sorted(value["what"] for value in values) == sorted(
        ["worker started", *(f"order {number}" for number in range(TASKS))]
    )
    senders = {value["what"]: value["process"] for value in values}
    assert senders.pop("worker started") == worker.pid
    children = set(senders.values())
    assert len(children) == 2, "both processes have sent"
    assert worker.pid not in children
    assert took < STOP_SECONDS
