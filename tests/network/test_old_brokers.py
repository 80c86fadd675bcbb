# SPDX-License-Identifier: Apache-2.0
"""Brokers that cannot be asked for their versions, and brokers that only look so."""

from __future__ import annotations

import logging
import struct
from typing import Any

import pytest
from network.fakes import FakeBroker, Received, api_versions_body, metadata_body
from network.harness import Harness, question

from penstock.network import ClientRequest
from penstock.network.backend import Authenticate
from penstock.network.old_brokers import OldBrokers, OpeningMode
from penstock.protocol.messages import API_VERSIONS, FIND_COORDINATOR, METADATA, PRODUCE
from penstock.protocol.requests import NodeApiVersions, SchemaRequest
from penstock.types import Node

MOST_SECONDS = 10.0  # until a broker that says nothing is found out


def answer_metadata(broker: FakeBroker) -> None:
    broker.rules[METADATA.key] = lambda _: metadata_body(broker.node)


def make_silent(broker: FakeBroker) -> None:
    """As 0.9.0: ApiVersions is dropped, and what follows is answered."""
    broker.rules[API_VERSIONS.key] = lambda _: None
    answer_metadata(broker)


def make_closing(broker: FakeBroker) -> None:
    """Make the broker close the connection on ApiVersions, as 0.8.2 does."""
    broker.rules[API_VERSIONS.key] = close
    answer_metadata(broker)


def close(request: Received) -> None:
    request.peer.close()


def reset(request: Received) -> None:
    request.peer.reset()


def make_new(broker: FakeBroker) -> None:
    broker.rules[API_VERSIONS.key] = lambda _: api_versions_body()
    answer_metadata(broker)


def freeze(h: Harness, broker: FakeBroker, until: float) -> None:
    """Let the broker look at nothing before that time, and at everything then, in order."""
    accept = broker._accept

    def look(peer: Any) -> None:
        if h.now >= until:
            broker._on_data(peer)
        else:
            h.network.at(until, lambda: broker._on_data(peer))

    def accept_frozen(peer: Any) -> None:
        accept(peer)
        peer.on_data = look

    for ip in h.network.names[broker.node.host]:
        h.network.listeners[ip, broker.node.port] = accept_frozen


def wait_for(h: Harness, node: Node, seconds: float = MOST_SECONDS) -> NodeApiVersions:
    """Want a connection until it is ready; what the broker can do."""
    until = h.now + seconds
    while not h.client.ready(node, h.now):
        assert h.now < until, f"not ready after {seconds} s: {h.client.connection_error(node.id)}"
        h.poll(0.01)
    found = h.client.api_versions(node.id)
    assert found is not None
    return found


def never_ready(h: Harness, node: Node, seconds: float) -> None:
    until = h.now + seconds
    while h.now < until:
        assert not h.client.ready(node, h.now)
        h.poll(0.05)


def asked(broker: FakeBroker) -> list[list[str]]:
    """What was asked on each connection."""
    return [
        [f"{request.api.name} {request.version}" for request in broker.seen if request.peer is peer]
        for peer in broker.peers
    ]


def bootstrap_of(h: Harness, index: int = 0) -> Node:
    return Node(-1 - index, h.nodes[index].host, h.nodes[index].port)


# ---- brokers that are silent


def test_a_silent_broker_is_found_out_in_time():
    h = Harness()
    make_silent(h.brokers[0])
    began = h.now
    versions = wait_for(h, h.nodes[0])
    assert h.now - began < MOST_SECONDS / 2
    assert (versions.guessed, versions.release, versions.produce_magic) == (True, "0.9.0", 0)
    assert versions.range(PRODUCE.key) == (0, 1)
    assert asked(h.brokers[0]) == [
        ["ApiVersions 4", "Metadata 0"],
        ["Metadata 0", "ApiVersions 0", "Metadata 0"],
    ]


def test_many_silent_bootstrap_servers_are_found_out_in_time():
    """They are tried in turn, so that each would be asked twice before the first is known."""
    h = Harness(brokers=6)
    for broker in h.brokers:
        make_silent(broker)
    h.updater.known = [bootstrap_of(h, index) for index in range(6)]
    h.updater.due_at = began = h.now
    while not h.updater.answers:
        h.poll(0.01)
        assert h.now - began < MOST_SECONDS
    assert h.updater.answers[0][1] == 0


def test_the_probe_neither_creates_a_topic_nor_asks_for_all():
    h = Harness()
    make_silent(h.brokers[0])
    wait_for(h, h.nodes[0])
    topics = [request.body["topics"] for request in h.brokers[0].seen if request.api is METADATA]
    assert all(len(rows) == 1 and " " in rows[0]["name"] for rows in topics)


def test_the_connection_on_which_a_silent_broker_was_found_out_is_used():
    h = Harness()
    make_silent(h.brokers[0])
    wait_for(h, h.nodes[0])
    h.brokers[0].rules[FIND_COORDINATOR.key] = lambda _: {"node_id": 1, "host": "h", "port": 7}
    assert h.client.in_flight_count() == 0
    h.send(request=SchemaRequest.of(FIND_COORDINATOR, {"key": "k"}))
    h.poll(1)
    assert [response.error for response in h.ended] == [None]
    assert h.ended[0].version == 0
    assert len(h.brokers[0].peers) == 2


def test_that_a_broker_is_taken_for_an_old_one_is_told_once(caplog):
    h = Harness()
    make_silent(h.brokers[0])
    with caplog.at_level(logging.WARNING, "penstock.network"):
        wait_for(h, bootstrap_of(h))
        wait_for(h, h.nodes[0])
    assert len(caplog.messages) == 1
    assert "b0:9092" in caplog.text
    assert "taken for Kafka 0.9.0" in caplog.text
    assert "broker.version.fallback" in caplog.text


def test_the_next_connection_asks_anew_and_needs_less_time():
    h = Harness(brokers=2)
    for broker in h.brokers:
        make_silent(broker)
    wait_for(h, bootstrap_of(h))
    began = h.now
    assert wait_for(h, h.nodes[0]).guessed
    assert wait_for(h, h.nodes[1]).guessed
    assert h.now - began < 1.2
    probe = ["Metadata 0", "ApiVersions 0", "Metadata 0"]
    assert asked(h.brokers[0])[2:] == [probe]
    assert asked(h.brokers[1]) == [["Metadata 0", "ApiVersions 4", "Metadata 0"]]


def test_a_broker_that_was_upgraded_is_found_out_at_the_next_connection():
    h = Harness()
    make_silent(h.brokers[0])
    assert wait_for(h, h.nodes[0]).guessed
    make_new(h.brokers[0])
    h.disconnect()
    h.clock.advance(5)
    assert not wait_for(h, h.nodes[0]).guessed
    h.disconnect()
    h.clock.advance(5)
    assert not wait_for(h, h.nodes[0]).guessed
    assert asked(h.brokers[0])[2:] == [["Metadata 0", "ApiVersions 0"], ["ApiVersions 4"]]


@pytest.mark.parametrize("timeout_ms", [60, 400])
def test_short_time_outs_leave_time_to_find_out(timeout_ms):
    h = Harness(connection_setup_timeout_ms=timeout_ms, connection_setup_timeout_max_ms=timeout_ms)
    make_silent(h.brokers[0])
    assert wait_for(h, h.nodes[0]).guessed


# ---- brokers that close


@pytest.mark.parametrize("end", [close, reset])
def test_a_broker_that_closes_is_found_out(end):
    h = Harness()
    make_closing(h.brokers[0])
    h.brokers[0].rules[API_VERSIONS.key] = end
    began = h.now
    versions = wait_for(h, h.nodes[0])
    assert h.now - began < MOST_SECONDS / 2
    assert (versions.guessed, versions.release, versions.produce_magic) == (True, "0.8.2", 0)
    assert asked(h.brokers[0]) == [
        ["ApiVersions 4"],
        ["Metadata 0", "ApiVersions 4"],
        ["Metadata 0", "ApiVersions 0"],
        [],
    ]


def test_after_a_broker_that_closes_the_next_connection_asks_anew():
    h = Harness()
    make_closing(h.brokers[0])
    wait_for(h, h.nodes[0])
    h.disconnect()
    h.clock.advance(5)
    assert wait_for(h, h.nodes[0]).guessed
    assert asked(h.brokers[0])[4:] == [["Metadata 0", "ApiVersions 0"], []]
    make_new(h.brokers[0])
    h.disconnect()
    h.clock.advance(5)
    assert not wait_for(h, h.nodes[0]).guessed


def test_what_a_closed_connection_has_proven_does_not_hold_for_long():
    h = Harness()
    make_closing(h.brokers[0])
    while len(h.updater.connection_failures) < 3:
        h.client.ready(h.nodes[0], h.now)
        h.poll(0.01)
    make_new(h.brokers[0])
    h.clock.advance(60)
    assert not wait_for(h, h.nodes[0]).guessed


@pytest.mark.parametrize("options", [{}, {"broker_version_fallback": "0.9.0"}], ids=["alone", "option"])
def test_a_proxy_that_cannot_bear_new_versions_is_asked_in_the_oldest(options):
    h = Harness(**options)
    make_new(h.brokers[0])
    h.brokers[0].rules[API_VERSIONS.key] = lambda request: (
        close(request) if request.version else api_versions_body()
    )
    versions = wait_for(h, h.nodes[0])
    assert not versions.guessed
    assert versions.range(PRODUCE.key)[1] == PRODUCE.max_version
    make_new(h.brokers[0])
    h.disconnect()
    h.clock.advance(5)
    wait_for(h, h.nodes[0])
    assert asked(h.brokers[0])[-1] == ["ApiVersions 4"]


def test_a_new_broker_that_is_restarted_while_it_is_asked_is_not_taken_for_an_old_one():
    """It closes twice at the worst moments, and then it is there."""
    h = Harness()
    make_closing(h.brokers[0])
    while len(h.updater.connection_failures) < 2:
        h.client.ready(h.nodes[0], h.now)
        h.poll(0.01)
    make_new(h.brokers[0])
    versions = wait_for(h, h.nodes[0])
    assert not versions.guessed


def test_a_peer_that_closes_at_everything_is_nothing():
    h = Harness()
    for api in (API_VERSIONS, METADATA):
        h.brokers[0].rules[api.key] = close
    never_ready(h, h.nodes[0], 60)
    kinds = {connection[0] for connection in asked(h.brokers[0])}
    assert kinds == {"ApiVersions 4", "ApiVersions 0", "Metadata 0"}


# ---- brokers that only look so


@pytest.mark.parametrize("seconds", [1, 1.9, 2.5, 4, 8, 9.9, 10.5, 15, 22, 30])
def test_a_new_broker_that_is_frozen_at_first_contact_is_what_it_is(seconds):
    h = Harness()
    make_new(h.brokers[0])
    freeze(h, h.brokers[0], h.now + seconds)
    versions = wait_for(h, h.nodes[0], seconds + 11)
    assert (versions.guessed, versions.produce_magic) == (False, 2)
    # What was asked meanwhile, and is answered late, is of no interest.
    h.send()
    h.poll(1)
    assert h.updater.connection_failures == [] or seconds > 7


@pytest.mark.parametrize("first", [0.5, 2.0, 2.04])
def test_a_new_broker_that_is_frozen_again_and_again_is_what_it_is(first):
    """Each answer comes late, whatever was asked."""
    h = Harness()
    make_new(h.brokers[0])
    h.brokers[0].latency = first + 1.5
    versions = wait_for(h, h.nodes[0], 30)
    assert not versions.guessed


def test_a_frozen_broker_that_does_not_know_the_newest_version_is_what_it_is():
    """Metadata is answered behind a refusal, and before the version that was asked for then."""
    h = Harness()
    make_new(h.brokers[0])
    refusal = struct.pack(">hihhh", 35, 1, 18, 0, 3)
    h.brokers[0].rules[API_VERSIONS.key] = lambda request: (
        refusal if request.version > 3 else api_versions_body()
    )
    freeze(h, h.brokers[0], h.now + 3)
    assert not wait_for(h, h.nodes[0]).guessed
    assert asked(h.brokers[0]) == [["ApiVersions 4", "Metadata 0", "ApiVersions 3"]]


def test_an_answer_that_comes_while_metadata_is_partly_written_leaves_it_whole():
    """The version that is asked for next follows what is left of Metadata, byte for byte."""
    h = Harness()
    broker = h.brokers[0]
    unanswered: list[Received] = []

    def keep(request: Received) -> None:
        unanswered.append(request)
        request.peer.limit_writes(4)  # of what is asked meanwhile

    broker.rules[API_VERSIONS.key] = keep
    answer_metadata(broker)
    h.client.ready(h.nodes[0], h.now)
    while not unanswered or unanswered[0].peer.received == b"":
        h.poll(0.05)
    make_new(broker)
    refused = struct.pack(">hi", 35, 0)  # UNSUPPORTED_VERSION in version 0: no versions listed
    first = unanswered[0]
    frame = struct.pack(">i", first.correlation_id) + refused
    first.peer.send(struct.pack(">i", len(frame)) + frame)
    h.poll(0.0)
    first.peer.limit_writes(None)
    assert not wait_for(h, h.nodes[0]).guessed
    assert asked(broker) == [["ApiVersions 4", "Metadata 0", "ApiVersions 0"]]


def test_a_missing_answer_alone_lowers_nothing():
    """Not even where Metadata was answered on the same connection before."""
    h = Harness()
    make_silent(h.brokers[0])
    answers = iter([True, True] + [False] * 1000)
    h.brokers[0].rules[METADATA.key] = lambda _: metadata_body(h.nodes[0]) if next(answers) else None
    never_ready(h, h.nodes[0], 60)


def test_no_broker_is_taken_for_an_old_one_when_another_has_answered():
    h = Harness(brokers=2)
    make_silent(h.brokers[1])
    wait_for(h, h.nodes[0])
    never_ready(h, h.nodes[1], 60)
    assert {tuple(connection) for connection in asked(h.brokers[1])} == {("ApiVersions 4",)}
    text = str(h.client.connection_error(1))
    assert "does not answer ApiVersions" in text
    assert "set broker.version.fallback" in text


def test_a_broker_that_was_taken_for_an_old_one_is_not_when_another_has_answered():
    h = Harness(brokers=2)
    make_new(h.brokers[0])
    make_silent(h.brokers[1])
    assert wait_for(h, h.nodes[1]).guessed
    wait_for(h, h.nodes[0])
    h.disconnect(h.nodes[1])
    never_ready(h, h.nodes[1], 60)


def accepted(_node: Node, _versions: NodeApiVersions) -> Any:
    raise AssertionError("nothing is agreed, so nobody authenticates")


def test_with_sasl_nobody_is_asked_for_metadata():
    authenticate: Authenticate = accepted
    h = Harness(authenticate=authenticate)
    make_silent(h.brokers[0])
    never_ready(h, h.nodes[0], 60)
    assert {tuple(connection) for connection in asked(h.brokers[0])} == {("ApiVersions 4",)}


def test_with_sasl_a_broker_that_closes_is_asked_in_the_oldest_version():
    authenticate: Authenticate = accepted
    h = Harness(authenticate=authenticate)
    make_closing(h.brokers[0])
    never_ready(h, h.nodes[0], 1)
    assert asked(h.brokers[0])[:3] == [["ApiVersions 4"], ["ApiVersions 4"], ["ApiVersions 0"]]


# ---- with broker.version.fallback


def test_with_the_option_a_silent_broker_is_found_out_at_once():
    h = Harness(broker_version_fallback="0.9.0")
    make_silent(h.brokers[0])
    began = h.now
    versions = wait_for(h, h.nodes[0])
    assert h.now - began < 0.2
    assert (versions.guessed, versions.release) == (True, "0.9.0")
    assert asked(h.brokers[0]) == [["ApiVersions 4", "Metadata 0"]]


def test_with_the_option_a_broker_that_closes_is_found_out_at_once():
    h = Harness(broker_version_fallback="0.8.2")
    make_closing(h.brokers[0])
    began = h.now
    assert wait_for(h, h.nodes[0]).release == "0.8.2"
    assert h.now - began < 0.5


def test_with_the_option_a_broker_that_is_stopped_while_it_is_asked_is_asked_again():
    """An upgrade of a cluster of 0.9: the connection of the old broker says nothing of the new one."""
    h = Harness(brokers=2, broker_version_fallback="0.9.0")
    for broker in h.brokers:
        make_silent(broker)
    assert wait_for(h, h.nodes[0]).guessed
    stopping = h.brokers[1]
    while not stopping.seen or stopping.seen[-1].api is not API_VERSIONS:
        assert not h.client.ready(h.nodes[1], h.now)
        h.poll(0.001)
    make_new(stopping)
    stopping.peers[-1].close()
    versions = wait_for(h, h.nodes[1])
    assert (versions.guessed, versions.produce_magic) == (False, 2)
    assert asked(stopping) == [["Metadata 0", "ApiVersions 4"], ["Metadata 0", "ApiVersions 0"]]


def test_the_option_changes_nothing_for_a_broker_that_answers():
    h = Harness(broker_version_fallback="0.9.0")
    versions = wait_for(h, h.nodes[0])
    assert (versions.guessed, versions.produce_magic) == (False, 2)


@pytest.mark.parametrize("seconds", [0.05, 1, 9, 30])
def test_the_option_does_not_lower_a_frozen_broker(seconds):
    h = Harness(broker_version_fallback="0.9.0")
    make_new(h.brokers[0])
    freeze(h, h.brokers[0], h.now + seconds)
    assert not wait_for(h, h.nodes[0], seconds + 11).guessed


def test_with_the_option_a_cluster_may_be_mixed():
    h = Harness(brokers=2, broker_version_fallback="0.9.0")
    make_silent(h.brokers[1])
    assert not wait_for(h, h.nodes[0]).guessed
    assert wait_for(h, h.nodes[1]).guessed
    assert not h.client.api_versions(0).guessed


# ---- each connection by its own versions


def test_each_broker_of_a_mixed_cluster_is_asked_in_its_own_versions():
    h = Harness(brokers=2)
    h.brokers[1].rules[API_VERSIONS.key] = lambda _: api_versions_body(FindCoordinator=(0, 1))
    for node in h.nodes:
        wait_for(h, node)
        h.send(node, question())
    assert [broker.waiting[0].version for broker in h.brokers] == [3, 1]


@pytest.mark.parametrize("versions", [(1, 3), (3, 1)], ids=["upgraded", "downgraded"])
def test_a_broker_that_changes_is_asked_in_its_new_versions(versions):
    h = Harness()
    for highest in versions:
        h.brokers[0].rules[API_VERSIONS.key] = lambda _, highest=highest: api_versions_body(
            FindCoordinator=(0, highest)
        )
        wait_for(h, h.nodes[0])
        h.client.send(ClientRequest(h.nodes[0], question(), 30.0, h.ended.append), h.now)
        h.brokers[0].peers[-1].close()
        h.poll(0.01)
        h.poll(0.01)
    assert tuple(request.version for request in h.brokers[0].waiting) == versions


def test_what_addresses_have_shown_is_forgotten_with_them():
    """A broker may come back at a new address for ever, and each may close a connection."""
    known = OldBrokers(None)
    nodes = [Node(1, f"h{number}", 9092) for number in range(3)]
    for node in nodes:
        known.on_closed(node, OpeningMode.ASK, 0.0, after_metadata=False)
    known.keep_nodes(nodes[2:])
    modes = [known.approach(node, 1.0, authenticates=False).mode for node in nodes]
    assert modes == [OpeningMode.ASK, OpeningMode.ASK, OpeningMode.PROBE]
    assert len(known._evidence) == 1
