# SPDX-License-Identifier: Apache-2.0
"""An executor that is frozen, declared lost and replaced, and whose task then goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spark.faults.driver import SparkDriver
from spark.faults.rules import Marks, Rule
from spark.faults.scene import Scene, long_list
from spark.faults.standalone import StandaloneCluster

from penstock.devbroker import DevCluster

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    long_list,
]

# An executor is lost when it was silent for six seconds.
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "6s",
    "spark.network.timeoutInterval": "1s",
    # All rows in one piece, so that the task has them before its executor is frozen.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}


@pytest.fixture
def driver(standalone: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """A program of its own for each test: one has lost an executor."""
    folder = tmp_path_factory.mktemp("zombies")
    driver = SparkDriver(standalone.url, Marks(folder / "marks"), folder / "spark.log", SETTINGS)
    yield driver
    driver.stop()


@pytest.fixture
def scene(driver: SparkDriver, dev_cluster: DevCluster, tmp_path: Path) -> Scene:
    return Scene(driver, dev_cluster.bootstrap_servers, tmp_path)


def zombie(wakes_at: Rule) -> list[Rule]:
    """The task freezes its executor with the rows in hand, and writes them when the batch is over elsewhere."""
    place = {"batch": 1, "partition": 0, "attempt": 0}
    return [
        Rule("TASK_FIRST_ROW", ("freeze jvm", "touch frozen", "await over"), **place),
        wakes_at,
        Rule("TASK_FLUSHED", ("touch zombie-wrote", "thaw jvm"), **place),
    ]


def test_a_zombie_writes_after_the_commit_and_is_not_seen(scene: Scene) -> None:
    scene.plan(*zombie(Rule("AFTER_DONE", ("touch over",), batch=1)))
    scene.assert_well()
    scene.marks.wait("zombie-wrote")
    scene.assert_exactly_once()


def test_at_least_once_shows_what_a_zombie_writes(scene: Scene) -> None:
    rerun = Rule("TASK_FLUSHED", ("touch over",), batch=1, partition=0, attempt=1)
    scene.plan(*zombie(rerun), delivery="at-least-once")
    scene.assert_well()
    scene.marks.wait("zombie-wrote")
    scene.assert_repeated(*scene.input.lines(batch=1, task=0))
