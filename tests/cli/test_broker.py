# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._processes import ProcessRef
from penstock.cli import broker
from penstock.devbroker import registry
from penstock.devbroker.machine import free_ports
from penstock.devbroker.registry import ClusterRecord, NodeRecord

Run = Callable[..., int]


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="penstock")
    broker.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["broker", *words])
    code = args.func(args)
    assert isinstance(code, int)
    return code


@pytest.fixture
def run(fake_java: Path) -> Iterator[Run]:
    yield run_command
    run_command("stop", "--all")


def test_start_status_stop(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert run("start", "--name", "mine", "--port", str(port)) == 0
    shown = capsys.readouterr().out
    assert f"127.0.0.1:{port}" in shown
    assert "penstock broker stop --name mine" in shown

    assert run("start", "--name", "mine") == 0
    assert "runs already" in capsys.readouterr().out

    assert run("status") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("mine: up, 1 node, for ")
    assert f"port {port}, pid " in shown

    assert run("stop", "--name", "mine") == 0
    assert "is stopped; its data stays in " in capsys.readouterr().out
    assert run("stop", "--name", "mine") == 0
    assert "is not running" in capsys.readouterr().out


def test_an_older_release_comes_with_its_zookeeper(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("penstock.devbroker.cluster.kafka_jars", lambda release: tmp_path)
    (port,) = free_ports(1)
    assert run("start", "--kafka", "0.9.0.1", "--port", str(port), "--ephemeral") == 0
    assert "release            Apache Kafka 0.9.0.1\n" in capsys.readouterr().out
    (record,) = registry.Registry().records()
    assert record.zookeeper is not None
    assert record.zookeeper.alive
    assert run("status") == 0
    assert "release            Apache Kafka 0.9.0.1\n" in capsys.readouterr().out
    assert run("stop") == 0
    assert not record.zookeeper.alive


def test_a_release_that_is_not_there_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("start", "--kafka", "0.8.2.2")
    shown = capsys.readouterr().err
    assert "0.8.2.2" in shown
    assert "0.9.0.1" in shown


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--kafka", "2.8.2"), "--kafka"),
        (("--nodes", "3"), "--nodes"),
        (("--property", "a=b"), "--property"),
        (("--heap-mb", "500"), "--heap-mb"),
        (("--ephemeral",), "--ephemeral"),
        (("--data", "elsewhere", "--nodes", "2"), "--nodes, --data"),
        (("--port", "1"), "--port"),
    ],
)
def test_a_running_cluster_does_not_take_other_options(
    run: Run, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], named: str
) -> None:
    (port,) = free_ports(1)
    assert run("start", "--port", str(port)) == 0
    assert run("start", *options) == 1
    shown = capsys.readouterr().err
    assert f"cluster 'default' runs already, so that {named} would have no effect. It has Kafka " in shown
    assert f", 1 node at 127.0.0.1:{port}, no secured listeners, data in " in shown
    assert "stop it first with `penstock broker stop --name default`" in shown
    assert run("start", "--port", str(port), "--nodes", "1") == 0  # as it is


def test_the_settings_of_a_cluster_name_its_security() -> None:
    node = NodeRecord(1, 9092, ProcessRef(2**22 + 1, "long ago"), "/d/server.log")
    record = ClusterRecord("sec", (node, node), "/d", True, 0.0, security="all")
    told = record.settings
    assert "2 nodes at 127.0.0.1:9092,127.0.0.1:9092, --security all" in told
    assert told.endswith("--security all, data in /d, deleted on stop")


def test_another_port_than_the_usual_one_is_told(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        for module in (registry, broker):
            monkeypatch.setattr(module, "USUAL_PORT", taken)
        assert run("start", "--ephemeral") == 0
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if str(taken) in line]
    assert line.startswith(f"penstock broker start: port {taken} is in use by something else")
    address = line.rsplit("name ", 1)[1].split()[0]
    assert f"penstock produce -b {address} TOPIC" in shown.out


def test_the_cluster_that_has_the_usual_port_is_named(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    for module in (registry, broker):
        monkeypatch.setattr(module, "USUAL_PORT", port)
    assert run("start", "--ephemeral") == 0
    assert "in use" not in capsys.readouterr().err
    assert run("start", "--ephemeral", "--name", "second") == 0
    assert f"port {port} is in use by cluster 'default'" in capsys.readouterr().err
    assert run("stop", "--name", "second") == 0


def test_the_port_of_the_last_start_is_told(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, port = free_ports(2)
    for module in (registry, broker):
        monkeypatch.setattr(module, "USUAL_PORT", usual)
    assert run("start", "--port", str(port)) == run("stop") == run("start") == 0
    shown = capsys.readouterr()
    assert f"127.0.0.1:{port}" in shown.out.rpartition("bootstrap servers")[2]
    assert f"the port of its last start, which is not {usual}" in shown.err
    assert "in use" not in shown.err


def test_a_port_that_was_asked_for_needs_no_warning(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert run("start", "--port", str(port)) == 0
    assert "in use" not in capsys.readouterr().err


def test_all_are_stopped(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ports = free_ports(2)
    for name, port in zip("ab", ports, strict=True):
        run("start", "--name", name, "--port", str(port), "--ephemeral")
    capsys.readouterr()
    assert run("stop", "--all") == 0
    assert capsys.readouterr().out.splitlines() == [
        "cluster 'a' is stopped; its data is deleted",
        "cluster 'b' is stopped; its data is deleted",
    ]
    assert run("status") == 0
    assert "no cluster is running" in capsys.readouterr().out


def test_a_failure_is_told_on_stderr_with_code_1(
    run: Run, fake_java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fake_java / "fail-start").touch()
    assert run("start", "--port", str(free_ports(1)[0])) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock broker start: node 1")


def test_a_dead_cluster_is_told(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = NodeRecord(1, free_ports(1)[0], ProcessRef(2**22 + 1, "long ago"), "/d/server.log")
    record = ClusterRecord("old", (node,), str(tmp_path / "data"), False, 0.0)
    assert "old: dead, 1 node\n" in broker.status_text(record, 100.0)
    path = tmp_path / "home" / "clusters" / "old.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.to_json())
    assert run("stop", "--name", "old") == 0
    assert "was dead already" in capsys.readouterr().out


def test_a_secured_cluster_says_how_to_connect(tmp_path: Path) -> None:
    node = NodeRecord(1, 9092, ProcessRef(2**22 + 1, "long ago"), "/d/server.log")
    ways = {name: str(tmp_path / f"{name}.properties") for name in ("ssl", "sasl_ssl-plain")}
    record = ClusterRecord("default", (node,), str(tmp_path), False, 0.0, client_files=ways)
    text = broker.status_text(record, 100.0)
    for words in (*ways, *ways.values(), f"{tmp_path}/ca.pem to trust", f"{tmp_path}/client.pem for mTLS"):
        assert words in text
    assert "passwords          alice: alice-secret, bob: bob-secret" in text
    without = replace(record, client_files={"ssl": ways["ssl"]})
    assert "passwords" not in broker.status_text(without, 100.0)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("dance",),
        ("start", "--nodes", "0"),
        ("start", "--port", "70000"),
        ("start", "--property", "nonsense"),
        ("start", "--data", "x", "--ephemeral"),
        ("stop", "--all", "--name", "x"),
    ],
)
def test_wrong_usage_is_code_2(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_command(*words)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7500, "2 h 5 min"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert broker.duration_text(seconds) == text
