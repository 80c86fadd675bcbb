# SPDX-License-Identifier: Apache-2.0
"""When a refused identity is told, and how many nodes are tried until then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from network.fakes import Peer
from network.harness import Harness

from penstock.errors import AuthenticationError
from penstock.network.metadata_fetch import MOST_AT_A_TIME, NEXT_AFTER, SILENT_AFTER, TOLD_AFTER
from penstock.network.transport import RefusedError


class ServerGroup:
    """Servers that accept at once, unless it is said otherwise, and a client that asks them for metadata.

    Args:
        servers: how many.
        refusing: those that refuse the authentication.
        silent: those that never answer.
        delay: seconds until a refusal.
    """

    def __init__(
        self,
        servers: int,
        refusing: Sequence[int] = (),
        silent: Sequence[int] = (),
        delay: float = 0.0,
        **settings: Any,
    ) -> None:
        self.h = Harness(servers, **settings)
        self.delay = delay
        self.most_at_a_time = 0
        for index in refusing:
            self.refuse(index)
        for index in silent:
            self.silence(index)
        self.h.updater.due_at = self.h.now
        self.start = self.h.now

    def refuse(self, index: int) -> None:
        self.h.network.listeners[self._address(index)] = self._refuse

    def silence(self, index: int) -> None:
        self.h.network.silent.add(self._address(index))

    def _address(self, index: int) -> tuple[str, int]:
        node = self.h.nodes[index]
        return self.h.network.names[node.host][0], node.port

    def _refuse(self, peer: Peer) -> None:
        def say_so() -> None:
            peer._transport.broken = RefusedError("the certificate is for another name", "Use another.")

        self.h.network.after(self.delay, say_so)

    @property
    def elapsed(self) -> float:
        return self.h.now - self.start

    @property
    def asked(self) -> bool:
        """Whether a server was asked for metadata."""
        return any(broker.waiting for broker in self.h.brokers)

    def run(self, seconds: float, step: float = math.inf) -> None:
        """Let time go by, until a refusal is told or a server is asked.

        Args:
            seconds: for so long at most.
            step: the longest wait in the client; by default it must find out by itself when to go on.
        """
        h, end, told = self.h, self.h.now + seconds, len(self.h.updater.fatal)
        for _ in range(10_000):
            if h.now >= end or self.asked or len(h.updater.fatal) > told:
                return
            h.poll(min(step, end - h.now))
            preparing = sum(h.client._pool.states.is_preparing(node.id) for node in h.nodes)
            self.most_at_a_time = max(self.most_at_a_time, preparing)
        raise AssertionError("it spins")


def first_tried(group: ServerGroup) -> int:
    """The server that the client begins with."""
    group.h.poll()
    (endpoint,) = group.h.network.endpoints
    return int(endpoint.removeprefix("b").partition(":")[0])


FIRST = first_tried(ServerGroup(2))
OTHER = 1 - FIRST


def test_a_silent_server_does_not_keep_a_refusal_from_being_told():
    group = ServerGroup(2, refusing=[FIRST], silent=[OTHER])
    group.run(60)
    (error,) = group.h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert group.elapsed == pytest.approx(TOLD_AFTER, abs=0.1)
    assert group.h.client.refusal() is error


def test_a_refusal_is_told_again_to_those_who_wait_later():
    group = ServerGroup(2, refusing=[FIRST], silent=[OTHER])
    group.run(60)
    for _ in range(3):
        before = group.h.now
        group.run(60)
        assert group.h.now - before < 1.3, "as soon as the server has refused again"
    assert len(group.h.updater.fatal) == 4
    assert group.most_at_a_time == 2


def test_many_servers_that_take_their_time_to_refuse():
    group = ServerGroup(30, refusing=range(30), delay=0.3)
    group.run(60)
    assert len(group.h.updater.fatal) == 1
    assert group.elapsed == pytest.approx(0.3 + TOLD_AFTER, abs=0.05)
    assert group.most_at_a_time <= 2
    assert len(group.h.network.attempts) <= 8


def test_many_servers_that_refuse_at_once():
    group = ServerGroup(30, refusing=range(30))
    group.run(60)
    assert group.elapsed == pytest.approx(0, abs=0.1)
    assert len(group.h.updater.fatal) == 1
    assert len(group.h.network.attempts) == 30
    assert group.most_at_a_time <= 1


def test_the_one_that_accepts_is_found_behind_a_silent_one():
    first = first_tried(ServerGroup(3))
    second, third = (index for index in range(3) if index != first)
    for accepts, silent in ((second, third), (third, second)):
        group = ServerGroup(3, refusing=[first], silent=[silent])
        group.run(60, step=0.01)
        assert group.asked
        assert group.h.brokers[accepts].waiting
        assert group.elapsed <= NEXT_AFTER + 0.02
        assert len(group.h.network.attempts) <= 3
        group.run(5)
        assert not group.h.updater.fatal
        assert group.h.client.refusal() is None


def test_a_large_cluster_of_which_one_refuses_gets_one_connection():
    first = first_tried(ServerGroup(200))
    group = ServerGroup(200, refusing=[first])
    group.run(60)
    assert group.asked
    assert len(group.h.network.attempts) == 2
    assert not group.h.updater.fatal


def test_not_all_of_a_large_cluster_that_is_silent_is_tried_at_a_time():
    first = first_tried(ServerGroup(200))
    group = ServerGroup(200, refusing=[first], silent=[index for index in range(200) if index != first])
    group.run(60)
    assert group.elapsed == pytest.approx(TOLD_AFTER, abs=0.1)
    group.run(5)
    assert group.most_at_a_time == MOST_AT_A_TIME
    assert len(group.h.network.attempts) <= MOST_AT_A_TIME + 10


def test_a_server_that_takes_its_time_to_accept_is_waited_for_a_second():
    for seconds, told in ((0.9, 0), (1.1, 1)):
        group = ServerGroup(2, refusing=[FIRST])
        group.h.brokers[OTHER].latency = seconds
        group.run(60)
        assert len(group.h.updater.fatal) == told
        assert group.asked == (not told)
        group.run(60)
        assert group.asked, "also when it was told already"
        assert group.h.client.refusal() is None


def test_without_a_refusal_a_connection_that_is_being_made_is_waited_for():
    group = ServerGroup(3, silent=range(3))
    group.run(SILENT_AFTER - 0.1)
    assert len(group.h.network.attempts) == 1
    assert not group.h.updater.fatal


def test_a_server_that_is_silent_does_not_keep_another_one_from_being_asked():
    group = ServerGroup(2, silent=[FIRST])
    group.run(60, step=0.05)
    assert group.h.brokers[OTHER].waiting
    assert group.elapsed == pytest.approx(SILENT_AFTER, abs=0.1), "and not when the first one is given up"


def test_a_refusal_behind_a_silent_server_is_told_soon():
    group = ServerGroup(2, refusing=[OTHER], silent=[FIRST])
    group.run(60)
    (error,) = group.h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert group.elapsed == pytest.approx(SILENT_AFTER + TOLD_AFTER, abs=0.1)


def test_a_large_cluster_that_is_silent_is_tried_in_peace():
    group = ServerGroup(200, silent=range(200), connection_setup_timeout_ms=10_000)
    group.run(30)
    assert not group.h.updater.fatal
    assert group.most_at_a_time <= MOST_AT_A_TIME
    assert len(group.h.network.attempts) <= 30 / SILENT_AFTER + MOST_AT_A_TIME


def test_an_old_refusal_by_one_broker_is_not_told_when_all_others_are_lost():
    group = ServerGroup(3, refusing=[2])
    h = group.h
    h.updater.due_at = math.inf
    h.connect(h.nodes[0])
    h.connect(h.nodes[1])
    h.client.ready(h.nodes[2], h.now)
    h.poll_until(lambda: h.updater.connection_failures)
    h.clock.advance(0.001)
    h.updater.bootstrap = list(h.nodes)
    h.updater.due_at = h.now  # as after each failed connection
    h.poll()
    assert group.asked
    assert not h.updater.fatal
    for index in (0, 1):
        h.brokers[index].waiting.clear()
        h.brokers[index].peers[-1].close()
        group.silence(index)
    group.silence(2)
    h.updater.in_progress = False
    group.run(5)
    assert not h.updater.fatal, "a network that is away is no refused authentication"


def test_a_refusal_while_others_are_connected_is_not_told_later_either():
    group = ServerGroup(2, refusing=[OTHER])
    h = group.h
    h.updater.due_at = math.inf
    h.connect(h.nodes[FIRST])
    for _ in range(5):
        h.client.ready(h.nodes[OTHER], h.now)
        group.run(2)
    assert not h.updater.fatal
    assert h.client.refusal() is None
