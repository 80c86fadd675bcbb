# SPDX-License-Identifier: Apache-2.0
"""Who waits for the instance id, and when the sender is asked in each turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock._time import FOREVER
from penstock.errors import ProducerClosedError, UnsupportedVersionError
from penstock.protocol.requests import NodeApiVersions
from penstock.telemetry.watch import TelemetryWatch
from penstock.types import Node

NODE = Node(1, "h", 1)
PUSH_TELEMETRY = 72


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
    network.versions = NodeApiVersions({0: (0, 13)})
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
        network.versions = NodeApiVersions({0: (0, 13)})
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
    network.versions = NodeApiVersions({0: (0, 13), PUSH_TELEMETRY: (0, 0)})
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
