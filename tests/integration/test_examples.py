# SPDX-License-Identifier: Apache-2.0
"""The examples run as they stand, and their records arrive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = {"send_and_wait": 3, "callbacks": 10_000, "asyncio_send": 1000}


def test_no_example_is_forgotten() -> None:
    spark = {path.stem for path in EXAMPLES.glob("*.py") if "pyspark" in path.read_text(encoding="utf-8")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - spark == RECORDS.keys()
    folder = Path(__file__).parent.parent / "spark"
    their_tests = "".join(
        (folder / name).read_text(encoding="utf-8") for name in ("test_spark_examples.py", "deployment.py")
    )
    assert [name for name in sorted(spark) if f"{name}.py" not in their_tests] == []


def test_no_service_is_forgotten() -> None:
    """Services are run by `make test-examples`."""
    folder = Path(__file__).parent.parent / "services"
    their_tests = "".join(path.read_text(encoding="utf-8") for path in folder.glob("on_*.py"))
    services = {path.stem for path in (EXAMPLES / "services").glob("*.py")}
    assert services
    assert [name for name in sorted(services) if name not in their_tests] == []


@pytest.mark.parametrize("name", RECORDS)
def test_example(name: str, dev_cluster: DevCluster, topic: MakeTopic, consume: Consume) -> None:
    there = topic(partitions=2)
    command = [
        sys.executable,
        "-W",
        "error",
        str(EXAMPLES / f"{name}.py"),
        dev_cluster.bootstrap_servers,
        there,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout
    assert len(consume(there)) == RECORDS[name]
