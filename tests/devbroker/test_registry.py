# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._processes import ProcessRef, try_reference
from penstock.devbroker import DevBrokerError
from penstock.devbroker.machine import free_ports
from penstock.devbroker.registry import (
    ClusterRecord,
    NodeRecord,
    Registry,
    StartRequest,
    delete_cluster_data,
)
from penstock.devbroker.releases.probe import broker_answers

GONE = ProcessRef(2**22 + 1, "long ago")


@pytest.fixture
def registry(fake_java: Path) -> Iterator[Registry]:
    registry = Registry()
    yield registry
    for record in registry.records():
        registry.stop(record.name)


def request(name: str = "default", **changes: object) -> StartRequest:
    (port,) = free_ports(1)
    return dataclasses.replace(StartRequest(name=name, port=port), **changes)  # type: ignore[arg-type]


def test_a_record_survives_its_file() -> None:
    node = NodeRecord(1, 9092, ProcessRef(12, "boot:99"), "/d/server.log")
    record = ClusterRecord("default", (node,), "/d", True, 1234.5)
    assert ClusterRecord.from_json(record.to_json()) == record


def test_start_is_told_once_and_stop_is_told_once(registry: Registry) -> None:
    wanted = request()
    record, started = registry.start(wanted)
    assert started
    assert record.state == "up"
    assert record.bootstrap_servers == f"127.0.0.1:{wanted.port}"
    assert registry.start(wanted) == registry.start(StartRequest()) == (record, False)
    with pytest.raises(DevBrokerError, match="--port would have no effect"):
        registry.start(request())
    assert registry.stop("default") == record
    assert record.state == "dead"
    assert registry.stop("default") is None
    assert registry.records() == []


def test_clusters_live_side_by_side(registry: Registry) -> None:
    first, _ = registry.start(request("one"))
    second, _ = registry.start(request("two", ephemeral=True))
    assert registry.records() == [first, second]
    registry.stop("one")
    assert registry.records() == [second]
    assert second.state == "up"
    registry.stop("two")
    assert not Path(second.data_dir).exists()


def test_a_dead_cluster_is_started_anew_on_its_data(registry: Registry) -> None:
    first, _ = registry.start(request())
    os.kill(first.nodes[0].process.pid, signal.SIGKILL)
    os.waitpid(first.nodes[0].process.pid, 0)
    assert first.state == "dead"
    second, started = registry.start(request())
    assert started
    assert second.data_dir == first.data_dir
    assert broker_answers(second.nodes[0].port)


def test_a_cluster_comes_back_at_its_port(registry: Registry) -> None:
    first, _ = registry.start(request())
    registry.stop("default")
    second, _ = registry.start(StartRequest())
    assert second.bootstrap_servers == first.bootstrap_servers
    registry.stop("default")
    with socket.create_server(("127.0.0.1", first.nodes[0].port)):
        third, _ = registry.start(StartRequest())
        assert third.bootstrap_servers != first.bootstrap_servers
        assert third.data_dir == first.data_dir


@pytest.mark.parametrize("noted", ["not a port", "70000"])
def test_a_note_of_the_port_that_is_none_is_ignored(registry: Registry, tmp_path: Path, noted: str) -> None:
    (tmp_path / "port.txt").write_text(noted)
    record, _ = registry.start(StartRequest(data_dir=tmp_path))
    assert record.state == "up"


def test_data_stays_unless_it_is_to_be_deleted(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    registry.start(request(data_dir=folder))
    registry.stop("default")
    assert (folder / "cluster.json").exists()
    registry.start(request(data_dir=folder))
    (folder / "thesis.txt").write_text("not ours")
    registry.stop("default", delete_data=True)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_data_of_a_stopped_cluster_can_be_deleted_later(registry: Registry) -> None:
    record, _ = registry.start(request())
    registry.stop("default")
    assert Path(record.data_dir).exists()
    assert registry.stop("default", delete_data=True) is None
    assert not Path(record.data_dir).exists()


def test_a_folder_of_someone_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "x").touch()
    delete_cluster_data(tmp_path)
    assert (tmp_path / "node-1" / "x").exists()


def test_a_recycled_id_is_not_killed(registry: Registry, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        stale = NodeRecord(1, 9092, ProcessRef(bystander.pid, "long ago"), "/log")
        path = tmp_path / "home" / "clusters" / "old.json"
        path.parent.mkdir(parents=True)
        path.write_text(ClusterRecord("old", (stale,), str(tmp_path / "data"), False, 0.0).to_json())
        assert [record.state for record in registry.records()] == ["dead"]
        registry.stop("old")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_failed_start_leaves_no_record(registry: Registry, fake_java: Path) -> None:
    (fake_java / "fail-start").touch()
    with pytest.raises(DevBrokerError, match="no such option"):
        registry.start(request())
    assert registry.records() == []


def test_a_failed_start_leaves_no_folder(registry: Registry, fake_java: Path, tmp_path: Path) -> None:
    (fake_java / "fail-start").touch()
    folder = tmp_path / "new"
    for wanted in (request(), request(data_dir=folder)):
        with pytest.raises(DevBrokerError, match="no such option"):
            registry.start(wanted)
    assert not folder.exists()
    assert list((tmp_path / "home" / "data").iterdir()) == []


def test_a_failed_start_leaves_a_folder_that_was_there(
    registry: Registry, fake_java: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    registry.start(request(data_dir=folder))
    registry.stop("default")
    (fake_java / "fail-start").touch()
    with pytest.raises(DevBrokerError, match="no such option"):
        registry.start(request(data_dir=folder))
    assert (folder / "cluster.json").exists()


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "x" * 65, "a b"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DevBrokerError, match="is no name for a cluster"):
        Registry(tmp_path).stop(name)


def test_a_broken_state_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clusters" / "default.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(DevBrokerError, match=r"default\.json cannot be read"):
        Registry(tmp_path).records()


def test_state_counts_the_brokers_that_are_up() -> None:
    with subprocess.Popen(["sleep", "60"]) as running:
        up = try_reference(running.pid)
        assert up is not None
        nodes = tuple(
            NodeRecord(n, 9092, process, "/log") for n, process in enumerate([up, GONE, GONE], start=1)
        )
        assert ClusterRecord("x", nodes, "/d", False, 0.0).state == "1 of 3 up"
        running.kill()
