# SPDX-License-Identifier: Apache-2.0
"""Tasks whose transaction is too old when the batch is to be decided."""

from __future__ import annotations

import pytest
from spark.faults.rules import Rule, wait_until
from spark.faults.scene import Scene, long_list

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# A decision wants 40 s and the recovery time left: with these, a transaction may be twenty seconds old.
SHORT = {"transactionTimeout": "61 s", "recoveryTime": "1 s"}


def test_no_decision_when_a_transaction_might_end_before_it_is_carried_out(scene: Scene) -> None:
    scene.plan(Rule("TASK_DETACHED", ("pause 23",), batch=1, partition=0, attempt=0), **SHORT)
    ending = scene.run()
    assert ending.error is not None
    assert not ending.killed
    scene.assert_well()
    scene.assert_nothing_left_open()
    scene.assert_exactly_once()


@long_list
def test_a_transaction_times_out_before_the_decision(scene: Scene) -> None:
    scene.plan(
        Rule("TASK_DETACHED", ("touch written", "await timed-out"), batch=1, partition=0, attempt=0), **SHORT
    )
    scene.driver.begin(scene.job())
    scene.marks.wait("written")
    # Brokers look every ten seconds for transactions whose time is over.
    wait_until(lambda: not scene.left_open(), "the transactions to time out", 300, pause=0.5)
    scene.marks.touch("timed-out")
    ending = scene.driver.finish()
    assert ending.error is not None
    scene.assert_well()
    scene.assert_exactly_once()
