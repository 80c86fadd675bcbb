# SPDX-License-Identifier: Apache-2.0
"""The accumulator with everything around it but a network: the tests are its clock, its cluster and its sender."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from watchable import WatchablePool

from penstock._ticket import Ticket
from penstock.errors import KafkaError
from penstock.producer.batch._accumulator_cy import AccumulatorSettings, RecordAccumulator
from penstock.producer.batch._appending_cy import EncodedRecord
from penstock.producer.batch._batch_cy import Batch, BatchState
from penstock.producer.batch._buffer_pool_cy import SMALLEST_CHUNK
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.batch._partitioner_cy import BuiltInPartitioner, PartitionerSettings, TopicState
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.batch._sealing_cy import Sealer
from penstock.producer.guarantee.gate import Gate, OpenGate
from penstock.producer.io._drain_cy import Drainer, ReadyCheck
from penstock.producer.metadata.cluster import NO_COPIES, ClusterSnapshot, TopicInfo
from penstock.producer.send._send_cy import FastPath
from penstock.producer.send.deferring import DeferredSends
from penstock.records._batch_cy import BatchWriter
from penstock.records.compression import Codec, codec
from penstock.records.format import estimate_record_size
from penstock.records.reader import Record, read_batches
from penstock.types import Header, Node

TOPIC = "orders"
START = 1_000.0
TIME = 1_700_000_000_000
NO_LEADER = -1
PLENTY = 32 * 1024 * 1024


def cluster(
    leaders: Sequence[int] = (1,),
    *,
    topic: str = TOPIC,
    epoch: int = 0,
    racks: Mapping[int, str] | None = None,
    more: Mapping[str, Sequence[int]] | None = None,
) -> ClusterSnapshot:
    """A cluster in which the n-th partition is led by the n-th of `leaders`; -1 for a partition without one."""
    topics = {topic: leaders, **(more or {})}
    ids = {leader for led in topics.values() for leader in led if leader != NO_LEADER}
    nodes = {number: Node(number, f"broker-{number}", 9092, (racks or {}).get(number)) for number in ids}
    return ClusterSnapshot(
        nodes,
        {
            name: TopicInfo.of(
                name, bytes(16), range(len(led)), led, [epoch] * len(led), [NO_COPIES] * len(led)
            )
            for name, led in topics.items()
        },
    )


def no_new_batch(*_: object) -> None:
    """What a fast path is given in place of `Appender.append_now`, where it shall not open batches."""


def encoded(
    value: bytes | None,
    key: bytes | None = None,
    headers: tuple[Header, ...] | None = None,
    timestamp: int = TIME,
) -> EncodedRecord:
    """A record as the accumulator takes it."""
    sizes = (None if part is None else len(part) for part in (key, value))
    return EncodedRecord(timestamp, key, value, headers, estimate_record_size(*sizes, headers or ()))


def record_size(value: bytes | None, key: bytes | None = None) -> int:
    """Bytes of a record without headers among the first 64 of a batch, the batch header not included."""
    capacity = estimate_record_size(len(key or b""), len(value or b""))
    return BatchWriter(bytearray(capacity), capacity).append(TIME, key, value, None)


def value_for(size: int) -> bytes:
    """The value of a record that takes exactly `size` bytes of a batch."""
    value = next(
        bytes(size - overhead) for overhead in range(7, 20) if record_size(bytes(size - overhead)) <= size
    )
    assert record_size(value) == size
    return value


class BrokenCodec:
    """A codec that has no memory for batches with certain bytes in them."""

    def __init__(self, sound: Codec, refused: bytes) -> None:
        self.id = sound.id
        self._sound = sound
        self._refused = refused

    def compress(self, raw: Any) -> Any:
        if self._refused in bytes(raw):
            raise MemoryError("no memory for the compressor")
        return self._sound.compress(raw)


class Core:
    """Pool, sealer, partitioner, accumulator and drainer of one producer; virtual time in `now`."""

    def __init__(
        self,
        leaders: Sequence[int] = (1,),
        *,
        batch_size: int = 1024,
        linger_ms: int = 0,
        memory: int = PLENTY,
        compression: str = "none",
        delivery_timeout_ms: int = 120_000,
        max_request_size: int = 1024 * 1024,
        partitioner: PartitionerSettings | None = None,
        gate: Gate | None = None,
        seed: int = 7,
        smallest_chunk: int = SMALLEST_CHUNK,
    ) -> None:
        self.now = START
        self.snapshot = cluster(leaders)
        self.wakeups = 0
        self.pool = WatchablePool(memory, batch_size, smallest=smallest_chunk)
        self.sealer = Sealer(codec(compression), self.pool, batch_size)
        self.partitioner = BuiltInPartitioner(
            partitioner or PartitionerSettings(), lambda: self.snapshot, random.Random(seed)
        )
        self.accumulator = RecordAccumulator(
            AccumulatorSettings(batch_size, linger_ms, delivery_timeout_ms),
            self.pool,
            self.sealer,
            self.partitioner,
            self._woken,
            lambda: self.now,
        )
        self.accumulator.deferred = DeferredSends(
            self.accumulator.owner, self._woken, lambda: self.now, self.accumulator.unseen
        )
        self.drainer = Drainer(self.accumulator, gate or OpenGate(2**31 - 1), max_request_size)
        self.fast_path = FastPath(
            self.accumulator.topics, max_request_size, True, lambda: TIME, self._woken, no_new_batch
        )
        self.fast_path.enabled = True

    def _woken(self) -> None:
        self.wakeups += 1

    # ---- the application's side

    def topic(self, name: str = TOPIC) -> TopicState:
        count = self.snapshot.partition_count(name)
        assert count is not None
        return self.accumulator.topic(name, count)

    def queue(self, partition: int = 0, topic: str = TOPIC) -> PartitionQueue:
        return self.topic(topic).queues[partition]

    def steps(
        self, record: EncodedRecord, partition: int | None = 0, on_delivery: Any = None, topic: str = TOPIC
    ) -> Any:
        return self.accumulator.appender.append_steps(self.topic(topic), partition, record, on_delivery)

    def append(
        self,
        value: bytes | None,
        partition: int | None = 0,
        *,
        key: bytes | None = None,
        headers: tuple[Header, ...] | None = None,
        timestamp: int = TIME,
        on_delivery: Any = None,
        topic: str = TOPIC,
    ) -> Delivery:
        """Append by the general path; there must be memory."""
        delivery = run(self.steps(encoded(value, key, headers, timestamp), partition, on_delivery, topic))
        assert isinstance(delivery, Delivery), "the append had to wait for memory"
        return delivery

    def fast(
        self,
        value: bytes | None,
        partition: int | None = 0,
        *,
        key: bytes | None = None,
        on_delivery: Any = None,
    ) -> Delivery | None:
        """Append by the fast path, if that can do it."""
        return self.fast_path.try_send(TOPIC, value, key, None, partition, None, on_delivery)

    # ---- the sender's side

    def ready(self) -> ReadyCheck:
        return self.drainer.ready(self.snapshot, self.now)

    def expiry(self) -> float:
        """The moment before which no queued batch expires."""
        self.ready()
        return self.drainer.next_expiry

    def ready_ids(self) -> list[int]:
        return sorted(node.id for node in self.ready().nodes)

    def drain(self, *node_ids: int) -> list[Batch]:
        """Drain these brokers, or else those that are ready; the batches are held by requests then."""
        ready = self.ready().nodes
        nodes = [self.snapshot.nodes[number] for number in node_ids] or ready
        drained = self.drainer.drain(nodes, self.now)
        batches = [batch for node_batches in drained.values() for batch in node_batches]
        for batch in batches:
            batch.request_pending = True
        return batches

    def drain_all(self) -> list[Batch]:
        """Drain again and again until nothing is ready."""
        batches: list[Batch] = []
        while some := self.drain():
            batches += some
        return batches

    def acknowledge(self, batch: Batch, base_offset: int = 0) -> None:
        batch.request_pending = False
        if batch.succeed(base_offset, -1):
            self.accumulator.finish(batch)
        self.accumulator.release(batch)

    def fail(self, batch: Batch, error: KafkaError) -> None:
        batch.request_pending = False
        if batch.fail(error):
            self.accumulator.finish(batch)
        self.accumulator.release(batch)

    def retry(self, batch: Batch, backoff: float = 0.0) -> None:
        batch.request_pending = False
        batch.move_to(BatchState.QUEUED)
        batch.attempts += 1
        batch.retry_at = self.now + backoff
        self.accumulator.requeue([batch])

    def split(self, batch: Batch) -> int:
        batch.request_pending = False
        count = self.accumulator.split(batch, lambda *_: None)
        self.accumulator.release(batch)
        return count

    def deliver_all(self, next_offset: int = 0) -> list[Record]:
        """Drain and acknowledge everything that is ready, the offsets counted on; the records in that order."""
        delivered: list[Record] = []
        while batches := self.drain():
            for batch in batches:
                delivered += records(batch)
                self.acknowledge(batch, next_offset)
                next_offset += batch.record_count
        return delivered


def run(steps: Any, ended: Ticket[Any] | None = None) -> Any:
    """Run steps to their end, for their result, or up to the first Ticket that has not ended.

    Args:
        ended: the Ticket that stopped them before.
    """
    try:
        item = next(steps) if ended is None else ended
        while True:
            if not isinstance(item, Ticket):
                item = next(steps)
            elif not item.done:
                return item
            elif (error := _error(item)) is not None:
                item = steps.throw(error)
            else:
                item = steps.send(item.result)
    except StopIteration as stop:
        return stop.value


def run_to(steps: Any, checkpoint: str) -> None:
    """Run steps up to a named checkpoint."""
    item = next(steps)
    while item != checkpoint:
        item = steps.send(item.result) if isinstance(item, Ticket) else next(steps)


def _error(ticket: Ticket[Any]) -> BaseException | None:
    try:
        ticket.result  # noqa: B018
    except BaseException as error:
        return error
    return None


def records(batch: Batch) -> list[Record]:
    """The records of a sealed batch."""
    [sealed] = read_batches(bytes(batch.sealed_bytes()))
    return sealed.records()


def values(*batches: Batch) -> list[bytes | None]:
    """The values of the records of sealed batches."""
    return [record.value for batch in batches for record in records(batch)]
