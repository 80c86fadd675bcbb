# SPDX-License-Identifier: Apache-2.0
"""The general path of send(), written once, as steps that yield what they wait for.

The driver of the steps decides how to wait: `steps.run_steps` blocks the calling thread within max.block.ms; the
AsyncProducer awaits; the simulator chooses at each checkpoint which thread runs next. A driver answers a yielded Ticket
with its result, throws its error, or throws TimeIsUp. A yielded Checkpoint needs no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._arguments import TOPIC_RULE
from penstock._primitives_cy import CRC32, MURMUR2, partition_for_key
from penstock._time import Clock
from penstock.errors import (
    IllegalStateError,
    ProducerClosedError,
    RecordTooLargeError,
    TransactionAbortedError,
)
from penstock.partitioners import Partitioner
from penstock.producer.batch._accumulator_cy import RecordAccumulator
from penstock.producer.batch._appending_cy import EncodedRecord
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.batch._partitioner_cy import TopicState
from penstock.producer.batch._queue_cy import TopicForgotten
from penstock.producer.guarantee.gate import Gate, OpenGate
from penstock.producer.interceptors import Interceptors, refused_metadata
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.producer.send.deferring import LaterRecord
from penstock.producer.steps import Checkpoint, Steps, TimeIsUp
from penstock.records._crc_cy import crc32_partition
from penstock.records.format import estimate_record_size
from penstock.serializers import BytesSerializer, MutableHeaders, Serializer, serialize_part
from penstock.types import Header, OnDelivery, ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from penstock._tracing import ProducerTracing, RecordEnd

_MAX_TIMESTAMP = 2**63 - 1
_AS_THEY_ARE = (BytesSerializer(), BytesSerializer())
_MAX_TOPIC_BYTES = 249  # on every cluster
_CLOSED = "the producer is closed: it takes no more records"


class Placement:
    """Chooses partitions: explicit, by a custom partitioner, by the key's hash, or left to the accumulator (None).

    Args:
        partitioner: the user's, or None for the built-in way.
        key_hash: how keys choose the partition in the built-in way: IGNORED, MURMUR2 or CRC32.
    """

    def __init__(self, partitioner: Any | None, key_hash: int) -> None:
        self.partitioner = partitioner
        self.key_hash = key_hash
        hook = getattr(type(partitioner), "on_new_batch", None)
        self.wants_new_batches = hook is not None and hook is not Partitioner.on_new_batch

    def choose(
        self, record: ProducerRecord, key: bytes | None, value: bytes | None, cluster: ClusterSnapshot
    ) -> int | None:
        """The record's partition; None: the present sticky partition of the topic.

        Raises:
            ValueError: a custom partitioner gave a partition that does not exist.
        """
        if record.partition is not None:
            return record.partition
        count = cluster.partition_count(record.topic) or 1
        if self.partitioner is not None:
            return self._ask(record, key, value, cluster, count)
        if key is not None and self.key_hash == MURMUR2:
            return int(partition_for_key(key, count))
        if key and self.key_hash == CRC32:
            return int(crc32_partition(key, count))
        return None

    def _ask(
        self,
        record: ProducerRecord,
        key: bytes | None,
        value: bytes | None,
        cluster: ClusterSnapshot,
        count: int,
    ) -> int:
        partitioner: Any = self.partitioner
        chosen = partitioner.partition(record.topic, record.key, key, record.value, value, cluster)
        if not isinstance(chosen, int) or isinstance(chosen, bool):
            raise TypeError(f"{self.partitioner!r} must give an int, not {type(chosen).__name__}")
        if not 0 <= chosen < count:
            raise ValueError(
                f"{self.partitioner!r} chose partition {chosen} of topic {record.topic!r}, which has partitions 0 to "
                f"{count - 1}"
            )
        return chosen


class RecordLimit(NamedTuple):
    """What one record may take.

    Attributes:
        size: bytes.
        option: the name of the option that says so.
    """

    size: int
    option: str

    def error(self, what: str, size: int) -> RecordTooLargeError:
        """The error for a record that may take `size` bytes."""
        return RecordTooLargeError(
            f"{what} takes up to {size} bytes, more than {self.option} allows ({self.size}). Raise that option (and "
            "the topic's max.message.bytes), or send less at once.",
            size=size,
            limit=self.size,
            option=self.option,
        )


class SendPath:
    """Takes one record from the call to the accumulator.

    Args:
        accumulator: takes it.
        metadata: topics and their partitions.
        serializers: of key and value.
        placement: chooses partitions.
        interceptors: see every record.
        max_record_size: the smaller of max.request.size and buffer.memory, with the name of the option.
        clock: for timestamps and for the metadata's notion of now.
        tracing: gives records and calls the caller's context, and spans.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        metadata: ProducerMetadata,
        serializers: tuple[Serializer, Serializer],
        placement: Placement,
        interceptors: Interceptors,
        max_record_size: tuple[int, str],
        clock: Clock,
        tracing: ProducerTracing | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._appender = accumulator.appender
        self._metadata = metadata
        self._serializers = serializers
        self._placement = placement
        self._interceptors = interceptors
        self.limit = RecordLimit(*max_record_size)
        self._clock = clock
        self.closed = False  # set by close(), on any thread
        self.gate: Gate = OpenGate(0)  # set once, when the producer is put together
        self.tracing = tracing
        # Wraps the steps of each record, to follow one; a viewer sets and clears it, on any thread.
        self.follower: Callable[[ProducerRecord, Steps[Delivery]], Steps[Delivery]] | None = None

    def steps(
        self,
        record: ProducerRecord,
        on_delivery: OnDelivery | None,
        as_bytes: bool = False,
        in_bulk: bool = False,
    ) -> Steps[Delivery]:
        """Send a record. An error before it is accepted is raised, and the interceptors get it as well.

        Args:
            as_bytes: key and value are bytes already, and no serializer is asked.
            in_bulk: it is one of many in a call that is traced as a whole.
        """
        steps = self._steps(record, on_delivery, as_bytes, in_bulk)
        follower = self.follower
        return steps if follower is None else follower(record, steps)

    def _steps(
        self, record: ProducerRecord, on_delivery: OnDelivery | None, as_bytes: bool, in_bulk: bool
    ) -> Steps[Delivery]:
        reached = _Reached()
        record = self._begin(record, reached, in_bulk)
        try:
            return (yield from self._accept(record, on_delivery, reached, as_bytes))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._tell_refused(record, reached, error)
            raise

    def later(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> LaterRecord:
        """Prepare a record that is sent in the middle of another call, to be appended later. Takes no lock.

        An error of the record itself is raised at once, as by `steps`.
        """
        reached = _Reached()
        record = self._begin(record, reached, False)
        try:
            if self.closed:
                raise ProducerClosedError(_CLOSED)
            if not self._accumulator.admits_records():
                raise IllegalStateError(
                    "the producer takes no records now: no transaction is open, or one has failed"
                )
            check_topic_name(record.topic)
            encoded = self._encode(record, *self.serialize(record))
        except BaseException as error:
            self._tell_refused(record, reached, error)
            raise
        transaction = self.gate.transaction

        def admitted() -> None:
            if self.gate.transaction is not transaction:
                raise TransactionAbortedError("the transaction ended before the record could be appended")
            self.check_open()

        return LaterRecord(
            record.topic,
            encoded,
            self._append_later(record, encoded, on_delivery, reached, admitted),
            admitted,
            lambda error: self._tell_refused(record, reached, error),
        )

    def _begin(self, record: ProducerRecord, reached: _Reached, in_bulk: bool) -> ProducerRecord:
        """Give the record to the interceptors, then to tracing: so that tracing sees what interceptors add."""
        if len(self._interceptors):
            record = self._interceptors.on_send(record)
        if self.tracing is not None and not in_bulk:
            record, reached.ended = self.tracing.begin(record)
        return record

    def _tell_refused(self, record: ProducerRecord, reached: _Reached, error: BaseException) -> None:
        if reached.ended is not None:
            reached.ended(refused_metadata(record, reached.partition), error)
        self._interceptors.on_send_error(record, reached.partition, error)

    def _append_later(
        self,
        record: ProducerRecord,
        encoded: EncodedRecord,
        on_delivery: OnDelivery | None,
        reached: _Reached,
        admitted: Callable[[], None],
    ) -> Steps[Delivery]:
        try:
            admitted()
            cluster = yield from self.await_topic(record.topic, record.partition)
            reached.partition = self._placement.choose(record, encoded.key, encoded.value, cluster)
            return (yield from self._append(record, encoded, cluster, on_delivery, reached, admitted))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._tell_refused(record, reached, error)
            raise

    def await_topic(self, topic: str, partition: int | None) -> Steps[ClusterSnapshot]:
        """Steps that wait until the topic (and a partition of that number) is known.

        Raises:
            KafkaTimeoutError: TimeIsUp was thrown in; the text names the cause.
        """
        snapshot = self._metadata.snapshot
        if snapshot.has(topic, partition):
            self._metadata.touch(topic, self._clock.now())
            return snapshot
        check_topic_name(topic)
        yield Checkpoint.METADATA
        ticket = self._metadata.await_topic(topic, partition, self._clock.now())
        try:
            answer: ClusterSnapshot = yield ticket
        except TimeIsUp as up:
            if not ticket.give_up():
                return ticket.result
            error = self._metadata.explain_timeout(topic, partition, up.waited_ms)
            raise error from error.__cause__
        except BaseException:
            ticket.give_up()
            raise
        return answer

    @property
    def serializes(self) -> bool:
        """Whether keys or values have a serializer, and are not sent as they are."""
        return any(type(serializer) is not BytesSerializer for serializer in self._serializers)

    @property
    def key_hash(self) -> int:
        """How keys choose partitions, where the user has no partitioner."""
        return self._placement.key_hash

    def check_open(self) -> None:
        """Raise when no record can be accepted now."""
        if self.closed:
            raise ProducerClosedError(_CLOSED)
        self.gate.check_send()

    def _accept(
        self, record: ProducerRecord, on_delivery: OnDelivery | None, reached: _Reached, as_bytes: bool
    ) -> Steps[Delivery]:
        self.check_open()
        cluster = yield from self.await_topic(record.topic, record.partition)
        key, value, frozen = self.serialize(record, as_bytes)
        reached.partition = self._placement.choose(record, key, value, cluster)
        encoded = self._encode(record, key, value, frozen)
        return (yield from self._append(record, encoded, cluster, on_delivery, reached, self.gate.check_send))

    def _append(
        self,
        record: ProducerRecord,
        encoded: EncodedRecord,
        cluster: ClusterSnapshot,
        on_delivery: OnDelivery | None,
        reached: _Reached,
        admitted: Callable[[], None],
    ) -> Steps[Delivery]:
        while True:
            try:
                return (
                    yield from self._append_where_it_goes(
                        record, encoded, cluster, on_delivery, reached, admitted
                    )
                )
            except TopicForgotten:
                # The topic was not used for long, and forgotten. Its present partitions decide where the record goes.
                cluster = yield from self.await_topic(record.topic, record.partition)
                reached.partition = self._placement.choose(record, encoded.key, encoded.value, cluster)

    def _append_where_it_goes(
        self,
        record: ProducerRecord,
        encoded: EncodedRecord,
        cluster: ClusterSnapshot,
        on_delivery: OnDelivery | None,
        reached: _Reached,
        admitted: Callable[[], None],
    ) -> Steps[Delivery]:
        topic = self._accumulator.topic(record.topic, cluster.partition_count(record.topic) or 1)
        topic.used = True
        if self._placement.wants_new_batches and record.partition is None:
            delivery = self._before_new_batch(record, topic, encoded, on_delivery, reached, cluster)
            if delivery is not None:
                return delivery
        callback = self._acknowledger(encoded.headers or (), on_delivery, reached.ended)
        return (yield from self._appender.append_steps(topic, reached.partition, encoded, callback, admitted))

    def serialize(
        self, record: ProducerRecord, as_bytes: bool = False
    ) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
        """A record's key, value and headers as they are sent.

        Raises:
            SerializationError: a serializer failed, or gave no bytes.
        """
        for_key, for_value = _AS_THEY_ARE if as_bytes else self._serializers
        headers = MutableHeaders(record.headers)
        key = serialize_part(for_key, "key", record.topic, headers, record.key)
        value = serialize_part(for_value, "value", record.topic, headers, record.value)
        return key, value, headers.freeze()

    def _before_new_batch(
        self,
        record: ProducerRecord,
        topic: TopicState,
        encoded: EncodedRecord,
        on_delivery: OnDelivery | None,
        reached: _Reached,
        cluster: ClusterSnapshot,
    ) -> Delivery | None:
        """Try the open batch. If there is none, tell the partitioner, and ask it once more."""
        callback = self._acknowledger(encoded.headers or (), on_delivery, reached.ended)
        delivery = self._appender.try_append(topic, reached.partition, encoded, callback)
        if delivery is None:
            partitioner: Any = self._placement.partitioner
            partitioner.on_new_batch(record.topic, cluster, reached.partition)
            reached.partition = self._placement.choose(record, encoded.key, encoded.value, cluster)
        return delivery

    def _encode(
        self, record: ProducerRecord, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
    ) -> EncodedRecord:
        size = estimate_record_size(
            None if key is None else len(key), None if value is None else len(value), headers
        )
        if size > self.limit.size:
            raise self.limit.error(f"the record for topic {record.topic!r}", size)
        timestamp = self._clock.wall_ms() if record.timestamp_ms is None else record.timestamp_ms
        if timestamp > _MAX_TIMESTAMP:
            raise ValueError(f"timestamp_ms is too large: {timestamp}")
        return EncodedRecord(timestamp, key, value, headers or None, size)

    def _acknowledger(
        self, headers: tuple[Header, ...], on_delivery: OnDelivery | None, ended: RecordEnd | None
    ) -> OnDelivery | None:
        """The callback of a record: its span, then interceptors, then the user's."""
        if not len(self._interceptors) and ended is None:
            return on_delivery
        return _Acknowledge(ended, self._interceptors, headers, on_delivery)


def check_topic_name(topic: str) -> None:
    """Refuse a name that no request can contain: otherwise the I/O thread could not write the request.

    Raises:
        ValueError: it cannot be written as UTF-8, or is longer than Kafka allows.
    """
    try:
        size = len(topic.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the topic name {topic!r} cannot be encoded: {error}") from None
    if size > _MAX_TOPIC_BYTES:
        raise ValueError(
            f"the topic name {topic[:20]!r}... is {size} bytes long; Kafka allows {_MAX_TOPIC_BYTES}: {TOPIC_RULE}"
        )


class _Reached:
    """How far a record came before it failed: its partition, if known, and the end of its span, if there is one."""

    __slots__ = ("ended", "partition")

    def __init__(self) -> None:
        self.partition: int | None = None
        self.ended: RecordEnd | None = None


class _Acknowledge:
    """The callback of a record with interceptors or a span: these come before the user's callback."""

    __slots__ = ("_ended", "_headers", "_interceptors", "_on_delivery")

    def __init__(
        self,
        ended: RecordEnd | None,
        interceptors: Interceptors,
        headers: tuple[Header, ...],
        on_delivery: OnDelivery | None,
    ) -> None:
        self._ended = ended
        self._interceptors = interceptors
        self._headers = headers
        self._on_delivery = on_delivery

    @property
    def is_look(self) -> bool:
        """Whether the application gets the outcome of the record; asked when the outcome is known.

        Interceptors do not count: they see all records. The user's callback does not count, either, if it would run in
        an event loop that has ended.
        """
        return self._on_delivery is not None and bool(getattr(self._on_delivery, "is_look", True))

    def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
        try:
            if self._ended is not None:
                self._ended(metadata, error)
        finally:  # an error of a tracing system, of any class, must not keep the others from their call
            self._interceptors.on_acknowledgement(metadata, error, self._headers)
            if self._on_delivery is not None:
                self._on_delivery(metadata, error)
