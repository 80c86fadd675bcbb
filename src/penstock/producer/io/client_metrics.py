# SPDX-License-Identifier: Apache-2.0
"""Gives names to what the pool, the metadata and the network count by themselves.

Those parts keep plain numbers and know no registry; they are read when somebody asks. Rates of such counters are
brought up to date by `catch_up`, which the reader calls before it takes a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from penstock._events import ClientEvents, Event
from penstock._locks import inside, new_lock
from penstock._metrics import Counter, MetricsRegistry, WindowedStat
from penstock._stats_cy import ACTIVITIES
from penstock._ticket import TicketKind
from penstock.network import NetworkMetrics, NodeMetrics
from penstock.producer.batch._buffer_pool_cy import BufferPool
from penstock.producer.io import metric_names as names
from penstock.producer.metadata.metadata import ProducerMetadata

_NODE_TAG = "node-id"
_ACTIVITY_TAG = "activity"
_EVENT_TAG = "event"

_Counted: TypeAlias = tuple[WindowedStat, Callable[[], float]]  # a rate, and what counts for it


class _Node(NamedTuple):
    """A node whose metrics have names."""

    counters: NodeMetrics
    counted: list[_Counted]


class ClientMetrics:
    """Registers and refreshes the metrics that are not recorded but read.

    Args:
        registry: where they are named.
        network: the network client's counters.
        started_at: the moment the producer was made, for ratios of time.
        events: what is written to the log.
    """

    def __init__(
        self,
        registry: MetricsRegistry,
        network: NetworkMetrics,
        started_at: float,
        events: ClientEvents | None = None,
    ) -> None:
        self._registry = registry
        self._network = network
        self._started_at = started_at
        self._lock: Any = new_lock()  # guards the windows below: several threads may ask for metrics
        self._counted: list[_Counted] = []
        self._nodes: dict[int, _Node] = {}
        self._events = events
        self._event_counts: dict[Event, Counter] = {}  # of those that have happened
        self.buffer_wait_ns = registry.counter(*names.BUFFERPOOL_WAIT_TIME)
        self.buffer_waits = registry.histogram(*names.BUFFERPOOL_WAITS, names.TIME_BOUNDS)
        self.buffer_exhausted = registry.rate_total(*names.BUFFER_EXHAUSTED)
        self.flush_ns = registry.counter(*names.FLUSH_TIME)
        self.metadata_wait_ns = registry.counter(*names.METADATA_WAIT_TIME)
        # By call of the producer; application threads add to them.
        self.transaction_ns = {
            "init_transactions": registry.counter(*names.TXN_INIT_TIME),
            "begin_transaction": registry.counter(*names.TXN_BEGIN_TIME),
            "send_offsets_to_transaction": registry.counter(*names.TXN_SEND_OFFSETS_TIME),
            "commit_transaction": registry.counter(*names.TXN_COMMIT_TIME),
            "abort_transaction": registry.counter(*names.TXN_ABORT_TIME),
        }
        self._activities: list[WindowedStat] = []  # seconds of the I/O thread
        self._register_network()
        self._register_activities()

    def register_memory(self, pool: BufferPool) -> None:
        """Name what the pool knows."""
        gauge = self._registry.gauge
        gauge(*names.WAITING_THREADS, lambda _: pool.waiting())
        gauge(*names.BUFFER_TOTAL, lambda _: pool.total)
        gauge(*names.BUFFER_AVAILABLE, lambda _: pool.available())
        gauge(*names.BUFFERPOOL_LONGEST_WAIT, lambda now: _longest_wait_ms(pool, now))
        gauge(*names.BUFFERPOOL_WAIT_RATIO, self._share_of_time(lambda: self.buffer_wait_ns.total))

    def register_requests(self, metadata: ProducerMetadata, in_flight: Callable[[], int]) -> None:
        """Name what the metadata and the in-flight queues know."""
        self._registry.gauge(*names.METADATA_AGE, metadata.age)
        self._registry.gauge(*names.REQUESTS_IN_FLIGHT, lambda _: in_flight())

    def register_idempotence(self, numbers_all: Callable[[], bool]) -> None:
        """Name what the gate knows."""
        self._registry.gauge(*names.IDEMPOTENCE, lambda _: int(numbers_all()))

    def register_about(self, version: str, wall_ms: int) -> None:
        """Name the client itself."""
        self._registry.gauge(*names.VERSION, lambda _: version)
        # A checkout and a wheel alike do not know their commit; monitoring that asks for it gets an answer.
        self._registry.gauge(*names.COMMIT_ID, lambda _: "unknown")
        self._registry.gauge(*names.START_TIME, lambda _: wall_ms)

    def on_wait(self, kind: TicketKind, seconds: float, now: float) -> None:
        """A call has waited for metadata, or for memory."""
        if kind is TicketKind.METADATA:
            add_nanoseconds(self.metadata_wait_ns, seconds)
        else:
            add_nanoseconds(self.buffer_wait_ns, seconds)
            self.buffer_waits.add(seconds * 1000, now)

    def catch_up(self, now: float) -> None:
        """Bring the rates of counters kept elsewhere up to now. The I/O thread does it once a second while it works."""
        if inside():
            return  # a finalizer or a signal handler asks for metrics: these rates are as of a moment ago
        with self._lock:
            self._follow_nodes()
            for stat, total in self._counted:
                stat.advance_to(total(), now)
            for node in self._nodes.values():
                for stat, total in node.counted:
                    stat.advance_to(total(), now)
            for activity, stat in enumerate(self._activities):
                stat.advance_to(self._network.time.seconds(activity, now), now)
            if self._events is not None:
                self._count_events(self._events)

    def _follow_nodes(self) -> None:
        """Name the counters of new nodes, and forget those of nodes that the network has forgotten."""
        counted = {
            node_id: counters for node_id, counters in self._network.nodes.copy().items() if node_id >= 0
        }
        for node_id, node in list(self._nodes.items()):
            # Other counters: it was forgotten, and has come back since.
            if counted.get(node_id) is not node.counters:
                del self._nodes[node_id]
                self._registry.remove(names.NODE_GROUP, _node_tags(node_id))
        for node_id, counters in counted.items():
            if node_id not in self._nodes:
                self._nodes[node_id] = _Node(counters, self._register_node(node_id, counters))

    def _count_events(self, events: ClientEvents) -> None:
        for event, total in events.counts().items():
            counter = self._event_counts.get(event)
            if counter is None:
                counter = self._registry.counter(*names.EVENT, {_EVENT_TAG: event.label})
                self._event_counts[event] = counter
            counter.total = total

    def _register_network(self) -> None:
        network = self._network
        self._count(names.CONNECTION_CREATION, lambda: network.connections_created)
        self._count(names.CONNECTION_CLOSE, lambda: network.connections_closed)
        self._count(names.SUCCESSFUL_AUTHENTICATION, lambda: network.authentications)
        self._count(names.SUCCESSFUL_REAUTHENTICATION, lambda: network.reauthentications)
        self._count(names.FAILED_REAUTHENTICATION, lambda: network.reauthentications_failed)
        self._count(names.FAILED_AUTHENTICATION, lambda: network.authentications_failed)
        self._count(names.OUTGOING_BYTE, lambda: network.bytes_out)
        self._count(names.INCOMING_BYTE, lambda: network.bytes_in)
        self._count(names.REQUEST, lambda: network.requests)
        self._count(names.RESPONSE, lambda: network.responses)
        self._count(names.NETWORK_IO, lambda: network.requests + network.responses)
        self._count(names.SELECT, lambda: network.select_count)
        gauge = self._registry.gauge
        gauge(*names.CONNECTION_COUNT, lambda _: network.connections_open)
        gauge(*names.IO_WAIT_TIME, lambda _: network.io_wait_ns)
        gauge(*names.IO_TIME, lambda _: network.io_ns)
        gauge(*names.IO_WAIT_TIME_AVG, lambda _: network.io_wait_ns / max(1, network.select_count))
        gauge(*names.IO_TIME_AVG, lambda _: network.io_ns / max(1, network.select_count))
        gauge(*names.IO_WAIT_RATIO, self._share_of_time(lambda: network.io_wait_ns))
        gauge(*names.IO_RATIO, self._share_of_time(lambda: network.io_ns))
        self._size_of_requests(names.REQUEST_SIZE, network, None)

    def _register_activities(self) -> None:
        gauge = self._registry.gauge
        for activity, name in enumerate(ACTIVITIES):
            tags = {_ACTIVITY_TAG: name}
            spent = partial(self._network.time.seconds, activity)
            stat = self._registry.stat()
            self._activities.append(stat)
            gauge(*names.IO_ACTIVITY_TIME, partial(_nanoseconds, spent), tags)
            gauge(*names.IO_ACTIVITY_RATIO, partial(self._share_of_activity, stat), tags)

    def _share_of_activity(self, stat: WindowedStat, now: float) -> float:
        """Part of what all activities took over the last windows: an error that their rates share cancels out."""
        rates = sum(one.rate(now) for one in self._activities)
        return stat.rate(now) / rates if rates else 0.0

    def _register_node(self, node_id: int, counters: NodeMetrics) -> list[_Counted]:
        tags = _node_tags(node_id)
        rate_total = self._registry.rate_total
        counted: list[_Counted] = [
            (rate_total(*names.NODE_REQUEST, tags), lambda: counters.requests),
            (rate_total(*names.NODE_RESPONSE, tags), lambda: counters.responses),
            (rate_total(*names.NODE_OUTGOING_BYTE, tags), lambda: counters.bytes_out),
            (rate_total(*names.NODE_INCOMING_BYTE, tags), lambda: counters.bytes_in),
        ]
        self._size_of_requests(names.NODE_REQUEST_SIZE, counters, tags)
        group, name, description = names.NODE_REQUEST_LATENCY
        gauge = self._registry.gauge
        gauge(
            group,
            f"{name}-avg",
            description,
            lambda _: 1000 * counters.latency_sum / max(1, counters.responses),
            tags,
        )
        gauge(group, f"{name}-max", description, lambda _: 1000 * counters.latency_max, tags)
        return counted

    def _size_of_requests(
        self, row: names.AvgMax, counters: NetworkMetrics | NodeMetrics, tags: dict[str, str] | None
    ) -> None:
        group, name, description = row
        gauge = self._registry.gauge
        gauge(
            group, f"{name}-avg", description, lambda _: counters.bytes_out / max(1, counters.requests), tags
        )
        gauge(group, f"{name}-max", description, lambda _: counters.request_max, tags)

    def _count(self, row: names.RateTotal, total: Callable[[], float]) -> None:
        self._counted.append((self._registry.rate_total(*row), total))

    def _share_of_time(self, nanoseconds: Callable[[], float]) -> Callable[[float], float]:
        return lambda now: nanoseconds() / max(1.0, (now - self._started_at) * 1e9)


def _node_tags(node_id: int) -> dict[str, str]:
    return {_NODE_TAG: f"node-{node_id}"}


def _longest_wait_ms(pool: BufferPool, now: float) -> float:
    return max((1000 * (now - wait.since) for wait in pool.waits()), default=0.0)


def _nanoseconds(seconds: Callable[[float], float], now: float) -> int:
    return int(seconds(now) * 1e9)


def add_nanoseconds(counter: Counter, seconds: float) -> None:
    """Count a wait."""
    counter.add(int(seconds * 1e9))
