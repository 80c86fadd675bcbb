# SPDX-License-Identifier: Apache-2.0
"""The table of releases and their jars, and what follows from a release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.devbroker import KAFKA_VERSION, RELEASES, DevBrokerError, cache_home
from penstock.devbroker.releases.fetch import altered_jars, is_complete
from penstock.devbroker.releases.pinned import JARS
from penstock.devbroker.releases.properties import zookeeper_properties
from penstock.devbroker.releases.release import NEWEST, find_release
from penstock.devbroker.settings import NodeAddress


@pytest.mark.parametrize("version", RELEASES)
def test_every_jar_is_pinned_once(version: str) -> None:
    release = find_release(version)
    jars = release.jars
    assert len(jars.sha256) == len(JARS[version])
    for root in release.roots:
        assert root.file_name in jars.sha256
    for checksum in jars.sha256.values():
        assert re.fullmatch("[0-9a-f]{64}", checksum)
    # Exactly what is named is fetched: which version of a dependency comes is not left to the tool that fetches.
    assert not any(each.transitive for each in jars.dependencies)
    assert not set(JARS) - set(RELEASES)


@pytest.mark.parametrize("version", RELEASES)
def test_the_jars_of_this_machine_are_those(version: str) -> None:
    jars = find_release(version).jars
    folder = cache_home() / jars.folder
    if not is_complete(folder, jars):
        pytest.skip(f"Kafka {version} was not fetched yet")
    assert altered_jars(folder, jars) == {}


def test_releases_are_in_their_order_and_the_newest_is_the_usual_one() -> None:
    numbers = [find_release(version).number for version in RELEASES]
    assert numbers == sorted(numbers)
    assert find_release(RELEASES[-1]) == NEWEST
    assert NEWEST.version == KAFKA_VERSION


def test_another_release_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(
        DevBrokerError, match=r"Kafka 0\.8\.2\.2 cannot be started here; these can: 0\.9\.0\.1, "
    ):
        find_release("0.8.2.2")


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.9.0.1", "[2026-01-01 10:00:00,000] INFO [Kafka Server 1], started (kafka.server.KafkaServer)"),
        ("2.8.2", "[2026-01-01 10:00:00,000] INFO [KafkaServer id=1] started (kafka.server.KafkaServer)"),
        ("4.3.1", "[2026-01-01 10:00:00,000] INFO [KafkaRaftServer nodeId=1] Kafka Server started"),
    ],
)
def test_a_started_broker_is_known_by_its_log(version: str, line: str) -> None:
    release = find_release(version)
    assert release.has_started(f"INFO starting\n{line}\n")
    assert not release.has_started("INFO [Kafka Server 1], starting\nINFO [KafkaServer id=1] starting\n")


@pytest.mark.parametrize(
    ("old", "new", "possible"),
    [
        ("2.8.2", "2.8.2", True),
        ("2.1.1", "2.8.2", True),
        ("2.8.2", "2.1.1", False),
        ("2.8.2", "3.9.1", False),
        ("3.9.1", "4.3.1", True),
    ],
)
def test_data_is_read_by_newer_releases_of_the_same_kind(old: str, new: str, possible: bool) -> None:
    assert find_release(new).can_read_data_of(find_release(old)) is possible


def test_a_broker_with_zookeeper_listens_on_the_loopback_only() -> None:
    address = NodeAddress(2, 20001, 20002)
    properties = zookeeper_properties(find_release("0.9.0.1"), address, 1, Path("/data"), {"my.own": 1})
    assert properties["listeners"] == properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert properties["zookeeper.connect"] == "127.0.0.1:20002"
    assert properties["broker.id"] == "2"
    assert properties["my.own"] == "1"
