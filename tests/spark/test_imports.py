# SPDX-License-Identifier: Apache-2.0
"""What each process of a Spark job imports: a job waits for that, once in every process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRODUCER = "penstock.producer.sender"
DRIVER = "penstock.control.client"
HEAVY = {PRODUCER, DRIVER, "pandas", "asyncio"}


def imported_by(*modules: str) -> set[str]:
    """Of what is heavy, what is there after an import in a new process."""
    code = f"import sys; import {', '.join(modules)}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.slow
def test_a_task_needs_the_producer_alone() -> None:
    assert imported_by("penstock.spark.writers", "penstock.spark.task_write") == {PRODUCER}


@pytest.mark.slow
def test_planning_and_commit_do_without_the_producer() -> None:
    assert imported_by("penstock.spark.writers") == set()
    assert imported_by("penstock.spark.cluster_check", "penstock.sink.faces") == {DRIVER}


@pytest.mark.slow
def test_the_package_brings_what_is_asked_for_and_no_more() -> None:
    assert imported_by("penstock") == set()
    code = (
        "from penstock import Producer, complete_transaction; from penstock.sink import prepare, roll_forward"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
