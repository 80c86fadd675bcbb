# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are deleted, or set back to an older state, under a sink that knows better."""

from __future__ import annotations

import shutil

import pytest
from spark.faults.reading import Input, look
from spark.faults.rules import Rule
from spark.faults.scene import Scene, long_list

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    long_list,
]


def test_what_was_decided_survives_a_deleted_checkpoint(scene: Scene) -> None:
    scene.plan(Rule("AFTER_DECISION", ("kill jvm",), batch=1))
    scene.assert_killed()
    shutil.rmtree(scene.checkpoint)
    # To Spark it is another query now, and its batches begin at 0 again.
    later = Input(scene.folder / "later", first_batch=500)
    later.write()
    scene.assert_well(input=str(later.folder))
    scene.assert_nothing_left_open()
    decided = {line for batch in (0, 1) for task in (0, 1) for line in scene.input.lines(batch, task)}
    found = look(scene.servers, scene.name, decided | later.all_lines())
    assert found.exactly_once, str(found)


def test_an_older_checkpoint_is_refused_and_rewritten_when_told_so(scene: Scene) -> None:
    scene.plan(batches=2)
    scene.assert_well()
    older = scene.folder / "older"
    shutil.copytree(scene.checkpoint, older)
    scene.input.add(batches=2)
    scene.assert_well()
    shutil.rmtree(scene.checkpoint)
    shutil.copytree(older, scene.checkpoint)

    ending = scene.run()
    assert ending.error is not None
    assert "the checkpoint was set back" in ending.error
    assert "onRestoredCheckpoint" in ending.error
    scene.assert_exactly_once()

    scene.options["onRestoredCheckpoint"] = "rewrite"
    scene.assert_well()
    found = scene.found()
    rewritten = {line for batch in (2, 3) for task in (0, 1) for line in scene.input.lines(batch, task)}
    assert set(found.repeated) == rewritten
    assert not found.missing
