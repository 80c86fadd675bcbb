# SPDX-License-Identifier: Apache-2.0
"""`penstock run` on a standalone cluster: tasks run in executors, which are other processes than the driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import MakeTopic
from fix_spark import SOURCES, ReadBack, shell_environment
from spark.faults.scene import long_list
from spark.faults.standalone import StandaloneCluster

from penstock.devbroker import DevCluster

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    long_list,
]

LIMIT = 300.0
PIPELINE = """\
[pipeline]
name = "numbers"
[source]
format = "rate-micro-batch"
streaming = true
options = {{ rowsPerBatch = 50, numPartitions = 2 }}
[[steps]]
sql = "SELECT value AS id FROM input"
[sink]
topic = "{topic}"
key = "id"
checkpoint = "{folder}/checkpoint"
trigger = "available-now"
options.kafka.bootstrap.servers = "{servers}"
[spark]
master = "{master}"
[spark.settings]
spark.ui.enabled = false
spark.driver.host = "127.0.0.1"
spark.driver.bindAddress = "127.0.0.1"
spark.executor.memory = "512m"
spark.executorEnv.PYTHONPATH = "{sources}"
"""


def test_a_stream_is_written_by_executors(
    standalone: StandaloneCluster,
    dev_cluster: DevCluster,
    topic: MakeTopic,
    read_back: ReadBack,
    tmp_path: Path,
) -> None:
    name = topic(2)
    definition, report = tmp_path / "numbers.toml", tmp_path / "report.html"
    definition.write_text(
        PIPELINE.format(
            topic=name,
            folder=tmp_path,
            servers=dev_cluster.bootstrap_servers,
            master=standalone.url,
            sources=SOURCES,
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", str(definition), "--report", str(report)],
        env=shell_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.startswith("numbers: done after ")
    found = sorted(json.loads(record.value or b"")["id"] for record in read_back(name))
    assert found == list(range(len(found)))
    assert len(found) >= 50
    assert "<svg" in report.read_text()
