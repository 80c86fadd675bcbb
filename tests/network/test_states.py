# SPDX-License-Identifier: Apache-2.0
"""The table of connection states."""

from __future__ import annotations

import itertools
import random

import pytest
from network.harness import network_settings

from penstock.errors import IllegalStateError
from penstock.network.states import (
    AUTHENTICATION_FAILED,
    CONNECTING,
    DISCONNECTED,
    PREPARING,
    READY,
    REMEMBERED,
    TRANSITIONS,
    UNCONNECTED,
    ConnectionState,
    ConnectionStates,
    NodeState,
)
from penstock.types import Node

NODE = Node(1, "h", 9092)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ConnectionState, repeat=2)))
def test_only_the_transitions_of_the_table_are_possible(old, new):
    known = NodeState(NODE, 1.0)
    known.state = old
    if new in TRANSITIONS[old]:
        known.move_to(new)
        assert known.state is new
    else:
        with pytest.raises(IllegalStateError, match=f"from {old.value} to {new.value}"):
            known.move_to(new)
        assert known.state is old


def test_every_state_is_in_the_table_and_belongs_to_one_group():
    assert set(TRANSITIONS) == set(ConnectionState)
    assert set(ConnectionState) == UNCONNECTED | PREPARING | {READY}


def test_every_connection_can_end_and_every_end_can_be_followed_by_a_new_attempt():
    for state in PREPARING | {READY}:
        assert DISCONNECTED in TRANSITIONS[state]
    for state in UNCONNECTED:
        assert TRANSITIONS[state] == {CONNECTING}


def test_a_node_that_was_never_tried_may_be_tried():
    states = ConnectionStates(network_settings(), random.Random(1))
    assert states.state_of(1) is DISCONNECTED
    assert states.can_connect(NODE, 0.0)
    assert states.backoff_left(NODE, 0.0) == 0


def test_a_node_being_connected_may_not_be_tried_again():
    states = ConnectionStates(network_settings(), random.Random(1))
    states.connecting(NODE, 5.0)
    assert not states.can_connect(NODE, 500.0)
    with pytest.raises(IllegalStateError):
        states.connecting(NODE, 500.0)


def test_after_refused_authentication_the_backoff_counts():
    states = ConnectionStates(network_settings(), random.Random(1))
    known = states.connecting(NODE, 5.0)
    states.authentication_failed(known, 6.0)
    assert known.state is AUTHENTICATION_FAILED
    assert not states.can_connect(NODE, 6.01)
    assert states.can_connect(NODE, 6.1)


def test_repr_is_a_status_line():
    known = NodeState(NODE, 1.0)
    assert repr(known) == "<NodeState h:9092 (id 1): disconnected, 0 failed attempts>"


# ---- forgetting


def tried(states: ConnectionStates, node: Node, now: float) -> NodeState:
    known = states.connecting(node, now)
    states.disconnected(known, now)
    return known


def test_a_node_that_is_not_used_any_more_is_forgotten_after_a_while():
    states = ConnectionStates(network_settings(), random.Random(1))
    tried(states, NODE, 0.0)
    assert states.maybe_forget((), REMEMBERED - 61)
    assert 1 in states
    assert not states.maybe_forget((), REMEMBERED - 2)  # each look is at all nodes
    assert states.maybe_forget((), REMEMBERED)
    assert 1 in states
    assert states.maybe_forget((), REMEMBERED + 60)
    assert 1 not in states
    assert not states.nodes()
    assert states.get(1) is None
    known = states.connecting(NODE, 1000.0)
    assert (known.failed_attempts, known.ever_ready) == (0, False)


@pytest.mark.parametrize("state", sorted(PREPARING | {READY}, key=str))
def test_a_node_with_a_connection_is_not_forgotten(state):
    states = ConnectionStates(network_settings(), random.Random(1))
    states.connecting(NODE, 0.0).state = state
    assert states.maybe_forget((), 10_000.0)
    assert 1 in states


def test_nodes_in_use_and_bootstrap_servers_are_not_forgotten():
    states = ConnectionStates(network_settings(), random.Random(1))
    bootstrap = Node(-1, "h", 9092)
    in_use = tried(states, NODE, 0.0)
    tried(states, bootstrap, 0.0)
    tried(states, Node(2, "h", 9093), 0.0)
    backoff = (in_use.failed_attempts, in_use.reconnect_backoff)
    for at in range(1000, 10_000, 1000):
        assert states.maybe_forget({1}, at)
        assert states.get(1) is in_use
        assert (in_use.failed_attempts, in_use.reconnect_backoff) == backoff
    assert states.nodes() == [NODE, bootstrap]


def test_a_node_is_not_forgotten_while_it_would_have_to_wait():
    states = ConnectionStates(network_settings(), random.Random(1))
    tried(states, NODE, 0.0).reconnect_backoff = 1000.0
    tried(states, Node(2, "h", 9093), 0.0).throttled_until = 2000.0
    assert states.maybe_forget((), 999.0)
    assert (1 in states, 2 in states) == (True, True)
    assert states.maybe_forget((), 1999.0)
    assert (1 in states, 2 in states) == (False, True)
    assert states.maybe_forget((), 2060.0)
    assert 2 not in states
