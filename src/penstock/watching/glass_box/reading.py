# SPDX-License-Identifier: Apache-2.0
"""What a producer does at this moment, read from its parts.

Rules:
1. Reading takes no lock of the producer and changes nothing. Sets and dictionaries are copied in one step; numbers are
   read one by one, so that two of them may be a moment apart.
2. Keys, values and headers of records are never looked at.
3. At most MOST_LANES partitions are described, those in trouble first; the others are counted.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock._counted import counted
from penstock._stats_cy import ACTIVITIES
from penstock.network.states import PREPARING, READY, REMEMBERED, UNCONNECTED
from penstock.producer.batch._batch_cy import BatchState
from penstock.producer.lifecycle import held_at

if TYPE_CHECKING:
    from penstock.network.states import NodeView
    from penstock.producer.assembly import ProducerParts
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.types import Node

MOST_LANES = 200
MOST_WAITS = 20
# Seconds: a broker without an answer for so long is shown as silent, and a callback that runs for so long as slow.
SILENCE = 1.0
LONG_CALLBACK = 0.5
UNUSED = 5.0  # seconds since a broker could be tried again; if it was not, nothing needs it

GOOD, QUIET, WARN, BAD = "good", "quiet", "warn", "bad"


@dataclass
class Lane:
    """One partition: what is gathered, waits, is in flight, or is sent again.

    Attributes:
        open_fill: how full the open batch is, 0 to 1; None when no batch is open.
        linger_left_ms: how long it still waits for records; 0 when it waits for something else.
        queued: closed batches that wait, and `queued_records`, what they hold.
        in_flight: batches without an answer, and `in_flight_ms`, how long the oldest has waited for it.
        retries: batches that wait to be sent again; `attempt` and `cause` are of the one that was sent most often,
            and `retry_in_ms` says when the next of them may go.
        batches: that were opened so far.
    """

    topic: str
    partition: int
    leader: int | None = None
    open_fill: float | None = None
    open_records: int = 0
    linger_left_ms: float = 0.0
    queued: int = 0
    queued_records: int = 0
    in_flight: int = 0
    in_flight_records: int = 0
    in_flight_ms: float = 0.0
    retries: int = 0
    attempt: int = 0
    retry_in_ms: float = 0.0
    cause: str = ""
    oldest_ms: float = 0.0
    batches: int = 0
    text: str = ""


@dataclass
class BrokerLine:
    """One broker: the state of its connection, in a word and in a sentence.

    Attributes:
        error: why there is no connection.
        past: the last error of one that has a connection again, and how long ago it was.
    """

    id: int
    address: str
    state: str
    tone: str
    text: str
    in_flight: int = 0
    silent_s: float = 0.0
    error: str = ""
    past: str = ""
    requests: int = 0
    responses: int = 0
    latency_sum: float = 0.0


@dataclass
class IoThread:
    """What the I/O thread does now, and has done so far, in seconds."""

    now: str
    for_s: float
    where: str
    seconds: dict[str, float]


@dataclass
class Memory:
    """buffer.memory, and who waits for it."""

    total: int
    free: int
    waiting: int
    waits: list[dict[str, Any]] = field(default_factory=list)


def lanes_of(parts: ProducerParts, now: float) -> tuple[list[Lane], dict[str, int]]:
    """The partitions to show, by topic and number; and how many there are in all, busy or not."""
    by_queue: dict[PartitionQueue, list[Batch]] = defaultdict(list)
    counts = dict.fromkeys(("partitions", "topics", "batches", "in_flight", "queued", "retries", "open"), 0)
    for batch in parts.accumulator.incomplete_batches():
        by_queue[batch.queue].append(batch)
        counts["batches"] += 1
        if batch.state is BatchState.IN_FLIGHT:
            counts["in_flight"] += 1
        elif batch.state is BatchState.QUEUED:
            counts["retries" if batch.attempts else "queued"] += 1
    counts["busy"] = len(by_queue)
    counts["open"] = sum(not queue.needs_batch() for queue in by_queue)
    counts["queued"] = max(0, counts["queued"] - counts["open"])
    shown = list(by_queue)
    if len(shown) > MOST_LANES:  # before anything is worked out for each
        shown = heapq.nlargest(MOST_LANES, shown, key=lambda queue: _trouble(by_queue[queue]))
    linger = parts.accumulator.linger
    lanes = [lane_of(queue, by_queue[queue], linger, now) for queue in shown]
    for state in list(parts.accumulator.topics.values()):
        queues = state.queues
        counts["topics"] += 1
        counts["partitions"] += len(queues)
        idle = [queue for queue in queues[: MOST_LANES - len(lanes)] if queue not in by_queue]
        lanes.extend(Lane(queue.topic, queue.partition) for queue in idle)
    snapshot = parts.metadata.snapshot
    for lane in lanes:
        info = snapshot.partition(lane.topic, lane.partition)
        lane.leader = None if info is None or info.leader_id < 0 else info.leader_id
        lane.text = lane_text(lane)
    lanes.sort(key=lambda lane: (lane.topic, lane.partition))
    counts["left_out"] = max(0, max(counts["partitions"], counts["busy"]) - len(lanes))
    return lanes, counts


def _trouble(batches: list[Batch]) -> tuple[int, float]:
    """The order in which partitions are shown: how often a batch was sent again, then the age of the oldest."""
    return max(batch.attempts for batch in batches), -min(batch.created for batch in batches)


def lane_of(queue: PartitionQueue, batches: Iterable[Batch], linger: float, now: float) -> Lane:
    """Where the batches of one partition are. They may change meanwhile: each is read once."""
    lane = Lane(queue.topic, queue.partition)
    newest: Batch | None = None
    next_retry = math.inf
    for batch in batches:
        age_ms = 1000 * max(0.0, now - batch.created)
        lane.oldest_ms = max(lane.oldest_ms, age_ms)
        lane.batches = max(lane.batches, batch.opening)
        if batch.state is BatchState.IN_FLIGHT:
            lane.in_flight += 1
            lane.in_flight_records += batch.record_count
            lane.in_flight_ms = max(lane.in_flight_ms, 1000 * max(0.0, now - batch.drained_at))
        elif batch.state is BatchState.QUEUED and batch.attempts:
            lane.retries += 1
            next_retry = min(next_retry, batch.retry_at)
            if batch.attempts > lane.attempt:
                lane.attempt = batch.attempts
                lane.cause = str(batch.last_error or "")
        elif batch.state is BatchState.QUEUED:
            lane.queued += 1
            lane.queued_records += batch.record_count
            if newest is None or batch.opening > newest.opening:
                newest = batch
    if lane.retries:
        lane.retry_in_ms = 1000 * max(0.0, next_retry - now)
    if newest is not None and not queue.needs_batch():
        lane.queued -= 1
        lane.open_records = newest.record_count
        lane.queued_records = max(0, lane.queued_records - lane.open_records)
        writer = newest.writer
        lane.open_fill = min(1.0, writer.estimated_size() / max(1, writer.limit))
        lane.linger_left_ms = 1000 * max(0.0, linger - (now - newest.created))
    return lane


def lane_text(lane: Lane) -> str:
    """A lane as a text."""
    words = []
    if lane.retries:
        words.append(
            f"{counted(lane.retries, 'batch')} to be sent again, attempt {lane.attempt}: {lane.cause}"
        )
    if lane.in_flight:
        words.append(f"{counted(lane.in_flight, 'batch')} in flight for {_ms(lane.in_flight_ms)}")
    if lane.queued:
        words.append(f"{counted(lane.queued, 'batch')} queued")
    if lane.open_fill is not None:
        lingers = f", lingers {_ms(lane.linger_left_ms)} more" if lane.linger_left_ms else ""
        words.append(
            f"open batch {percent(lane.open_fill)} full, {counted(lane.open_records, 'record')}{lingers}"
        )
    if words and lane.leader is None:
        words.append("no leader is known")
    return "; ".join(words) or "idle"


def brokers_of(parts: ProducerParts, now: float) -> list[BrokerLine]:
    """All brokers that the metadata list, and those that they have listed until lately."""
    counters = parts.client.metrics.nodes
    named = parts.metadata.snapshot.nodes
    left = {node.id: node for node in parts.client.tried_nodes() if node.id >= 0 and node.id not in named}
    wanted = _waited_for(parts) if left else set()
    lines = []
    for node in sorted([*named.values(), *left.values()]):
        view, error = parts.client.look_at(node.id), parts.client.connection_error(node.id)
        line = broker_line(node, view, error, now)
        if node.id in left:
            if view is None or now - view.last_attempt_at > REMEMBERED:
                continue
            # The broker may be back: only the next metadata tell.
            line.state, line.tone = "gone", BAD if node.id in wanted or line.in_flight else WARN
            why = f"{_sentence(line.error)} " if line.error else ""
            age = _ago(max(0.0, parts.metadata.age(now)))
            line.text = f"{why}The metadata are {age} old and do not list this broker; {_waits(parts, line)}."
        past = parts.client.past_error(node.id)
        if past is not None and not line.error:
            line.past = f"last error {_ago(max(0.0, now - past.at))} ago: {past.text}"
        counted = counters.get(node.id)
        if counted is not None:
            line.requests, line.responses = counted.requests, counted.responses
            line.latency_sum = counted.latency_sum
        lines.append(line)
    return lines


def _waits(parts: ProducerParts, line: BrokerLine) -> str:
    """What waits for a broker that has left the cluster, or for the metadata, which say who does its work now."""
    if line.tone is BAD:
        return "batches wait for it"
    snapshot = parts.metadata.snapshot
    unplaced = any(
        snapshot.partition(batch.queue.topic, batch.queue.partition) is None
        for batch in parts.accumulator.incomplete_batches()
    )
    if unplaced:
        return "batches wait for metadata"
    calls = parts.metadata.waiting_calls()
    if calls:
        return f"{counted(calls, 'call')} {'waits' if calls == 1 else 'wait'} for metadata"
    return "no batch waits for it"


def _waited_for(parts: ProducerParts) -> set[int]:
    """The brokers that batches wait for: the leader of their partition, or its replicas where there is no leader."""
    snapshot = parts.metadata.snapshot
    wanted: set[int] = set()
    for queue in {batch.queue for batch in parts.accumulator.incomplete_batches()}:
        info = snapshot.partition(queue.topic, queue.partition)
        if info is not None:
            wanted.update((info.leader_id,) if info.leader_id >= 0 else info.replicas)
    return wanted


def broker_line(node: Node, view: NodeView | None, error: Exception | None, now: float) -> BrokerLine:
    """One broker, in a word and in a sentence."""
    line = BrokerLine(node.id, f"{node.host}:{node.port}", "not used", QUIET, "No connection was needed yet.")
    if view is None:
        return line
    line.in_flight = view.in_flight
    line.error = "" if error is None else str(error)
    waited = 0.0 if view.waits_since is None else max(0.0, now - view.waits_since)
    if view.state is READY:
        line.state, line.tone, line.text = "ready", GOOD, "Connected."
        if waited >= SILENCE:
            line.silent_s = waited
            line.state, line.tone = f"no answer for {waited:.0f} s", BAD
            line.text = (
                f"{counted(view.in_flight, 'request')} in flight, and no answer for {waited:.0f} s. The broker may be "
                "overloaded, stopped, or cut off."
            )
        elif view.throttled_until > now:
            line.state, line.tone = "throttled", WARN
            line.text = f"The broker's quota delays the next request by {view.throttled_until - now:.1f} s."
    elif view.state in PREPARING:
        line.state, line.tone = view.state.value, QUIET if waited < SILENCE else WARN
        before = f" The error before: {line.error}" if line.error else ""
        line.text = f"This has taken {waited:.1f} s until now.{before}"
        if waited >= SILENCE:
            line.silent_s = waited
            line.text = f"No answer for {waited:.0f} s.{before}"
        if line.error:
            line.tone = BAD
    elif view.state in UNCONNECTED and now - view.next_attempt_at > UNUSED:
        why = f": {line.error}" if line.error else ""
        ended = now - view.last_attempt_at
        line.text = f"The connection ended {ended:.0f} s ago. No request has needed one since then{why}"
    elif view.state in UNCONNECTED:
        again = max(0.0, view.next_attempt_at - now)
        line.state, line.tone = view.state.value, BAD if line.error else QUIET
        tries = f" {counted(view.failed_attempts, 'attempt')} failed." if view.failed_attempts > 1 else ""
        next_one = (
            f"The next attempt is in {again:.1f} s."
            if again > 0
            else "The next attempt comes when a request needs it."
        )
        line.text = f"{_sentence(line.error or 'the connection was closed')}{tries} {next_one}"
    else:
        line.state, line.text = view.state.value, "The client authenticates again, to renew its session."
    return line


def io_of(parts: ProducerParts, thread: threading.Thread, now: float) -> IoThread:
    """What the I/O thread does; where it is, when a callback takes long."""
    time = parts.client.metrics.time
    activity, since = ACTIVITIES[time.activity], time.since
    for_s = max(0.0, now - since) if since >= 0 else 0.0
    where = held_at(thread) if activity == "callbacks" and for_s >= LONG_CALLBACK else ""
    seconds = {name: time.seconds(at, now) for at, name in enumerate(ACTIVITIES)}
    return IoThread(activity, for_s, where, seconds)


def memory_of(parts: ProducerParts, now: float) -> Memory:
    """buffer.memory now."""
    pool = parts.accumulator.pool
    waits = pool.waits()
    return Memory(
        pool.total,
        max(0, pool.available()),
        len(waits),
        [
            {
                "thread": wait.thread,
                "bytes": wait.size,
                "gathered": wait.gathered,
                "seconds": max(0.0, now - wait.since),
            }
            for wait in waits[:MOST_WAITS]
        ],
    )


SHOWN_OPTIONS = (
    "linger.ms", "batch.size", "acks", "compression.type", "buffer.memory", "max.in.flight.requests.per.connection",
    "max.request.size", "delivery.timeout.ms", "enable.idempotence", "transactional.id",
)  # fmt: skip


def options_of(parts: ProducerParts) -> dict[str, Any]:
    """The options that explain the numbers."""
    options = parts.config.as_dict()
    options["acks"] = "all" if options["acks"] == -1 else options["acks"]
    return {name: options[name] for name in SHOWN_OPTIONS if options[name] is not None}


def as_json(value: Any) -> dict[str, Any]:
    """One of the above, as it is sent; floats with few digits."""
    return {name: _short(one) for name, one in vars(value).items()}


def percent(share: float) -> str:
    """A part of something, for people."""
    return f"{100 * share:.0f} %"


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {name: _short(one) for name, one in value.items()}
    return value


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
