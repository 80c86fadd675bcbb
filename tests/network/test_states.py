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
