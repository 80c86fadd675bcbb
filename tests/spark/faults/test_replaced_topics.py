# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and created again while Spark writes to it: no write succeeds whose records went with it."""

from __future__ import annotations

import pytest
from spark.faults.reading import PARTITIONS
from spark.faults.rules import Rule
from spark.faults.scene import Scene

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", ["stream", "batch"])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_topic_is_replaced_between_two_tasks_of_a_batch(
    scene: Scene, dev_cluster: DevCluster, delivery: str, kind: str
) -> None:
    first = Rule("TASK_FLUSHED", ("touch written",), partition=0)
    scene.plan(first, Rule("TASK_FIRST_ROW", ("await replaced",), partition=1), batches=1, delivery=delivery)
    scene.driver.begin(scene.job(kind=kind))
    scene.marks.wait("written")
    dev_cluster.delete_topic(scene.name)
    dev_cluster.create_topic(scene.name, PARTITIONS)
    scene.marks.touch("replaced")
    ending = scene.driver.finish()
    assert ending.error is not None
    assert "was deleted and created again" in ending.error
    assert ("DecisionRefusedError" in ending.error) is (delivery == "exactly-once")
    scene.assert_well(kind=kind)
    scene.assert_nothing_left_open()
    found = scene.found()
    assert not found.missing, str(found)
    assert found.exactly_once is (delivery == "exactly-once"), str(found)
