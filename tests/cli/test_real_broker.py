# SPDX-License-Identifier: Apache-2.0
"""The commands against a real broker: what was read from the file is what a consumer reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic

from penstock.cli.main import main
from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.core
def test_produced_lines_arrive(
    dev_cluster: DevCluster, topic: MakeTopic, consume: Consume, tmp_path: Path
) -> None:
    name = topic()
    file = tmp_path / "lines"
    file.write_bytes(b"k1=one\nno separator\nk2=\nNULL=NULL\n")
    options = [
        "--key-separator",
        "=",
        "--null-marker",
        "NULL",
        "--header",
        "source=file",
        "--on-bad-line",
        "skip",
    ]
    assert main(["produce", name, str(file), "-b", dev_cluster.bootstrap_servers, *options]) == 0
    found = consume(name, count=3)
    assert [(record.key, record.value) for record in found] == [(b"k1", b"one"), (b"k2", b""), (None, None)]
    assert all(record.headers == (("source", b"file"),) for record in found)


def test_perf_counts_what_the_broker_has(
    dev_cluster: DevCluster, topic: MakeTopic, consume: Consume, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    options = [
        "--topic",
        name,
        "--num-records",
        "500",
        "--record-size",
        "10",
        "--warmup",
        "50",
        "--latency",
        "all",
    ]
    assert main(["perf", "-b", dev_cluster.bootstrap_servers, *options, "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["acknowledged"] == 500
    assert result["latency_ms"]["samples"] == 500
    assert len(consume(name, count=550)) == 550


def test_nobody_listens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x\n")
    assert main(["produce", "t", str(file), "-b", "127.0.0.1:1", "-X", "max.block.ms=300"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("penstock: ")
    assert "penstock broker start" in last
