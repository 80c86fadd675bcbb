# SPDX-License-Identifier: Apache-2.0
"""Looks over the shoulder of the network client and of the metadata, for all producers of a simulation.

Rules that are checked here:
1. A node is connected to again after its backoff, not before.
2. What brokers say is understood: the client finds nonsense only where a broker has sent some.
3. Of the leaders of a partition the client goes from one to a later one, never back.
4. Records without a key do not go to a partition that is known to have no leader while others have one.
5. No broker is taken for one that cannot be asked for its versions, unless it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.errors import KafkaError, ProtocolError
from penstock.network.old_brokers import OldBrokers, OpeningMode
from penstock.network.states import ConnectionStates, NodeState
from penstock.producer.assembly import ProducerParts
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.protocol.requests import NodeApiVersions
from penstock.types import Node

if TYPE_CHECKING:
    from simulation.run import Simulation

_LEAST = 0.8  # of a wait, by its jitter
_ROUNDING = 1e-9


@contextmanager
def watched_network(sim: Simulation) -> Iterator[None]:
    """Watch connections, and what is read from them (rules 1, 2 and 5)."""
    initial = sim.plan.options["reconnect_backoff_ms"] / 1000
    longest = sim.plan.options["reconnect_backoff_max_ms"] / 1000
    waits: dict[
        NodeState, tuple[float, int]
    ] = {}  # the next attempt not before; attempts that failed since READY
    connecting, disconnected, ready = (
        ConnectionStates.connecting, ConnectionStates.disconnected, ConnectionStates.ready,
    )  # fmt: skip

    def watched_connecting(states: ConnectionStates, node: Node, now: float) -> NodeState:
        known = states.get(node.id)
        if known is not None and known in waits and now < waits[known][0] - _ROUNDING:
            sim.violate(
                f"{node} is connected to {1000 * (waits[known][0] - now):.1f} ms before the end of its backoff"
            )
        return connecting(states, node, now)

    def watched_loss(states: ConnectionStates, known: NodeState, now: float) -> None:
        disconnected(states, known, now)
        failures = waits.get(known, (0.0, 0))[1]
        waits[known] = (now + min(longest, initial * 2**failures * _LEAST), failures + 1)

    def watched_ready(states: ConnectionStates, known: NodeState) -> None:
        ready(states, known)
        waits.pop(known, None)

    on_dropped, on_closed, assumed = OldBrokers.on_dropped, OldBrokers.on_closed, OldBrokers.assumed
    when_closed: dict[str, str] = {}  # the release of a broker when it closed a connection, by host

    def watched_drop(old_brokers: OldBrokers, node: Node, mode: OpeningMode) -> NodeApiVersions | None:
        taken_for = on_dropped(old_brokers, node, mode)
        if taken_for is not None:
            _check_taken_for(sim, node, taken_for, sim.plan.changes)  # it may have changed after it was asked
        return taken_for

    def watched_close(
        old_brokers: OldBrokers, node: Node, mode: OpeningMode, now: float, *, after_metadata: bool
    ) -> None:
        on_closed(old_brokers, node, mode, now, after_metadata=after_metadata)
        when_closed[node.host] = _release(sim, node)

    def watched_assumption(old_brokers: OldBrokers, node: Node) -> NodeApiVersions:
        # Cut connections look like closed ones: this is allowed with a broker that cannot be asked.
        taken_for = assumed(old_brokers, node)
        # It may have changed since it was proven: that holds for one connection.
        _check_taken_for(sim, node, taken_for, (when_closed.get(node.host, ""),))
        return taken_for

    on_connection_failed = ProducerMetadata.on_connection_failed

    def watched_failure(metadata: ProducerMetadata, node: Node, error: KafkaError, now: float) -> None:
        on_connection_failed(metadata, node, error, now)
        # With acks=0 the fake's faults answer a request that wants no answer.
        if isinstance(error, ProtocolError) and sim.plan.acks != "0":
            sim.nonsense -= 1
            if sim.nonsense < 0:
                sim.violate(f"{node} has sent no nonsense, and the client says: {error}")

    with (
        mock.patch.object(ConnectionStates, "connecting", watched_connecting),
        mock.patch.object(ConnectionStates, "disconnected", watched_loss),
        mock.patch.object(ConnectionStates, "ready", watched_ready),
        mock.patch.object(ProducerMetadata, "on_connection_failed", watched_failure),
        mock.patch.object(OldBrokers, "on_dropped", watched_drop),
        mock.patch.object(OldBrokers, "on_closed", watched_close),
        mock.patch.object(OldBrokers, "assumed", watched_assumption),
    ):
        yield


def _check_taken_for(sim: Simulation, node: Node, taken_for: NodeApiVersions, changes: Iterable[str]) -> None:
    if "0.9.0" not in (_release(sim, node), *changes):
        sim.violate(f"{node} is taken for Kafka {taken_for.release}")


def _release(sim: Simulation, node: Node) -> str:
    return sim.cluster.release_of(int(node.host.removeprefix("broker-"))).name


class LeaderWatch:
    """Watches what one producer knows of leaders, and what it makes of it (rules 3 and 4)."""

    def __init__(self, sim: Simulation, parts: ProducerParts) -> None:
        self._sim = sim
        self._topics = parts.accumulator.topics
        self._known = parts.metadata.snapshot
        self._leaderless: dict[tuple[str, int], int] = {}  # partitions without a leader, since which turn
        self._chosen: dict[Any, int] = {}  # where records without a key go
        parts.metadata.on_snapshot(self._on_snapshot)

    def _on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        before, self._known = self._known, snapshot
        leaderless = {}
        for name, topic in snapshot.topics.items():
            same_topic = topic.topic_id == before.topic_id(name)
            for info in topic.partitions:
                known = before.partition(name, info.partition)
                if same_topic and known is not None and 0 <= info.leader_epoch < known.leader_epoch:
                    self._sim.violate(
                        f"the leader of {name}-{info.partition} in epoch {info.leader_epoch} is taken for the present "
                        f"one, and that of epoch {known.leader_epoch} was known"
                    )
                if snapshot.leader_of(info) is None:
                    place = (name, info.partition)
                    leaderless[place] = self._leaderless.get(place, self._sim.report.turns)
        self._leaderless = leaderless

    def look(self) -> None:
        """See whether a choice was made that should not have been, after a step of an application thread."""
        for name, topic in list(self._topics.items()):
            chosen = topic.sticky_partition
            if self._chosen.get(topic) == chosen:
                continue
            self._chosen[topic] = chosen
            since = self._leaderless.get((name, chosen))
            # Lengths of queues are noted once a turn, and chosen by until then.
            known = since is not None and self._sim.report.turns > since + 1
            if known and self._known.available_partitions(name):
                self._sim.violate(
                    f"records without key go to {name}-{chosen}, which has no leader, and others have"
                )
