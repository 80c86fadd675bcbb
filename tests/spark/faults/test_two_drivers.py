# SPDX-License-Identifier: Apache-2.0
"""Two Spark drivers with one sink: the older one is fenced, says so, and harms nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from spark.faults.driver import SparkDriver
from spark.faults.rules import Rule
from spark.faults.scene import Scene, long_list

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    long_list,
]

SAYS = "another driver"


@pytest.fixture
def newer(local_driver: SparkDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    folder = tmp_path_factory.mktemp("newer")
    driver = SparkDriver(local_driver.master, local_driver.marks, folder / "spark.log")
    yield driver
    driver.stop()


@pytest.mark.parametrize("step", ["COMMITTING", "BEFORE_DECISION", "AFTER_DECISION"])
def test_a_driver_that_stalls_is_replaced(scene: Scene, newer: SparkDriver, step: str) -> None:
    scene.plan(Rule(step, ("touch stalls", "await replaced"), batch=1))
    scene.driver.begin(scene.job())
    scene.marks.wait("stalls")
    assert newer.run(scene.job()).well
    scene.marks.touch("replaced")
    ending = scene.driver.finish()
    assert ending.error is not None
    if step == "COMMITTING":
        assert SAYS in ending.error
    scene.assert_exactly_once()
    # It stays refused, also with nothing left to write but what would be new to it.
    scene.input.add(batches=1)
    again = scene.run()
    assert again.error is not None
    assert SAYS in again.error
    assert newer.run(scene.job()).well
    scene.assert_exactly_once()


def test_a_driver_that_was_idle_wakes_when_another_has_gone_on(scene: Scene, newer: SparkDriver) -> None:
    scene.plan(batches=1)
    scene.assert_well()
    scene.input.add(batches=1)
    assert newer.run(scene.job()).well
    scene.input.add(batches=1)
    ending = scene.run()
    assert ending.error is not None
    assert SAYS in ending.error
    assert newer.run(scene.job()).well
    scene.assert_exactly_once()
