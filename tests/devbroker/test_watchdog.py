# SPDX-License-Identifier: Apache-2.0
"""A starter dies in several ways; what it started must die too.

The starter is a program of its own, with a stand-in for Java.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._processes import ProcessRef, try_reference

STARTER = """
import dataclasses, hashlib, os, signal, sys
from penstock.devbroker import DevCluster
from penstock.devbroker.releases import fetch
names = [wanted.file_name for wanted in fetch.KAFKA.dependencies]
empty = dict.fromkeys(names, hashlib.sha256(b"").hexdigest())  # the stand-ins
fetch.KAFKA = dataclasses.replace(fetch.KAFKA, sha256=empty)
cluster = DevCluster(2)
cluster.start()
if "pause" in sys.argv:
    cluster.pause(1)
if "fork" in sys.argv and os.fork() == 0:
    signal.pause()
print(cluster.data_dir, *(node.pid for node in cluster.nodes), flush=True)
sys.stdin.read()
"""


class Starter:
    def __init__(self, *how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER, *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        folder, *pids = self.process.stdout.readline().split()
        self.folder = Path(folder)
        references = [try_reference(int(pid)) for pid in pids]
        self.brokers: list[ProcessRef] = [reference for reference in references if reference is not None]
        self.handles = [os.pidfd_open(broker.pid) for broker in self.brokers]

    def wait_for_brokers(self) -> None:
        for handle in self.handles:
            # A process handle is readable once the process has ended.
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            assert poll.poll(20_000), "a broker outlived its starter"

    def close(self) -> None:
        for handle in self.handles:
            os.close(handle)
        # Whatever a failed test has left.
        for broker in self.brokers:
            broker.send(signal.SIGKILL)
        # The starter leads a group of its own, in which its child is; not yet waited for, it still holds the id.
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def starters(fake_java: Path) -> Iterator[list[Starter]]:
    started: list[Starter] = []
    yield started
    for starter in started:
        starter.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [(), ("pause",), ("fork",)], ids=["plain", "with a paused broker", "with a child"]
)
def test_brokers_die_with_a_killed_starter(starters: list[Starter], how: tuple[str, ...]) -> None:
    starters.append(starter := Starter(*how))
    assert len(starter.brokers) == 2
    starter.process.send_signal(signal.SIGKILL)
    starter.wait_for_brokers()
    assert not any(broker.alive for broker in starter.brokers)
    if "fork" not in how:
        # Standard error is inherited by the watchdog alone, and closed when it has done all its work.
        assert starter.process.communicate()[1] == ""
        assert not starter.folder.exists()


@pytest.mark.slow
def test_brokers_stop_when_the_program_ends_without_stopping_them(starters: list[Starter]) -> None:
    starters.append(starter := Starter())
    starter.process.communicate("")
    assert starter.process.returncode == 0
    assert not any(broker.alive for broker in starter.brokers)
    assert not starter.folder.exists()
