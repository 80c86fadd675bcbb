# SPDX-License-Identifier: Apache-2.0
"""The broker that coordinates a transaction is killed while the batch is being committed; two others take over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spark.faults.driver import SparkDriver
from spark.faults.rules import Rule
from spark.faults.scene import Scene, long_list

from penstock.devbroker import DevCluster
from penstock.sink import sink_key

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    long_list,
]


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[DevCluster]:
    with DevCluster(nodes=3, heap_mb=256) as cluster:
        yield cluster


@pytest.fixture
def scene(local_driver: SparkDriver, three_brokers: DevCluster, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(local_driver, three_brokers.bootstrap_servers, tmp_path, replication=3)
    for node_id in (1, 2, 3):
        if not three_brokers.node(node_id).running:
            three_brokers.start_node(node_id)


@pytest.mark.parametrize(
    ("step", "whose"),
    [("BEFORE_DECISION", "the sink's"), ("AFTER_DECISION", "a task's"), ("AFTER_FIRST_END", "a task's")],
)
def test_a_coordinator_is_killed_during_the_commit(
    scene: Scene, three_brokers: DevCluster, step: str, whose: str
) -> None:
    scene.plan(Rule(step, ("touch now", "await broker-gone"), batch=1))
    scene.driver.begin(scene.job())
    scene.marks.wait("now")
    own = f"ps.{sink_key(scene.name)}.c"
    opened = [row for row in scene.left_open() if (row.transactional_id == own) == (whose == "the sink's")]
    lost = opened[0].coordinator_id
    three_brokers.kill(lost)
    scene.marks.touch("broker-gone")
    ending = scene.driver.finish()
    assert ending.well, ending
    three_brokers.start_node(lost)
    scene.assert_exactly_once()
