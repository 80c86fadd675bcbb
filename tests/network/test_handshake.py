# SPDX-License-Identifier: Apache-2.0
"""ApiVersions, the first exchange on each connection."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from network.fakes import api_versions_body
from network.harness import Harness, with_bootstrap

from penstock.errors import ProtocolError
from penstock.protocol.messages import API_VERSIONS, METADATA, PRODUCE
from penstock.types import Node


@pytest.mark.parametrize(
    ("listed", "retried_with"),
    [
        ([{"api_key": 18, "min_version": 0, "max_version": 2}], 2),
        ([], 0),
        ([{"api_key": 18, "max_version": 4}], 3),
        ([{"api_key": 18, "max_version": 9}], 3),
    ],
    ids=["with hint", "without hint", "hint that repeats what was refused", "hint that is newer"],
)
def test_api_versions_falls_back(listed, retried_with):
    """Requirement 81. The answer to an unknown version comes in version 0."""
    h = Harness()
    refusal = struct.pack(">hi", 35, len(listed))
    for row in listed:
        refusal += struct.pack(">hhh", row["api_key"], row.get("min_version", 0), row["max_version"])

    def rule(request):
        return refusal if request.version > retried_with else api_versions_body()

    h.brokers[0].rules[API_VERSIONS.key] = rule
    h.connect()
    assert [request.version for request in h.brokers[0].seen] == [4, retried_with]


def test_api_versions_introduces_the_client():
    h = Harness(client_software_name="probe", client_software_version="1.2")
    h.connect()
    body = h.brokers[0].seen[0].body
    assert (body["client_software_name"], body["client_software_version"]) == ("probe", "1.2")
    assert h.client.api_versions(0).range(PRODUCE.key) == (0, PRODUCE.max_version)


def reconnect(h: Harness, node: Node) -> dict[str, Any]:
    """Connect, or connect again; the ApiVersions request that was sent first, and its version."""
    broker = h.brokers[node.id if node.id >= 0 else -1 - node.id]
    h.disconnect(node)
    h.clock.advance(5)
    seen = len(broker.seen)
    h.connect(node)
    asked = broker.seen[seen]
    return asked.body | {"version": asked.version}


def test_a_broker_that_can_check_it_is_told_which_cluster_and_node_is_meant():
    h = Harness(brokers=2)
    h.updater.cluster = "the-cluster"
    assert reconnect(h, Node(-1, "b0", 9092))["version"] == 4  # nobody has listed version 5 yet
    body = reconnect(h, h.nodes[1])
    assert (body["version"], body["cluster_id"], body["node_id"]) == (5, "the-cluster", 1)
    assert body["client_software_name"] == "penstock"


def test_a_bootstrap_server_is_not_told_what_it_should_be():
    h = Harness()
    h.updater.cluster = "the-cluster"
    h.connect()
    assert reconnect(h, Node(-1, "b0", 9092))["version"] == 4


@pytest.mark.parametrize(
    ("settings", "cluster"), [({"cluster_check": False}, "the-cluster"), ({}, None)], ids=["off", "unknown"]
)
def test_without_the_option_or_the_cluster_id_nothing_is_checked(settings, cluster):
    h = Harness(**settings)
    h.updater.cluster = cluster
    h.connect()
    assert reconnect(h, h.nodes[0])["version"] == 4


def test_brokers_that_cannot_check_are_not_asked():
    h = Harness()
    h.updater.cluster = "the-cluster"
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: api_versions_body(ApiVersions=(0, 4))
    h.connect()
    reconnect(h, h.nodes[0])
    assert [request.version for request in h.brokers[0].seen] == [4, 4]


def test_a_broker_older_than_the_others_is_asked_again_without_the_check():
    h = Harness(brokers=2)
    h.updater.cluster = "the-cluster"
    h.connect(h.nodes[0])

    def rule(request):
        if request.version > 4:
            return struct.pack(">hihhh", 35, 1, 18, 0, 4)
        return api_versions_body(ApiVersions=(0, 4))

    h.brokers[1].rules[API_VERSIONS.key] = rule
    h.connect(h.nodes[1])
    assert [request.version for request in h.brokers[1].seen] == [5, 4]


def test_a_broker_of_another_cluster_sends_the_client_back_to_its_bootstrap_servers():
    """Requirement 86."""
    h = Harness(brokers=2)
    bootstrap = with_bootstrap(h)
    h.updater.cluster = "the-cluster"
    h.connect(h.nodes[0])

    def rule(request):
        strange = request.body.get("cluster_id") not in (None, "another-cluster")
        return {"error_code": 129, "api_keys": []} if strange else api_versions_body()

    h.brokers[1].rules[API_VERSIONS.key] = rule
    h.client.ready(h.nodes[1], h.now)
    h.poll_until(lambda: h.updater.rebootstraps)
    assert h.updater.connection_failures[0][1].code == 129
    assert h.updater.known == bootstrap
    assert h.brokers[0].peers[0].closed_by_client


@pytest.mark.parametrize("version", [0, API_VERSIONS.max_version])
def test_another_error_in_api_versions_disconnects(version):
    """Requirement 81. So does UNSUPPORTED_VERSION for version 0."""
    h = Harness()
    code = 35 if version == 0 else 42

    def rule(request):
        return struct.pack(">hi", 35, 0) if request.version or code == 35 else api_versions_body()

    h.brokers[0].rules[API_VERSIONS.key] = (
        rule if code == 35 else lambda _: {"error_code": 42, "api_keys": []}
    )
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.connection_failures)
    assert h.client.connection_error(0).code == code
    assert h.brokers[0].peers[0].closed_by_client
    assert not h.client.is_ready(h.nodes[0], h.now)


def announced(size: int) -> bytes:
    return struct.pack(">i", size) + b"\0" * 16


@pytest.mark.parametrize(
    ("size", "taken"), [(1024 * 1024, True), (1024 * 1024 + 1, False), (90_000_000, False)]
)
def test_before_the_handshake_is_over_no_frame_is_larger_than_a_mebibyte(size: int, taken: bool) -> None:
    """A peer that nobody knows yet must not make the client wait for 100 MiB, and keep them."""
    h = Harness()
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: None
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.brokers[0].seen)
    h.brokers[0].peers[0].send(announced(size))
    h.poll()
    h.poll()
    assert h.brokers[0].peers[0].closed_by_client is not taken


def test_after_the_handshake_frames_may_be_as_large_as_the_settings_allow() -> None:
    h = Harness(max_response_bytes=5 * 1024 * 1024)
    h.connect()
    h.send()
    h.poll()
    h.brokers[0].peers[0].send(announced(4 * 1024 * 1024))
    h.poll()
    assert not h.brokers[0].peers[0].closed_by_client


@pytest.mark.parametrize("form", ["as asked", "version 0"])
def test_a_broker_that_does_not_like_the_request_is_asked_in_the_version_without_content(form):
    """INVALID_REQUEST: the client's name may be odd, or a proxy does not know what it should do with it."""
    h = Harness()
    refusal: Any = {"error_code": 42, "api_keys": []} if form == "as asked" else struct.pack(">hi", 42, 0)
    h.brokers[0].rules[API_VERSIONS.key] = lambda request: refusal if request.version else api_versions_body()
    h.connect()
    assert [request.version for request in h.brokers[0].seen] == [4, 0]


def test_a_refusal_in_no_form_at_all_is_a_refusal():
    """What librdkafka's mock cluster answers to versions that it does not know: a mixture of two versions."""
    h = Harness()
    refusal = bytes.fromhex("00230100120000000200000000")
    h.brokers[0].rules[API_VERSIONS.key] = lambda request: (
        refusal if request.version > 2 else api_versions_body()
    )
    h.connect()
    assert [request.version for request in h.brokers[0].seen] == [4, 0]


@pytest.mark.parametrize("body", ["0000", "005701", ""], ids=["cut off", "another code", "empty"])
def test_any_other_answer_that_cannot_be_read_ends_the_connection(body):
    h = Harness()
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: bytes.fromhex(body)
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.connection_failures)
    assert isinstance(h.updater.connection_failures[0][1], ProtocolError)


def test_a_server_without_metadata_is_probably_a_controller():
    h = Harness()
    body = api_versions_body()
    body["api_keys"] = [row for row in body["api_keys"] if row["api_key"] not in (PRODUCE.key, METADATA.key)]
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: body
    h.updater.due_at = h.now
    h.poll_until(lambda: h.updater.fatal)
    assert "the address of a controller" in str(h.updater.fatal[0])
