# SPDX-License-Identifier: Apache-2.0
"""Telemetry with a real Kafka that has a receiver for it: what it gets is what the producer counts.

Run by `make test-watching`. Kafka ships no receiver, so a small one is compiled: that needs javac, of a JDK.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from telemetry.metrics_data import Read, read

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.devbroker.machine import OPTIONS_VARIABLE
from penstock.devbroker.releases.fetch import kafka_jars
from penstock.devbroker.releases.release import find_release
from penstock.devbroker.settings import KAFKA_VERSION, QUICK_JVM

SOURCE = Path(__file__).with_name("TelemetryReceiver.java")
SECONDS = 100.0
PREFIX = "org.apache.kafka.producer."


class Push(NamedTuple):
    """What the receiver wrote of one push."""

    instance_id: str
    terminating: bool
    content_type: str
    client_id: str
    resource: dict[str, str]
    points: list[Read]


class Receiver(NamedTuple):
    """A cluster whose brokers hand telemetry over, and where it is."""

    cluster: DevCluster
    file: Path

    def subscribe(self, name: str, *metrics: str) -> None:
        arguments = ("--alter", "--name", name, "--metrics", ",".join(metrics), "--interval", "100")
        servers = ("--bootstrap-server", self.cluster.bootstrap_servers)
        tool = "org.apache.kafka.tools.ClientMetricsCommand"
        done = self.cluster.run_tool(tool, *servers, *arguments, jvm=QUICK_JVM, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr

    def pushes(self, client_id: str) -> list[Push]:
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        found = []
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # it is being written
            instance_id, terminating, content_type, client, data = line.split()
            found.append(
                Push(
                    instance_id,
                    terminating == "true",
                    content_type,
                    client,
                    *read(base64.b64decode(data[1:])),
                )
            )
        return [push for push in found if push.client_id == client_id]

    def await_pushes(self, client_id: str, enough: Callable[[list[Push]], bool]) -> list[Push]:
        until = time.monotonic() + SECONDS
        while not enough(found := self.pushes(client_id)):
            assert time.monotonic() < until, f"{len(found)} pushes of {client_id}, and no more"
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    folder = tmp_path_factory.mktemp("receiver")
    javac = shutil.which("javac")
    if javac is None:
        pytest.fail("there is no javac: install a JDK, for example the package openjdk-17-jdk-headless")
    jars = kafka_jars(find_release(KAFKA_VERSION))
    class_path = os.pathsep.join(str(jar) for jar in sorted(Path(jars).glob("*.jar")))
    subprocess.run([javac, "-cp", class_path, "-d", str(folder), str(SOURCE)], check=True, timeout=SECONDS)
    agent, file = folder / "receiver.jar", folder / "telemetry.txt"
    with zipfile.ZipFile(agent, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nPremain-Class: TelemetryReceiver\n\n")
        for compiled in folder.glob("*.class"):
            jar.write(compiled, compiled.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPTIONS_VARIABLE, f"-javaagent:{agent}={file}")
        with DevCluster(properties={"metric.reporters": "TelemetryReceiver"}) as cluster:
            yield Receiver(cluster, file)


@pytest.mark.timeout(300)
def test_a_real_receiver_gets_what_the_producer_counts(receiver: Receiver) -> None:
    receiver.subscribe("all", "*")
    with Producer(
        bootstrap_servers=receiver.cluster.bootstrap_servers, client_id="counted", client_rack="r1"
    ) as producer:
        for number in range(7):
            producer.send("orders", b"%d" % number).result(SECONDS)
        instance_id = producer.client_instance_id(SECONDS)
        # More than one, so that differences must be right.
        receiver.await_pushes("counted", lambda found: len(found) >= 3)
        for number in range(5):
            producer.send("orders", b"%d" % number).result(SECONDS)
        metrics = producer.metrics()
    pushes = receiver.await_pushes("counted", lambda found: bool(found) and found[-1].terminating)
    assert [push.terminating for push in pushes] == [False] * (len(pushes) - 1) + [True]
    assert {push.resource["client_rack"] for push in pushes} == {"r1"}
    assert len({push.instance_id for push in pushes}) == 1
    # Kafka writes ids in base64.
    assert base64.urlsafe_b64decode(pushes[0].instance_id + "==") == instance_id.bytes

    def summed(name: str, **tags: str) -> float:
        return sum(
            point.value
            for push in pushes
            for point in push.points
            if point.name == PREFIX + name and point.tags == tags and point.kind == "delta"
        )

    assert summed("record.send.total") == 12
    assert summed("topic.record.send.total", topic="orders") == 12
    assert summed("connection.creation.total") == metrics["producer-metrics"]["connection-creation-total"]
    last = {(point.name, tuple(point.tags.items())): point for point in pushes[-1].points}
    node = (("node_id", f"node-{receiver.cluster.nodes[0].node_id}"),)
    for name, tags in (
        ("connection.creation.rate", ()),
        ("node.request.latency.avg", node),
        ("node.request.latency.max", node),
        ("produce.throttle.time.avg", ()),
        ("produce.throttle.time.max", ()),
        ("record.queue.time.avg", ()),
        ("record.queue.time.max", ()),
    ):
        assert last[PREFIX + name, tags].kind == "gauge", name
    # Each interval begins where the one before has ended.
    sent = [
        point for push in pushes for point in push.points
        if point.name == PREFIX + "record.send.total" and not point.tags
    ]  # fmt: skip
    assert all(later.start_ns == before.time_ns for before, later in pairwise(sent))


@pytest.mark.timeout(300)
def test_a_changed_subscription_is_followed(receiver: Receiver) -> None:
    receiver.subscribe("all", PREFIX + "record.send.")
    with Producer(bootstrap_servers=receiver.cluster.bootstrap_servers, client_id="narrow") as producer:
        producer.send("orders", b"x").result(SECONDS)
        (name,) = {
            point.name.removeprefix(PREFIX).rpartition(".")[0]
            for push in receiver.await_pushes("narrow", bool)
            for point in push.points
        }
        assert name == "record.send"
        receiver.subscribe("all", PREFIX + "batch.size.")
        receiver.await_pushes(
            "narrow", lambda found: {point.name for point in found[-1].points} == {
                PREFIX + "batch.size.avg", PREFIX + "batch.size.max",
            },
        )  # fmt: skip
