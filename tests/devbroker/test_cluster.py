# SPDX-License-Identifier: Apache-2.0
"""The life of a cluster, with a stand-in for Java; ``test_real_cluster`` does the same with Kafka."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from penstock._processes import try_reference
from penstock.devbroker import DevBrokerError, DevCluster, cluster
from penstock.devbroker.machine import free_ports
from penstock.devbroker.releases.probe import broker_answers


def ports_started(fake_java: Path) -> list[int]:
    return [int(line) for line in (fake_java / "starts").read_text().split()]


def test_a_cluster_answers_and_leaves_nothing_behind(fake_java: Path) -> None:
    with DevCluster(2) as started:
        assert started.bootstrap_servers == ",".join(f"127.0.0.1:{node.port}" for node in started.nodes)
        assert [node.node_id for node in started.nodes] == [1, 2]
        assert all(broker_answers(node.port) for node in started.nodes)
        pids = [node.pid for node in started.nodes]
        folder = started.data_dir
        assert folder.is_dir()
    assert all(pid is not None and try_reference(pid) is None for pid in pids)
    assert not folder.exists()
    assert repr(started) == "<DevCluster of 2, stopped>"


def test_a_failed_start_shows_the_log_and_leaves_nothing(fake_java: Path, tmp_path: Path) -> None:
    (fake_java / "fail-start").touch()
    failing = DevCluster(data_dir=tmp_path / "data")
    with pytest.raises(DevBrokerError, match=r"(?s)node 1 .* ended while starting.*no such option"):
        failing.start()
    assert not any(node.running for node in failing.nodes)


def test_a_failed_format_shows_what_was_printed(fake_java: Path) -> None:
    (fake_java / "fail-format").touch()
    with pytest.raises(DevBrokerError, match=r"(?s)storage of node 1.*disk is on fire"):
        DevCluster().start()


def test_a_broker_that_never_answers_is_given_up(fake_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake_java / "never-ready").touch()
    monkeypatch.setattr(cluster, "START_TIMEOUT_SECONDS", 0.2)
    waiting = DevCluster()
    with pytest.raises(DevBrokerError, match="was not ready after"):
        waiting.start()
    assert not any(node.running for node in waiting.nodes)


def test_a_port_taken_meanwhile_is_replaced(fake_java: Path) -> None:
    (fake_java / "taken-once").touch()
    messages: list[str] = []
    with DevCluster(log=messages.append) as started:
        first, second = ports_started(fake_java)
        assert started.nodes[0].port == second != first
    assert "a port was taken meanwhile; trying others" in messages


def test_a_port_that_was_asked_for_is_not_replaced(fake_java: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DevBrokerError, match=f"port {port} .* is in use"):
            DevCluster(port=port).start()


def test_a_port_that_was_asked_for_and_lost_meanwhile_is_an_error(fake_java: Path) -> None:
    (fake_java / "taken-once").touch()
    (port,) = free_ports(1)
    with pytest.raises(DevBrokerError, match="Address already in use"):
        DevCluster(port=port).start()
    assert ports_started(fake_java) == [port]


def test_the_first_port_can_be_chosen(fake_java: Path) -> None:
    (port,) = free_ports(1)
    with DevCluster(port=port) as started:
        assert started.bootstrap_servers == f"127.0.0.1:{port}"


def test_data_is_kept_and_formatted_once(fake_java: Path, tmp_path: Path) -> None:
    kept = DevCluster(data_dir=tmp_path / "data")
    with kept:
        identity = (kept.log_dirs()[1] / "meta.properties").read_text()
    # The storage tool refuses to run twice on the same folder, so this start shows that it does not.
    with DevCluster(data_dir=tmp_path / "data") as again:
        assert (again.log_dirs()[1] / "meta.properties").read_text() == identity


def test_a_folder_keeps_its_number_of_nodes(fake_java: Path, tmp_path: Path) -> None:
    with DevCluster(data_dir=tmp_path / "data"):
        pass
    with pytest.raises(DevBrokerError, match=r"number of nodes, 1 instead of 3: .*--nodes 1"):
        DevCluster(3, data_dir=tmp_path / "data").start()


def test_nodes_are_stopped_killed_and_started_one_by_one(fake_java: Path) -> None:
    with DevCluster(2) as started:
        port, other = started.node(1).port, started.node(2).pid
        for end in (started.stop_node, started.kill):
            end(1)
            assert not broker_answers(port)
            assert started.node(1).pid is None
            started.start_node(1)
            assert broker_answers(port)
        before = started.node(1).pid
        started.restart(1)
        assert started.node(1).pid not in (None, before)
        assert started.node(2).pid == other
        with pytest.raises(DevBrokerError, match="runs already"):
            started.start_node(1)
        with pytest.raises(DevBrokerError, match="there is no node 9"):
            started.kill(9)


def test_a_paused_node_is_silent_until_it_is_resumed(fake_java: Path) -> None:
    with DevCluster() as started:
        port = started.nodes[0].port
        started.pause(1)
        assert "paused" in repr(started.nodes[0])
        assert not broker_answers(port, timeout=0.1)
        started.resume(1)
        assert broker_answers(port, timeout=60)
        started.pause(1)
        # A paused process does not see the request to stop, unless it is woken for it.
        started.nodes[0].terminate()
        assert started.nodes[0].wait_stopped(timeout=60)
        with pytest.raises(DevBrokerError, match="does not run"):
            started.pause(1)


def test_tool_output_is_exact(fake_java: Path) -> None:
    with DevCluster() as started:
        done = started.run_tool("a.Tool", input="caf\u00e9\r\n")
        assert done.returncode == 3
        assert done.stdout.encode("utf-8", "surrogateescape") == b"ran a.Tool \xff\r\ncaf\xc3\xa9\r\n"
        with pytest.raises(
            DevBrokerError, match=r"(?s)topic command --delete.*ran org.apache.kafka.tools.TopicCommand"
        ):
            started.delete_topic("x")


def test_a_forked_child_does_not_stop_the_cluster(fake_java: Path) -> None:
    with DevCluster() as started:
        child = os.fork()
        if child == 0:
            started.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert started.data_dir.is_dir()
        assert broker_answers(started.nodes[0].port)


def test_a_cluster_that_is_not_started_says_so() -> None:
    idle = DevCluster()
    idle.stop()
    with pytest.raises(DevBrokerError, match="not started"):
        _ = idle.bootstrap_servers
    with pytest.raises(ValueError, match="at least one node"):
        DevCluster(0)


def test_starting_twice_is_refused_and_harmless(fake_java: Path) -> None:
    with DevCluster() as started:
        with pytest.raises(DevBrokerError, match="started already"):
            started.start()
        assert broker_answers(started.nodes[0].port)


def test_the_end_of_a_broker_is_seen(fake_java: Path) -> None:
    with DevCluster() as started:
        node = started.nodes[0]
        assert node.pid is not None
        os.kill(node.pid, signal.SIGKILL)
        node.wait_stopped()
        assert not node.running
        assert "down" in repr(node)
