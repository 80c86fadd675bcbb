# SPDX-License-Identifier: Apache-2.0
"""Making connections: time-outs, backoff, the choice of an address and of a node."""

from __future__ import annotations

import math
from typing import Any

import pytest
from network.harness import ANSWER, Harness

from penstock.errors import AuthenticationError, NetworkError
from penstock.network.handshake import HandshakeStep
from penstock.network.states import AUTHENTICATING, READY, ConnectionState
from penstock.protocol.messages import SASL_HANDSHAKE
from penstock.protocol.requests import SchemaRequest
from penstock.types import Node


def silence(h: Harness, node: Node) -> None:
    """Let attempts to connect to a node get no answer."""
    h.network.silent |= {(ip, node.port) for ip in h.network.names[node.host]}


def speak(h: Harness) -> None:
    h.network.silent.clear()


def time_until_failure(h: Harness, node: Node) -> float:
    """Try to connect; the seconds until the attempt has failed. Then wait until the next may be made."""
    h.client.ready(node, h.now)
    failures, start = len(h.updater.connection_failures), h.now
    h.poll_until(lambda: len(h.updater.connection_failures) > failures, timeout=100)
    took = h.now - start
    h.clock.advance(h.client.connection_delay(node, h.now))
    return took


def test_the_time_to_connect_grows_up_to_its_maximum_and_shrinks_after_a_connection():
    """Requirement 83."""
    h = Harness(connection_setup_timeout_ms=1000, connection_setup_timeout_max_ms=6000)
    node = h.nodes[0]
    silence(h, node)
    for expected in (1, 2, 4, 6, 6):
        assert 0.8 * expected <= time_until_failure(h, node) <= min(1.2 * expected, 6)
    assert "no answer within" in str(h.client.connection_error(0))
    assert "b0:9092" in str(h.client.connection_error(0))
    speak(h)
    h.connect(node)
    h.brokers[0].peers[0].close()
    h.poll_until(lambda: not h.client.is_ready(node, h.now))
    h.clock.advance(1)
    silence(h, node)
    assert 0.8 <= time_until_failure(h, node) <= 1.2


def backoff_after_failure(h: Harness, node: Node) -> float:
    failures = len(h.updater.connection_failures)
    assert not h.client.ready(node, h.now)
    h.poll_until(lambda: len(h.updater.connection_failures) > failures, timeout=1)
    delay = h.client.connection_delay(node, h.now)
    attempts = len(h.network.attempts)
    h.clock.advance(delay * 0.9)
    h.client.ready(node, h.now)
    assert len(h.network.attempts) == attempts
    h.clock.advance(delay * 0.11)
    return delay


def test_the_reconnect_backoff_grows_and_is_reset_when_ready():
    """Requirement 83."""
    h = Harness(reconnect_backoff_ms=100, reconnect_backoff_max_ms=1000)
    node = h.nodes[0]
    listeners, h.network.listeners = h.network.listeners, {}
    for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert 0.8 * expected <= backoff_after_failure(h, node) <= min(1.2 * expected, 1.0)
    h.network.listeners = listeners
    h.connect(node)
    h.network.listeners = {}
    h.brokers[0].peers[0].close()
    h.poll_until(lambda: h.client.connection_delay(node, h.now) > 0)
    assert 0.08 <= h.client.connection_delay(node, h.now) <= 0.12


def test_a_peer_that_accepts_and_drops_connections_is_tried_after_the_backoff():
    """Requirement 83. Only READY resets the backoff, not a connection alone."""
    h = Harness(reconnect_backoff_ms=100, reconnect_backoff_max_ms=1000)
    h.network.listen("b0", 9092, lambda peer: peer.close())
    delays = [backoff_after_failure(h, h.nodes[0]) for _ in range(3)]
    assert delays[0] < delays[1] < delays[2]
    assert "closed the connection during the first exchange" in str(h.client.connection_error(0))


def test_a_backoff_with_a_maximum_below_the_start_is_constant():
    """Requirement 83."""
    h = Harness(reconnect_backoff_ms=100, reconnect_backoff_max_ms=50)
    h.network.listeners.clear()
    assert [backoff_after_failure(h, h.nodes[0]) for _ in range(3)] == pytest.approx([0.05] * 3)


# ---- addresses


def attempts_at(h: Harness, count: int) -> list[str]:
    node = Node(5, "many", 9092)
    before = len(h.network.attempts)
    for _ in range(count):
        time_until_failure(h, node)
    return [attempt.removesuffix(":9092") for attempt in h.network.attempts[before:]]


def test_each_attempt_takes_the_next_address():
    """Requirement 84."""
    h = Harness()
    h.network.names["many"] = ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
    assert attempts_at(h, 3) == ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
    assert h.network.lookups.count("many") == 1


def test_when_all_addresses_were_tried_the_name_is_resolved_again():
    """Requirement 84."""
    h = Harness()
    h.network.names["many"] = ["10.1.0.1", "10.1.0.2"]
    attempts_at(h, 2)
    h.network.names["many"] = ["10.2.0.1"]
    assert attempts_at(h, 2) == ["10.2.0.1", "10.2.0.1"]
    assert h.network.lookups.count("many") == 3


def test_the_address_tried_last_is_skipped_when_there_are_others():
    """Requirement 84."""
    h = Harness()
    h.network.names["many"] = ["10.1.0.1", "10.1.0.2"]
    attempts_at(h, 2)
    h.network.names["many"] = ["10.1.0.2", "10.1.0.3"]
    assert attempts_at(h, 1) == ["10.1.0.3"]


def test_only_addresses_of_the_first_ones_family_are_tried():
    """Requirement 84."""
    h = Harness()
    h.network.names["many"] = ["10.1.0.1", "fd00::1", "10.1.0.2"]
    assert attempts_at(h, 2) == ["10.1.0.1", "10.1.0.2"]


def test_the_second_address_is_used_when_the_first_fails():
    """Requirement 84."""
    h = Harness()
    h.network.names["b0"].insert(0, "10.9.9.9")
    time_until_failure(h, h.nodes[0])
    assert "address 10.9.9.9:9092" in str(h.client.connection_error(0))
    h.connect()


def test_after_a_lost_connection_the_name_is_resolved_again():
    """Requirement 84."""
    h = Harness()
    h.network.names["b0"].append("10.9.9.9")
    h.connect()
    h.brokers[0].peers[0].close()
    h.poll_until(lambda: h.updater.connection_failures)
    h.clock.advance(1)
    h.client.ready(h.nodes[0], h.now)
    assert h.network.lookups.count("b0") == 2


def test_a_node_that_moved_begins_anew():
    h = Harness()
    time_until_failure(h, Node(4, "b0", 1))
    h.client.ready(Node(4, "b0", 1), h.now)
    h.poll_until(lambda: len(h.updater.connection_failures) == 2)
    moved = Node(4, "b0", 9092)
    assert h.client.connection_delay(moved, h.now) == 0
    h.connect(moved)


# ---- least loaded


def fill(h: Harness, node: Node, count: int) -> None:
    for _ in range(count):
        h.send(node)
        h.poll()


def test_an_idle_ready_node_is_the_least_loaded():
    """Requirement 85."""
    h = Harness(brokers=3)
    h.connect(h.nodes[0])
    fill(h, h.nodes[0], 1)
    h.connect(h.nodes[1])
    assert {h.client.least_loaded_node(h.now) for _ in range(20)} == {h.nodes[1]}


def test_of_busy_nodes_the_one_with_the_fewest_requests_is_taken():
    """Requirement 85."""
    h = Harness(brokers=3)
    for node, count in zip(h.nodes, (3, 1, 2), strict=True):
        h.connect(node)
        fill(h, node, count)
    assert {h.client.least_loaded_node(h.now) for _ in range(20)} == {h.nodes[1]}


def test_a_connection_being_made_comes_before_a_new_one():
    """Requirement 85."""
    h = Harness(brokers=3)
    silence(h, h.nodes[2])
    h.client.ready(h.nodes[2], h.now)
    h.poll()
    assert {h.client.least_loaded_node(h.now) for _ in range(20)} == {h.nodes[2]}


def test_of_unconnected_nodes_the_one_tried_longest_ago_is_taken():
    """Requirement 85."""
    h = Harness(brokers=3)
    h.network.listeners.clear()
    for index in (1, 0, 2):
        time_until_failure(h, h.nodes[index])
        h.clock.advance(1)
    h.clock.advance(5)
    assert {h.client.least_loaded_node(h.now) for _ in range(20)} == {h.nodes[1]}


def test_a_throttled_node_is_not_taken():
    """Requirement 85."""
    h = Harness()
    h.connect()
    fill(h, h.nodes[0], 1)
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER | {"throttle_time_ms": 1000})
    h.poll()
    assert h.client.least_loaded_node(h.now) is None
    h.clock.advance(1)
    assert h.client.least_loaded_node(h.now) == h.nodes[0]


def test_without_usable_node_there_is_none():
    """Requirement 85."""
    h = Harness()
    h.network.listeners.clear()
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.connection_failures)
    assert h.client.least_loaded_node(h.now) is None
    h.updater.known = []
    assert h.client.least_loaded_node(h.now) is None


def test_with_all_nodes_equal_the_choice_is_spread():
    """Requirement 85."""
    h = Harness(brokers=3)
    assert {h.client.least_loaded_node(h.now) for _ in range(50)} == set(h.nodes)


def test_while_every_node_is_in_backoff_the_poll_waits_for_the_first():
    h = Harness(reconnect_backoff_ms=100, reconnect_backoff_max_ms=100)
    h.updater.known = [Node(-1, "gone", 1)]
    h.updater.due_at = h.now
    h.poll_until(lambda: h.updater.connection_failures)
    failed_at = h.now
    h.poll(10)
    assert h.now == pytest.approx(failed_at + 0.1)


# ---- a second handshake


class OneRequestHandshake:
    """A handshake of one request, as SASL will be."""

    state: ConnectionState = AUTHENTICATING

    def __init__(self) -> None:
        self.refuse = False

    def start(self) -> HandshakeStep:
        return HandshakeStep(SchemaRequest.of(SASL_HANDSHAKE, {"mechanism": "TOKEN"}), 1)

    def on_answer(self, version: int, body: dict[str, Any]) -> HandshakeStep | None:
        if body["error_code"]:
            raise AuthenticationError("wrong token")
        return None


@pytest.mark.parametrize("refuse", [False, True])
def test_a_handshake_can_follow_api_versions(refuse):
    h = Harness(authenticate=lambda node, versions: OneRequestHandshake())
    node = h.nodes[0]
    h.client.ready(node, h.now)
    h.poll_until(lambda: h.brokers[0].waiting)
    assert h.client._pool.states.state_of(0) is AUTHENTICATING
    assert not h.client.is_ready(node, h.now)
    h.brokers[0].answer(h.brokers[0].waiting[0], {"error_code": 33 if refuse else 0, "mechanisms": []})
    h.poll()
    if refuse:
        assert isinstance(h.updater.fatal[0], AuthenticationError)
        assert "broker 0 at b0:9092" in str(h.updater.fatal[0])
        assert h.client.connection_delay(node, h.now) > 0
        assert h.client.metrics.authentications_failed == 1
    else:
        assert h.client._pool.states.state_of(0) is READY
        assert h.client.is_ready(node, h.now)


def test_a_transport_is_made_for_the_name_of_the_node():
    h = Harness()
    h.connect()
    assert h.network.endpoints == ["b0:9092"]
    assert h.network.attempts == ["10.0.0.1:9092"]


def test_without_connection_nothing_can_be_sent():
    h = Harness()
    assert h.client.connection_delay(h.nodes[0], h.now) == 0
    h.client.ready(h.nodes[0], h.now)
    assert h.client.connection_delay(h.nodes[0], h.now) == math.inf
    assert h.client.connection_error(0) is None
    h.network.transports[0].broken = OSError(113, "No route to host")
    h.poll()
    assert isinstance(h.client.connection_error(0), NetworkError)
    assert "no route to host" in str(h.client.connection_error(0))
