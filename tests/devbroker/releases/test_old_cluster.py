# SPDX-License-Identifier: Apache-2.0
"""The life of a cluster of an old release and of its ZooKeeper, with a stand-in for Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._processes import try_reference
from penstock.devbroker import DevBrokerError, DevCluster, cluster
from penstock.devbroker.registry import Registry, StartRequest
from penstock.devbroker.releases.probe import broker_answers
from penstock.devbroker.releases.release import Release


@pytest.fixture
def old_jars(fake_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every release has jars; returns those that were asked for."""
    asked: list[str] = []

    def jars(release: Release) -> Path:
        asked.append(release.version)
        return tmp_path / f"kafka-{release}"

    monkeypatch.setattr(cluster, "kafka_jars", jars)
    return asked


def test_a_cluster_with_zookeeper_answers_and_leaves_nothing_behind(old_jars: list[str]) -> None:
    with DevCluster(2, kafka="0.10.2.2") as started:
        zookeeper = started.zookeeper
        assert zookeeper is not None
        assert all(broker_answers(node.port) for node in started.nodes)
        written = [(node.data_dir / "server.properties").read_text() for node in started.nodes]
        assert all(f"zookeeper.connect={zookeeper.address}\n" in text for text in written)
        assert all("process.roles" not in text for text in written)
        pids = [zookeeper.process.pid, *(node.pid for node in started.nodes)]
        folder = started.data_dir
    assert old_jars == ["0.10.2.2"]
    assert all(pid is not None and try_reference(pid) is None for pid in pids)
    assert not folder.exists()


def test_a_zookeeper_that_does_not_start_is_shown(old_jars: list[str], fake_java: Path) -> None:
    (fake_java / "fail-zookeeper").touch()
    failing = DevCluster(kafka="2.8.2")
    with pytest.raises(DevBrokerError, match=r"(?s)ZooKeeper .* ended while starting.*no such directory"):
        failing.start()
    assert not any(node.running for node in failing.nodes)


def test_a_broker_is_upgraded_with_its_data_and_its_zookeeper(old_jars: list[str]) -> None:
    with DevCluster(2, kafka="2.8.2", properties={"inter.broker.protocol.version": "2.8"}) as started:
        port, other, kept = started.node(1).port, started.node(2).pid, started.zookeeper
        started.upgrade(1, "3.9.1")
        assert started.node(1).java.release.version == "3.9.1"
        assert started.node(2).java.release.version == "2.8.2"
        assert (started.node(1).port, started.node(2).pid, started.zookeeper) == (port, other, kept)
        text = (started.node(1).data_dir / "server.properties").read_text()
        assert "inter.broker.protocol.version=2.8\n" in text
        assert "zookeeper.connect=" in text
        started.upgrade(1, "3.9.1", {"inter.broker.protocol.version": "3.9"})
        assert (
            "inter.broker.protocol.version=3.9\n"
            in (started.node(1).data_dir / "server.properties").read_text()
        )
    assert old_jars == ["2.8.2", "3.9.1", "3.9.1"]


def test_a_folder_is_not_given_to_a_release_that_cannot_read_it(old_jars: list[str], tmp_path: Path) -> None:
    with DevCluster(kafka="2.8.2", data_dir=tmp_path / "data"):
        pass
    with DevCluster(kafka="2.8.2", data_dir=tmp_path / "data"):
        pass
    with pytest.raises(
        DevBrokerError, match=r"holds data of Kafka 2\.8\.2, which 4\.3\.1 cannot read: .*--kafka 2\.8\.2"
    ):
        DevCluster(data_dir=tmp_path / "data").start()


def test_a_release_that_cannot_be_started_is_refused_at_once() -> None:
    with pytest.raises(DevBrokerError, match=r"Kafka 0\.8\.2\.2 cannot be started here"):
        DevCluster(kafka="0.8.2.2")


def test_a_named_cluster_knows_its_release_and_ends_with_its_zookeeper(
    old_jars: list[str], tmp_path: Path
) -> None:
    registry = Registry(tmp_path / "home")
    record, started = registry.start(StartRequest("old", kafka="2.1.1"))
    try:
        assert started
        assert record.kafka == "2.1.1"
        assert record.zookeeper is not None
        assert record.zookeeper.alive
        assert registry.try_read("old") == record
        assert registry.start(StartRequest("old", kafka="2.1.1")) == (record, False)
        with pytest.raises(DevBrokerError, match=r"runs already, so that --kafka would have no effect"):
            registry.start(StartRequest("old", kafka="2.8.2"))
    finally:
        registry.stop("old", delete_data=True)
    assert not record.zookeeper.alive
    assert not any(node.process.alive for node in record.nodes)
    assert not Path(record.data_dir).exists()
