# SPDX-License-Identifier: Apache-2.0
"""A turn of the I/O thread: drain the ready batches, send them, and make sure that each batch gets its outcome.

One turn is `run_once(now)`. The I/O thread calls it until it ends (`thread`), tests and the simulator call it
themselves. I/O thread only. Compiled if possible.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from penstock._events import Event, tell_error
from penstock._time import FOREVER, ExponentialBackoff
from penstock.errors import DeliveryTimeoutError, KafkaError
from penstock.producer.batch._batch_cy import how_far
from penstock.producer.io._outcomes_cy import Outcomes, Retries
from penstock.producer.io.converting import Conversions
from penstock.producer.io.gate_requests import GateRequests
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.protocol.requests import NodeApiVersions
from penstock.types import Node

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock._stats_cy import OTHER, SEALING, WRITING
    from penstock.network._client_cy import NetworkClient
    from penstock.network._connection_cy import ClientRequest, InFlightRequest
    from penstock.producer.batch._accumulator_cy import RecordAccumulator
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.io._drain_cy import Drainer, ReadyCheck
    from penstock.producer.io._metrics_cy import SenderMetrics
    from penstock.protocol._produce_cy import ProduceRequest
else:
    from cython.cimports.penstock._stats_cy import OTHER, SEALING, WRITING  # type: ignore[no-redef]
    from cython.cimports.penstock.network._client_cy import NetworkClient  # type: ignore[no-redef]
    from cython.cimports.penstock.network._connection_cy import (  # type: ignore[no-redef]
        ClientRequest,
        InFlightRequest,
    )
    from cython.cimports.penstock.producer.batch._accumulator_cy import (  # type: ignore[no-redef]
        RecordAccumulator,
    )
    from cython.cimports.penstock.producer.batch._batch_cy import Batch  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.io._drain_cy import Drainer, ReadyCheck  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.io._metrics_cy import SenderMetrics  # type: ignore[no-redef]
    from cython.cimports.penstock.protocol._produce_cy import ProduceRequest  # type: ignore[no-redef]

log = logging.getLogger("penstock.producer")

_BY_AGE = attrgetter("created")
_FOREVER = cython.declare(cython.double, FOREVER)
# Seconds until the next turn after something unexpected, so that it cannot become a busy loop.
AFTER_UNEXPECTED = 0.1


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """The options of the same names."""

    acks: int
    retries: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    max_in_flight: int


@cython.cclass
class Sender:
    """Sends batches and handles their answers.

    Not final: the simulator, and tests, watch it through the methods of a class of their own.

    Args:
        settings: the few options that matter here.
        accumulator: gives batches, and takes them back.
        drainer: chooses the batches of each request.
        metadata: knows the leaders of partitions.
        client: the network.
        rng: jitter of the retry backoff.
        metrics: counts requests and batches.
        conversions: puts batches into the format of old leaders.
    """

    _accumulator: RecordAccumulator
    _drainer = cython.declare(Drainer, visibility="readonly")
    _client: NetworkClient
    _metrics: SenderMetrics
    _conversions = cython.declare(object)
    _unseen = cython.declare(object)
    telemetry = cython.declare(object, visibility="public")
    _watcher = cython.declare(object)
    _gate = cython.declare(object, visibility="readonly")
    _gate_requests = cython.declare(object, visibility="readonly")
    _metadata = cython.declare(object)
    _outcomes = cython.declare(object, visibility="readonly")
    _acks = cython.declare(object)
    _request_timeout_ms: cython.int
    _one_at_a_time = cython.declare(cython.bint, visibility="readonly")
    _modern: dict
    _in_flight: dict
    _next_in_flight_expiry: cython.double
    _has_sent: cython.bint
    on_topic_forgotten = cython.declare(object, visibility="public")

    def __init__(
        self,
        settings: SenderSettings,
        accumulator: RecordAccumulator,
        drainer: Drainer,
        metadata: ProducerMetadata,
        client: NetworkClient,
        rng: random.Random,
        metrics: SenderMetrics,
        conversions: Conversions,
    ) -> None:
        self._acks = settings.acks
        self._request_timeout_ms = settings.request_timeout_ms
        self._conversions = conversions
        self._modern = conversions.modern
        self._accumulator = accumulator
        self._unseen = accumulator.unseen
        self.telemetry = None  # a TelemetryWatch while it needs turns; set by any thread
        self._watcher = None  # sees each answer; set once, before the thread starts
        self._drainer = drainer
        self._gate = drainer.gate
        self._gate_requests = GateRequests(drainer.gate, client, settings.request_timeout_ms / 1000)
        self._metadata = metadata
        self._client = client
        self._metrics = metrics
        self._one_at_a_time = settings.max_in_flight == 1
        backoff = ExponentialBackoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        retries = Retries(settings.retries, backoff, rng)
        self._outcomes = Outcomes(accumulator, drainer.gate, metadata, retries, metrics)
        # Ordered as drained, so that expiry finds the oldest first in each partition.
        self._in_flight = {}  # Batches
        self._next_in_flight_expiry = FOREVER
        self._has_sent = False  # in this turn
        self.on_topic_forgotten = None  # the user's partitioner, told of a topic; set once

    # ------------------------------------------------------------------------------------- turns

    def run_once(self, now: float, *, may_rest: bool = False) -> None:
        """One turn: send the ready batches, then wait for the network until the next time that something is due.

        Args:
            now: the time.
            may_rest: wait also in a turn that has sent something, if nothing more can be sent at once. Without it, such
                a turn does not wait: a test or the simulator sees the request before time goes on.
        """
        self._take_turn(now, may_rest)

    def start_over(self) -> None:
        """Look at all queues in the next turn: this one has ended with an unexpected error."""
        self._drainer.forget_leaders()

    @cython.cfunc
    def _take_turn(self, now: cython.double, may_rest: cython.bint) -> Any:
        delay: cython.double = _FOREVER
        other: cython.double
        self._metrics.on_turn(now)
        deferred: Any = self._accumulator.deferred
        if deferred.waiting:
            delay = deferred.run(now)
        # Nearly always the gate is at rest: without these calls a single record is sent sooner.
        if not self._gate.numbering.at_rest or self._gate_requests.waiting is not None:
            other = self._ask_gate(now)
            delay = min(delay, other)
        other = self._send_ready(now)
        delay = min(delay, other)
        if self._unseen.has_news:
            other = self._unseen.maybe_tell(now)
            delay = min(delay, other)
        telemetry: Any = self.telemetry
        if telemetry is not None:
            other = telemetry.advance(now)
            delay = min(delay, other)
        self._client.poll(delay if may_rest or not self._has_sent else 0.0, now)

    def _ask_gate(self, now: float) -> float:
        """Let the gate settle what it can, and send its request. Returns seconds until it must be asked again."""
        error = self._gate.before_turn(now)
        if error is not None:
            for batch in self._accumulator.take_unsent(also_retried=self._gate.failed):
                self._outcomes.fail(batch, error, now)
        if refused := self._gate.refused_partitions:
            self._outcomes.fail_refused(refused, now)
        return self._gate_requests.maybe_send(now, self._accumulator.has_undrained)

    def keep_topics(self, in_use: Collection[str]) -> None:
        """Forget topics that are not used any more, unless they have records without an outcome."""
        forgotten = self._accumulator.forget_unused(in_use, self._gate.may_forget)
        self._gate.forget(forgotten)
        kept = self._accumulator.topics
        for part in (self._drainer.load, self._outcomes, self._metrics, self._accumulator.sealer):
            part.keep_topics(kept)
        if self.on_topic_forgotten is not None:
            for topic in dict.fromkeys(queue.topic for queue in forgotten):
                try:
                    self.on_topic_forgotten(topic)
                except Exception as trouble:  # noqa: BLE001 - it is logged
                    text = "the partitioner's on_topic_forgotten raised for topic %s"
                    tell_error(log, Event.PARTITIONER_FAILED, text, topic, topic=topic, error=trouble)

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget all other brokers, which the client has forgotten."""
        self._drainer.load.keep_nodes(kept)
        self._conversions.keep_nodes(kept)

    @cython.cfunc
    def _send_ready(self, now: cython.double) -> cython.double:
        """Drain and send. Returns seconds until something more is due."""
        drainer: Drainer = self._drainer
        check: ReadyCheck = drainer.ready(self._metadata.snapshot, now)
        delay: cython.double = _FOREVER
        other: cython.double
        nodes: list = []
        self._has_sent = False
        if check.leaderless_topics:
            self._ask_for_leaders(check.leaderless_topics, now)
        if check.nodes:
            delay = self._find_usable(check.nodes, now, nodes)
        if nodes:
            other = self._send_to(nodes, now)
            delay = min(delay, other)
        elif self._is_expiring(now) and self._expire(now):
            return 0.0  # the gate may have something to settle
        other = min(drainer.next_expiry, self._next_in_flight_expiry) - now
        return max(0.0, min(delay, check.next_delay, other))

    @cython.cfunc
    def _is_expiring(self, now: cython.double) -> cython.bint:
        """Whether the time of a batch is over."""
        return now >= self._drainer.next_expiry or now >= self._next_in_flight_expiry

    @cython.cfunc
    def _send_to(self, nodes: list, now: cython.double) -> cython.double:
        """Drain and send what is ready for these; seconds until more of it can be, 0 also where something failed.

        Args:
            nodes: leaders that can take a request.
            now: the time.
        """
        drainer: Drainer = self._drainer
        delay: cython.double = _FOREVER
        other: cython.double
        old: dict = self._old_leaders(nodes)
        others_wait: cython.bint = False
        if old:
            nodes, others_wait = self._conversions.admit(nodes, old)
        self._metrics.enter(SEALING)
        drained: dict = drainer.drain(nodes, now, old)
        self._metrics.enter(WRITING if drained else OTHER)  # until the network waits
        for taken in drained.values():
            self._enter_flight(taken)
        self._has_sent = bool(drained)
        sent: list = []
        failed: cython.bint = False
        try:
            if self._is_expiring(now):
                failed = self._expire(now)
        finally:
            # Also after an error: each drained batch must be sent, or get its outcome.
            for node in nodes:
                node_id: Any = node.id
                is_old: cython.bint = bool(old) and node_id in old
                batches = drained.get(node_id)
                if batches and (is_old or self._gate.headerless):
                    drained[node_id] = self._convert(node, old.get(node_id), batches, now)
                    failed = failed or len(drained[node_id]) < len(batches)
                    batches = drained[node_id]
                if batches:
                    failed = not self._send_or_fail(node, batches, now, is_old) or failed
                    if batches:
                        sent.append(node)
        for node in sent:
            self._metrics.on_request(
                drained[node.id], now
            )  # after the sending: a single record need not wait for it
            if drainer.has_more(node.id):
                other = self._client.connection_delay(node, now)
                delay = min(delay, other)
            if others_wait and node.id in old:
                delay = 0.0
        for batch in drainer.unsealed:
            self._metrics.on_batch_error(batch, now)
        if failed or drainer.unsealed:
            return 0.0  # the gate may have something to settle
        return min(delay, AFTER_UNEXPECTED) if others_wait or drainer.gate_failed else delay

    @cython.cfunc
    def _find_usable(self, ready: list, now: cython.double, usable: list) -> cython.double:
        """Which nodes can take a request now; seconds until one of the others may."""
        delay: cython.double = _FOREVER
        other: cython.double
        can_take: cython.bint
        drainer: Drainer = self._drainer
        for node in ready:
            can_take = self._client.ready(node, now)
            if drainer.load.avoids_stalled:
                drainer.load.note_node(node.id, can_take, now)
            if can_take:
                if not (drainer.can_wait(node.id) and self._client.in_flight_count(node.id)):
                    usable.append(node)  # else an answer ends the wait
            else:
                other = self._client.connection_delay(node, now)
                delay = min(delay, other)
        return delay

    def _ask_for_leaders(self, topics: set, now: float) -> None:  # type: ignore[type-arg]
        """Some partitions of these topics have batches, and no known leader."""
        for topic in topics:
            self._metadata.want_topic(topic, now)
        self._metadata.request_update(now)

    @cython.cfunc
    def _old_leaders(self, nodes: list) -> dict:
        """The brokers that need an older message format, by id. Called for every request; nearly always empty."""
        old: dict = {}
        for node in nodes:
            node_id: Any = node.id
            versions: Any = self._client.api_versions(node_id)
            # Without versions the connection has ended, and nothing can be sent. `is_old` is asked once per connection.
            if versions is None or self._modern.get(node_id) is versions:
                continue
            if self._conversions.is_old(node_id, versions, self._metadata.snapshot.nodes):
                old[node_id] = versions
        return old

    @cython.ccall
    def _enter_flight(self, batches: list) -> Any:
        """A request is about to hold these batches."""
        in_flight: dict = self._in_flight
        # With one request at a time nothing of these partitions may overtake: the next batch waits for the answer.
        mute: cython.bint = self._one_at_a_time
        oldest: cython.double = _FOREVER
        batch: Batch
        for batch in batches:
            batch.request_pending = True
            in_flight[batch] = None
            if mute:
                batch.queue.muted = True
            if batch.created < oldest:
                oldest = batch.created
        self._next_in_flight_expiry = min(
            self._next_in_flight_expiry, oldest + self._accumulator.delivery_timeout
        )

    @cython.cfunc
    def _leave_flight(self, batches: list) -> Any:
        """The request of these batches has ended."""
        in_flight: dict = self._in_flight
        batch: Batch
        for batch in batches:
            batch.request_pending = False
            in_flight.pop(batch, None)

    @cython.cfunc
    def _let_go_on(self, batches: list) -> Any:
        """Their partitions may send the next batch."""
        batch: Batch
        if self._one_at_a_time:
            for batch in batches:
                batch.queue.unmute()

    def _convert(
        self, node: Node, versions: NodeApiVersions | None, batches: list[Batch], now: float
    ) -> list[Batch]:
        """Convert batches for an old leader (with versions) or topic. Returns those to send; others were handled."""
        if versions is not None:
            ready, refused = self._conversions.convert(node, versions, batches, now)
        else:
            ready, refused = self._conversions.check_headers(batches, self._gate.headerless)
        for refusal in refused:
            self._leave_flight([refusal.batch])
            try:
                self._outcomes.on_refused(refusal, now)
            finally:
                self._let_go_on([refusal.batch])
        return ready

    @cython.cfunc
    def _send_or_fail(self, node: Any, batches: list, now: cython.double, is_old: cython.bint) -> cython.bint:
        """Send a request; False when some of its batches could not be sent, and have failed.

        Args:
            node: the leader.
            batches: what it leads; loses those that have failed.
            now: the time.
            is_old: whether it gets their message sets.
        """
        try:
            self._send(node, batches, now, is_old)
        except Exception as cause:  # noqa: BLE001 - it is logged
            # No answer will come for these. Without an outcome here, their memory would be lost, too.
            text = "a produce request to %s could not be made"
            tell_error(log, Event.BATCH_ERROR, text, node, node=node, error=cause)
            failed: list = [batch for batch in batches if not self._can_be_sent(batch, is_old)]
            if not failed:
                failed = batches[:]  # none is at fault alone
            batches[:] = [batch for batch in batches if batch not in failed]
            error = KafkaError(f"the records could not be sent to {node}: {cause!r}")
            error.__cause__ = cause
            self._leave_flight(failed)
            try:
                self._outcomes.on_unsent(error, failed, now)
            finally:
                self._let_go_on(failed)
                if batches:
                    self._send_or_fail(node, batches, now, is_old)
            return False
        return True

    def _can_be_sent(self, batch: Batch, is_old: bool) -> bool:
        """Whether a batch can be put into a request of its own."""
        try:
            ProduceRequest(self._acks, 0, self._drainer.partition_batches([batch], is_old))
        except Exception:  # noqa: BLE001 - the error with all of them is logged
            return False
        return True

    @cython.cfunc
    def _send(self, node: Any, batches: list, now: cython.double, is_old: cython.bint) -> Any:
        request: Any = ProduceRequest(
            self._acks,
            self._request_timeout_ms,
            self._drainer.partition_batches(batches, is_old),
            self._gate.transactional_id,
            max_version=self._gate.max_produce_version,
        )
        timeout: cython.double = self._request_timeout_ms
        asked = ClientRequest(node, request, timeout / 1000, partial(self._on_response, batches))
        self._client.send(asked, now)

    def watch_answers(self, watcher: Callable[[InFlightRequest, list[Batch]], object]) -> None:
        """Show each answer to somebody before it is handled. Once, before the thread starts."""
        self._watcher = watcher

    # ---- expiry

    def _expire(self, now: float) -> bool:
        """Fail the batches whose delivery time-out is over; whether there were any."""
        timeout = self._accumulator.delivery_timeout
        expired: list[Batch] = []
        if now >= self._next_in_flight_expiry:
            expired += [batch for batch in self._in_flight if batch.reached_timeout(now, timeout)]
            for batch in expired:
                # Its request still holds the bytes: the memory comes back with the answer.
                del self._in_flight[batch]
            self._next_in_flight_expiry = min(
                (batch.created + timeout for batch in self._in_flight), default=FOREVER
            )
        if now >= self._drainer.next_expiry:
            expired += self._drainer.take_expired(now)
        # Callbacks are called in the order of each partition's records: a batch in flight is older than one that waits,
        # unless that one waits for a retry.
        expired.sort(key=_BY_AGE)
        for batch in expired:
            try:
                self._fail_expired(batch, now)
            except Exception as cause:  # noqa: BLE001 - it is logged
                text, place = "a batch of %s that has expired could not be handled", batch.topic_partition
                tell_error(log, Event.BATCH_ERROR, text, place, place=place, error=cause)
                error = DeliveryTimeoutError(
                    f"the delivery time-out of a batch of {batch.topic_partition} is over: {cause!r}"
                )
                error.__cause__ = cause
                batch.in_doubt = True  # a broker may have got it
                self._outcomes.on_unsent(error, [batch], now)
        return bool(expired)

    def _fail_expired(self, batch: Batch, now: float) -> None:
        tp = batch.topic_partition
        message = (
            f"Expiring {batch.record_count} record(s) for {tp}: {int(batch.age(now) * 1000)} ms has passed since "
            f"batch creation (delivery.timeout.ms). {how_far(batch)}"
        )
        stuck = self.why_stuck(batch)
        if stuck is not None and str(stuck) not in message:
            message += f" {stuck}"
        error = DeliveryTimeoutError(message)
        error.__cause__ = batch.last_error or stuck
        self._gate.on_expired(batch, error)
        self._outcomes.fail(batch, error, now)

    def why_stuck(self, batch: Batch) -> KafkaError | None:
        """What keeps a batch from being sent, as far as it is known. From any thread."""
        topic, partition = batch.topic_partition
        leader = self._metadata.snapshot.leader(topic, partition)
        if leader is not None:
            return self._client.connection_error(leader.id)
        # Without a leader it could not be sent: the cause is why the metadata has no leader.
        cause = self._metadata.explain_timeout(topic, partition, 0).__cause__
        return cause if isinstance(cause, KafkaError) else None

    # ---- answers

    @cython.ccall
    def _on_response(self, batches: list, response: InFlightRequest) -> Any:
        now: cython.double = response.received_at
        if self._watcher is not None:
            self._watcher(response, batches)
        self._leave_flight(batches)
        # Before the outcomes: callbacks must see the new values.
        if response.error is None and response.body is not None:
            self._metrics.on_response(now - response.sent_at, response.body.throttle_ms, now)
        try:
            self._outcomes.on_response(response, batches, now)
        finally:
            self._let_go_on(batches)
