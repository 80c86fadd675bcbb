# SPDX-License-Identifier: Apache-2.0
"""A slow task of which Spark runs a second copy, on another host, while the original goes on."""

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

SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


@pytest.fixture(scope="module")
def driver(standalone: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    folder = tmp_path_factory.mktemp("speculation")
    driver = SparkDriver(standalone.url, Marks(folder / "marks"), folder / "spark.log", SETTINGS)
    yield driver
    driver.stop()


@pytest.fixture
def scene(driver: SparkDriver, dev_cluster: DevCluster, tmp_path: Path) -> Scene:
    return Scene(driver, dev_cluster.bootstrap_servers, tmp_path)


def slow_original(step_of_copy: str, *then: str) -> list[Rule]:
    """The original has written everything when the copy comes to the step, and goes on then."""
    return [
        Rule("TASK_FLUSHED", ("touch original-flushed", "await copy"), batch=1, partition=0, attempt=0),
        Rule(step_of_copy, ("touch copy", *then), batch=1, partition=0, attempt=1),
    ]


def test_both_write_and_one_is_seen(scene: Scene) -> None:
    went_on = Rule("TASK_DETACHED", ("touch went-on",), batch=1, partition=0, attempt=0)
    # The copy waits: Spark kills the other one as soon as one has returned.
    scene.plan(*slow_original("TASK_DETACHED", "await went-on"), went_on)
    scene.assert_well()
    assert scene.marks.has("copy")
    assert scene.marks.has("went-on")
    scene.assert_exactly_once()


def test_at_least_once_shows_both(scene: Scene) -> None:
    scene.plan(*slow_original("TASK_FLUSHED"), delivery="at-least-once")
    scene.assert_well()
    scene.assert_repeated(*scene.input.lines(batch=1, task=0))
