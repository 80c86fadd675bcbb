# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM in the middle of a batch, to a program of a user's own and to `penstock run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from spark.faults.driver import environment
from spark.faults.processes import kill_session, of_session
from spark.faults.rules import Rule, wait_until
from spark.faults.scene import Scene, long_list

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    long_list,
]

LIMIT = 180.0
PIPELINE = """\
[pipeline]
name = "lines"
[source]
format = "text"
path = "{input}"
schema = "value string"
streaming = true
options = {{ maxFilesPerTrigger = {files} }}
[sink]
topic = "{topic}"
key = "value"
value = "value"
encoding = "raw"
partition = "cast(element_at(split(value, ' '), -1) AS int) % 2"
checkpoint = "{checkpoint}"
trigger = "available-now"
options.sinkId = "{topic}"
options.kafka.bootstrap.servers = "{servers}"
[spark]
master = "local[2,4]"
[spark.settings]
spark.ui.enabled = false
spark.driver.host = "127.0.0.1"
spark.driver.bindAddress = "127.0.0.1"
spark.sql.files.openCostInBytes = "65536"
spark.sql.files.maxPartitionBytes = "65536"
"""


@contextmanager
def begun(scene: Scene, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, as a terminal has one; whatever is left of it is killed in the end."""
    env = os.environ | environment(scene.marks) | {"SPARK_LOCAL_IP": "127.0.0.1"}
    env["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 700m pyspark-shell"
    with (scene.folder / "program.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=scene.folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process.pid)
        process.wait()


def script(scene: Scene, kind: str) -> tuple[str, ...]:
    settings = {"spark.sql.warehouse.dir": str(scene.folder / "warehouse")}
    return "spark.faults.program", "local[2,4]", json.dumps(settings), json.dumps(scene.job(kind=kind))


def pipeline(scene: Scene) -> tuple[str, ...]:
    path = scene.folder / "lines.toml"
    path.write_text(
        PIPELINE.format(
            input=scene.input.folder,
            files=scene.input.tasks,
            topic=scene.name,
            checkpoint=scene.checkpoint,
            servers=scene.servers,
        )
    )
    return "penstock", "run", str(path)


def ctrl_c(process: subprocess.Popen[bytes]) -> None:
    """A terminal sends it to the program and to all that it has started."""
    os.killpg(process.pid, signal.SIGINT)


def sigterm(process: subprocess.Popen[bytes]) -> None:
    process.terminate()


Stop = Callable[[subprocess.Popen[bytes]], None]
STOPS = [ctrl_c, sigterm]


def hold_up(scene: Scene, kind: str) -> None:
    """The tasks of a batch have written all, and wait; no task has ended."""
    batch = 1 if kind == "stream" else None
    rules = [
        Rule("TASK_FLUSHED", (f"touch in-{task}", "await go"), batch=batch, partition=task) for task in (0, 1)
    ]
    scene.plan(*rules, batches=3 if kind == "stream" else 1)


def stop_in_mid_batch(scene: Scene, stop: Stop, *command: str) -> None:
    with begun(scene, *command) as process:
        scene.marks.wait("in-0", LIMIT)
        scene.marks.wait("in-1", LIMIT)
        assert scene.left_open_in_topic()
        stop(process)
        process.wait(LIMIT)
        # Java comes to its end after the program: it reads from a pipe that the program has held.
        wait_until(lambda: not java(process.pid), "Java to end", LIMIT, pause=0.1)


def java(session: int) -> list[int]:
    return [row.pid for row in of_session(session) if row.name == "java"]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_what_a_program_left_that_was_stopped_in_mid_batch_is_ended_by_the_next_run(
    scene: Scene, kind: str, stop: Stop
) -> None:
    """It looks after no signal, and Java ends with it: whether Spark still comes to call abort() is a race."""
    hold_up(scene, kind)
    stop_in_mid_batch(scene, stop, *script(scene, kind))
    scene.marks.touch("go")
    scene.assert_well(kind=kind)
    assert not scene.left_open_in_topic()
    scene.assert_exactly_once()


@pytest.mark.parametrize("stop", STOPS)
def test_a_pipeline_that_is_stopped_in_mid_batch_leaves_nothing_open(scene: Scene, stop: Stop) -> None:
    hold_up(scene, "stream")
    stop_in_mid_batch(scene, stop, *pipeline(scene))
    assert not scene.left_open_in_topic()
    scene.marks.touch("go")
    with begun(scene, *pipeline(scene)) as process:
        assert process.wait(LIMIT) == 0
    scene.assert_exactly_once()
