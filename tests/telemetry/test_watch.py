# SPDX-License-Identifier: Apache-2.0
"""Who waits for the instance id, and when the sender is asked in each turn."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from producer.fakes_sender import Rig

from penstock._ticket import Ticket
from penstock._time import FOREVER
from penstock.errors import KafkaError, ProducerClosedError, UnsupportedVersionError
from penstock.protocol.requests import NodeApiVersions
from penstock.telemetry.watch import TelemetryWatch
from penstock.types import Node

NODE = Node(1, "h", 1)
PUSH_TELEMETRY = 72
TAKES = NodeApiVersions({0: (0, 13), PUSH_TELEMETRY: (0, 0)})
TAKES_NOT = NodeApiVersions({0: (0, 13)})


class Network:
    """Brokers that take no telemetry, as soon as there is a connection."""

    def __init__(self) -> None:
        self.versions: NodeApiVersions | None = None
        self.metrics = SimpleNamespace(connections_created=1)
        self.connected = 0

    def api_versions(self, _node_id: int) -> NodeApiVersions | None:
        return self.versions

    def least_loaded_node(self, _now: float) -> Node:
        return NODE

    def ready(self, _node: Node, _now: float) -> bool:
        self.connected += 1
        return False

    def connection_delay(self, _node: Node, _now: float) -> float:
        return FOREVER

    def wakeup(self) -> None:
        pass


class Pusher:
    """Stands for what pushes.

    Args:
        error: what its turns, or its last push, raise.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.stopped = ""
        self.turns = 0
        self.last_pushes = 0

    def advance(self, _now: float) -> float:
        self.turns += 1
        if self.error is not None:
            raise self.error
        return FOREVER

    def push_last(self, _forced: object) -> None:
        self.last_pushes += 1
        if self.error is not None:
            raise self.error


def pushing(pusher: Pusher) -> tuple[TelemetryWatch, Any]:
    """A watch that has found a broker that takes telemetry."""
    network = Network()
    network.versions = TAKES
    sender = SimpleNamespace(telemetry=None)
    watched = TelemetryWatch(sender, network, lambda: [NODE], lambda _: pusher)  # type: ignore[arg-type, return-value]
    watched.advance(0.0)
    return watched, sender


def watch(network: Network) -> tuple[TelemetryWatch, Any]:
    sender = SimpleNamespace(telemetry=None)
    return TelemetryWatch(sender, network, lambda: [NODE], lambda _: None), sender  # type: ignore[arg-type, return-value]


def test_nothing_is_done_for_those_who_have_given_up() -> None:
    network = Network()
    watched, _ = watch(network)
    for _ in range(3):
        watched.instance_id().give_up()
    watched.advance(0.0)
    assert network.connected == 0
    waits = watched.instance_id()
    watched.advance(0.0)
    assert network.connected == 1
    assert watched._waiting == [waits], "nor are they kept"


def test_a_turn_in_the_middle_of_a_call_leaves_nothing_behind() -> None:
    network = Network()
    watched, sender = watch(network)
    network.versions = TAKES_NOT
    lock = watched._lock

    class TurnWhenLetGo:
        """The I/O thread takes a turn as soon as the call lets go of the lock."""

        def __enter__(self) -> None:
            lock.__enter__()

        def __exit__(self, *error: object) -> None:
            lock.__exit__(*error)
            watched._lock = lock
            watched.advance(0.0)

    watched._lock = TurnWhenLetGo()
    ticket = watched.instance_id()
    assert ticket.done
    assert sender.telemetry is None, "it gets no turns that it does not need"


@pytest.mark.parametrize("has_turns", [True, False])
def test_a_call_after_the_end_is_refused_at_once(has_turns: bool) -> None:
    """Also where the watch had given up its turns before the end."""
    network = Network()
    watched, sender = watch(network)
    before = watched.instance_id()
    if not has_turns:
        network.versions = TAKES_NOT
        watched.advance(0.0)
        assert sender.telemetry is None
    watched.stop()
    if has_turns:
        with pytest.raises(ProducerClosedError):
            assert before.result
    after = watched.instance_id()
    assert after.done
    with pytest.raises(ProducerClosedError, match="closed before a broker gave"):
        assert after.result
    assert sender.telemetry is None, "it gets no turns that it does not need"
    assert watched._waiting == []


def test_an_error_switches_telemetry_off_for_good(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    network.versions = TAKES
    made = []

    def fail(_: object) -> Any:
        made.append(1)
        raise ValueError("no such codec")

    sender = SimpleNamespace(telemetry=None)
    watched = TelemetryWatch(sender, network, lambda: [NODE], fail)
    waits = watched.instance_id()
    watched.advance(0.0)
    assert "no such codec" in caplog.text
    watched.look_again(connections=7)
    for ticket in (waits, watched.instance_id()):
        assert ticket.done
        with pytest.raises(UnsupportedVersionError, match="telemetry failed"):
            assert ticket.result
    assert sender.telemetry is None
    assert len(made) == 1


# ------------------------------------------------------------------------------------------------ the last push


def test_the_last_push_is_made_as_long_as_telemetry_has_turns() -> None:
    pusher = Pusher()
    watched, _ = pushing(pusher)
    watched.push_last(lambda: False)
    assert pusher.last_pushes == 1


def test_what_was_switched_off_by_an_error_pushes_nothing_more() -> None:
    pusher = Pusher(ValueError("no such codec"))
    watched, sender = pushing(pusher)
    assert sender.telemetry is None
    watched.push_last(lambda: False)
    assert pusher.last_pushes == 0


@pytest.mark.parametrize("kind", [ValueError, KeyError, MemoryError, RecursionError, OSError, KafkaError])
def test_whatever_the_last_push_raises_is_logged_and_ends_there(
    caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    pusher = Pusher()
    watched, _ = pushing(pusher)
    pusher.error = kind("no such codec")
    watched.push_last(lambda: False)
    assert pusher.last_pushes == 1
    assert "could not be pushed" in caplog.text
    assert "no such codec" in caplog.text


# ------------------------------------------------------------------------------------------------- new connections


def test_only_new_connections_are_a_reason_to_look_again() -> None:
    """The turn that follows finds brokers that take no telemetry, and gives up the turns again."""
    network = Network()
    network.versions = TAKES_NOT
    watched, sender = watch(network)
    watched.advance(0.0)
    for connections in (2, 3):
        watched.look_again(connections - 1)
        assert sender.telemetry is None
        network.metrics.connections_created = connections
        watched.look_again(connections)
        assert sender.telemetry is watched
        watched.advance(0.0)
        assert sender.telemetry is None
        watched.look_again(connections)
        assert sender.telemetry is None


def test_new_connections_change_nothing_where_a_broker_has_put_an_end_to_it() -> None:
    pusher = Pusher()
    watched, sender = pushing(pusher)
    pusher.stopped = "the broker answered with error 42"
    watched.advance(0.0)
    assert sender.telemetry is None
    watched.look_again(7)
    assert sender.telemetry is None, "it gets no turns that it does not need"


# -------------------------------------------------------------------------------------------------- the instance id


def test_a_call_for_the_id_ends_the_wait_of_the_io_thread() -> None:
    """Nothing else is due: the answer does not wait for it."""
    rig = Rig(enable_metrics_push=True)
    rig.know("t")
    telemetry = rig.parts.telemetry
    assert telemetry is not None
    assert rig.parts.sender.telemetry is None, "its brokers take none"
    tickets: list[Ticket[uuid.UUID]] = []
    answered: list[float] = []

    def ask() -> None:
        tickets.append(telemetry.instance_id())
        tickets[0].on_done(lambda _: answered.append(rig.clock.now()))

    rig.network.after(0.5, ask)
    started = rig.clock.now()
    rig.run_until(lambda: answered)
    assert answered == [pytest.approx(started + 0.5)]
    with pytest.raises(UnsupportedVersionError, match="take no telemetry"):
        tickets[0].result  # noqa: B018
