# SPDX-License-Identifier: Apache-2.0
"""What each process of a Spark job imports: a job waits for that, once in every process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRODUCER = "penstock.producer.io._sender_cy"
OPTIONS = "penstock.config.config"
DRIVER = "penstock.control.client"
WATCHING = {"penstock.watching", "penstock.watching.glass_box.advice", "prometheus_client"}
SECURITY = {"penstock.security", "ssl"}  # PySpark itself does without
LOOPS = {"asyncio", "penstock._loops"}
HEAVY = {PRODUCER, OPTIONS, DRIVER, "pandas", "pyarrow.compute", *WATCHING, *SECURITY, *LOOPS}


def imported_by(*modules: str) -> set[str]:
    """Of what is heavy, what is there after an import in a new process."""
    code = f"import sys; import {', '.join(modules)}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.slow
def test_a_task_needs_the_producer_alone() -> None:
    assert imported_by("penstock.spark.writers", "penstock.spark.task") == {PRODUCER, OPTIONS}


@pytest.mark.slow
def test_planning_and_commit_do_without_the_producer() -> None:
    assert imported_by("penstock.spark.writers") == set()
    assert imported_by("penstock.spark.writers", "penstock.spark.cluster_check", "penstock.sink.driver") == {
        DRIVER
    }


@pytest.mark.slow
def test_the_package_brings_what_is_asked_for_and_no_more() -> None:
    assert imported_by("penstock") == set()
    code = (
        "from penstock import Producer, complete_transaction; from penstock.sink import prepare, roll_forward"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RowsChecksum", "RunningChecksum"])
def test_the_checksum_of_a_batch_brings_nothing_more(name: str) -> None:
    # A batch as it comes from Spark. One made of Python's objects would bring it.
    code = (
        "import struct, sys, pyarrow as pa\n"
        f"from penstock.spark.checksum import {name}\n"
        "buffers = [None, pa.py_buffer(struct.pack('=3i', 0, 1, 3)), pa.py_buffer(b'abb')]\n"
        "column = pa.Array.from_buffers(pa.binary(), 2, buffers)\n"
        f"{name}().add(pa.RecordBatch.from_arrays([column, column], ['key', 'value']))\n"
        "sys.exit('pyarrow.compute' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
