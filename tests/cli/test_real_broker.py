# SPDX-License-Identifier: Apache-2.0
"""The commands against a real broker: what was read from the file is what a consumer reads."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic

from penstock.cli.main import main
from penstock.devbroker import DevCluster
from penstock.devbroker.machine import free_ports
from penstock.devbroker.registry import Registry
from penstock.devbroker.security import CHOICES, accesses

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


def test_a_secured_broker_is_started_and_used_as_it_says_and_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    (port,) = free_ports(1)
    file = tmp_path / "lines"
    file.write_bytes(b"x\n")
    try:
        assert (
            main(["broker", "start", "--security", "all", "--ephemeral", "--name", name, "--port", str(port)])
            == 0
        )
        shown = capsys.readouterr().out
        assert f"127.0.0.1:{port}" in shown
        files = dict(re.findall(r"^    (\S+) +(\S+\.properties)$", shown, re.MULTILINE))
        assert list(files) == [way.name for way in accesses(CHOICES["all"])]
        (advised,) = re.findall(r"penstock produce --config (\S+) TOPIC", shown)
        by_password = [path for way, path in files.items() if way.endswith("scram-sha-512")]
        for options in (advised, files["mtls"], by_password[0]):
            assert main(["produce", "some-topic", str(file), "--config", options]) == 0
            assert "1 record" in capsys.readouterr().err
    finally:
        assert main(["broker", "stop", "--name", name]) == 0
    assert "its data is deleted" in capsys.readouterr().out
    assert Registry().try_read(name) is None
    assert not Path(advised).exists()
