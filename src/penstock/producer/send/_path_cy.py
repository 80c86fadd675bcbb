# SPDX-License-Identifier: Apache-2.0
"""The send path: from the call to a record in a batch, for every record. Compiled if possible.

A SendCall is one record on its way. `SendPath.attempt` takes it as far as it comes without waiting, mostly to the end.
Where it has to wait, `steps` go on from there, so that no function of the user's is called twice. They yield what they
wait for, and their driver decides how to wait: `steps.run_steps` blocks the calling thread within max.block.ms; the
AsyncProducer awaits; the simulator chooses at each checkpoint which thread runs next. A driver answers a yielded Ticket
with its result, throws its error, or throws TimeIsUp. A yielded Checkpoint needs no answer.

Only `FastPath.try_send` in `_send_cy` is beside it: the same for bytes, where nobody sees or changes the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock._arguments import check_topic_size
from penstock._time import Clock
from penstock.errors import (
    IllegalStateError,
    ProducerClosedError,
    TransactionAbortedError,
)
from penstock.producer._interceptors_cy import Acknowledge, Interceptors, refused_metadata
from penstock.producer.batch._accumulator_cy import RecordAccumulator
from penstock.producer.batch._appending_cy import EncodedRecord
from penstock.producer.batch._queue_cy import NotAdmitted, TopicForgotten
from penstock.producer.guarantee.gate import Gate, OpenGate
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.producer.send.deferring import LaterRecord
from penstock.producer.steps import Checkpoint, Steps, TimeIsUp
from penstock.records.format import RecordLimit, estimate_record_size
from penstock.serializers import BytesSerializer, MutableHeaders, Serializer
from penstock.types import ProducerRecord, as_headers

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock._locks import inside
    from penstock._serializing_cy import Part, freeze_headers, headers_bound
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.batch._partitioner_cy import Placement, TopicState
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.records.format import HEADER_SIZE, MAX_RECORD_OVERHEAD

    OVERHEAD = HEADER_SIZE + MAX_RECORD_OVERHEAD + 1 + 2 * 5
else:
    from cython.cimports.penstock._serializing_cy import Part, freeze_headers, headers_bound  # type: ignore[no-redef]
    from cython.cimports.penstock._short_lock_cy import holds_any as inside  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._delivery_cy import Delivery  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._partitioner_cy import Placement, TopicState  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue  # type: ignore[no-redef]

if TYPE_CHECKING:
    from penstock._tracing import ProducerTracing

_MAX_TIMESTAMP = 2**63 - 1
_CLOSED = "the producer is closed: it takes no more records"
_STICKY = cython.declare(cython.Py_ssize_t, -1)  # in place of a partition: the topic's present sticky one
_AS_IT_IS = cython.declare(Part, Part(BytesSerializer(), "value"))
# A record is made of its checked fields without the checks of its class: by what its class is made of.
_NEW_RECORD = cython.declare(object, object.__new__)
_FIELDS = [
    vars(ProducerRecord)[name].__set__
    for name in ("topic", "value", "key", "headers", "partition", "timestamp_ms")
]
_SET_TOPIC = cython.declare(object, _FIELDS[0])
_SET_VALUE = cython.declare(object, _FIELDS[1])
_SET_KEY = cython.declare(object, _FIELDS[2])
_SET_HEADERS = cython.declare(object, _FIELDS[3])
_SET_PARTITION = cython.declare(object, _FIELDS[4])
_SET_TIMESTAMP = cython.declare(object, _FIELDS[5])


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


if not cython.compiled:

    def wall_clock(wall_ms: Callable[[], int] | None) -> int:
        """Milliseconds since the epoch, by this clock, or by the system's. Compiled: see the .pxd."""
        return int(time.time() * 1000.0) if wall_ms is None else wall_ms()


@cython.final
@cython.freelist(16)
@cython.cclass
class SendCall:
    """One record on its way: what was given to the call, and how far it has come. `SendPath` makes it."""

    def __init__(self) -> None:
        # For plain Python; C fields are None or 0 by themselves.
        self.topic = ""
        self.value = self.key = self.headers = self.partition = self.timestamp_ms = self.on_delivery = None  # type: Any
        self.record: Any = None  # the same as a ProducerRecord, once somebody wants it
        self.ended = self.admitted = self.callback = self.cluster = self.topic_state = None  # type: Any
        self.key_bytes: bytes | None = None
        self.value_bytes: bytes | None = None
        self.chosen = self.size = self.timestamp = 0
        self.as_bytes = self.in_bulk = self.has_begun = self.is_serialized = False
        self.is_placed = self.is_measured = self.told_of_batch = False

    def _take(self, record: Any) -> None:
        """Be about this ProducerRecord, which has made its checks."""
        self.record = record
        self.topic = record.topic
        self.value = record.value
        self.key = record.key
        self.headers = record.headers or None
        self.partition = record.partition
        self.timestamp_ms = record.timestamp_ms

    def _as_record(self) -> Any:
        """What interceptors and the like see of it."""
        record = self.record
        if record is None:
            record = _NEW_RECORD(ProducerRecord)
            _SET_TOPIC(record, self.topic)
            _SET_VALUE(record, self.value)
            _SET_KEY(record, self.key)
            _SET_HEADERS(record, () if self.headers is None else as_headers(self.headers))
            _SET_PARTITION(record, self.partition)
            _SET_TIMESTAMP(record, self.timestamp_ms)
            self.record = record
        return record


@cython.final
@cython.cclass
class SendPath:
    """Takes records from the call to the accumulator.

    Args:
        accumulator: takes them.
        metadata: topics and their partitions.
        serializers: of key and value.
        placement: chooses partitions.
        interceptors: see records and their outcomes.
        limit: what one record may take.
        clock: for the metadata's notion of now.
        tracing: gives records and calls the caller's context, and spans.
        wall_ms: the clock for timestamps, or None for the system's.
        wake: wakes the I/O thread; called when the batch that leaves next has become full.

    Attributes:
        acknowledge: the callback of records of which only interceptors want the outcome.
        accepts: whether records are accepted now, as far as is known without a lock. If not, the steps find out why.
        closed: set by close(), on any thread.
        gate: set once, when the producer is put together.
        follower: wraps the steps of each record, to follow one; a viewer sets and clears it, on any thread.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        metadata: ProducerMetadata,
        serializers: tuple[Serializer, Serializer],
        placement: Placement,
        interceptors: Interceptors,
        limit: RecordLimit,
        clock: Clock,
        tracing: ProducerTracing | None,
        wall_ms: Callable[[], int] | None,
        wake: Callable[[], object],
    ) -> None:
        self._accumulator = accumulator
        self._appender = accumulator.appender
        self._topics = accumulator.topics
        self._metadata = metadata
        self._for_key = Part(serializers[0], "key")
        self._for_value = Part(serializers[1], "value")
        self.placement = placement
        self._interceptors = interceptors
        self._shows_records = interceptors.sees_records
        self._tells_outcomes = len(interceptors) > 0
        self.acknowledge = Acknowledge(None, interceptors, None, None)
        self.limit = limit
        # A record with this bound needs no exact size: it is within the limit, and no larger than a batch.
        self._surely_fits = min(limit.size, accumulator.batch_size)
        self._clock = clock
        self.tracing = tracing
        self._context: Any = None if tracing is None or tracing.has_spans else tracing.with_context
        self._wall_ms = wall_ms
        self._wake = wake
        self.accepts = True
        self.closed = False
        self.gate: Gate = OpenGate(0)
        self.follower: Callable[[ProducerRecord, Steps[Delivery]], Steps[Delivery]] | None = None

    @property
    def serializes(self) -> bool:
        """Whether keys or values have a serializer, and are not sent as they are."""
        return not (self._for_key.passes_bytes and self._for_value.passes_bytes)

    # ------------------------------------------------------------------------------------------ calls

    def call(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
    ) -> SendCall:
        """Check the arguments of `send`.

        Raises:
            TypeError, ValueError: as ProducerRecord raises them.
        """
        call: SendCall = SendCall.__new__(SendCall) if cython.compiled else SendCall()
        headers = freeze_headers(headers)
        if type(topic) is str and topic and _is_number(partition) and _is_number(timestamp_ms):
            call.topic = topic
            call.value = value
            call.key = key
            call.headers = headers
            call.partition = partition
            call.timestamp_ms = timestamp_ms
        else:
            call._take(ProducerRecord(topic, value, key, headers or (), partition, timestamp_ms))
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        call.on_delivery = on_delivery
        return call

    def call_of(self, record: Any, on_delivery: Any) -> SendCall:
        """The same for a record that was made before, with a callback that was checked."""
        call: SendCall = SendCall.__new__(SendCall) if cython.compiled else SendCall()
        call._take(record)
        call.on_delivery = on_delivery
        return call

    def bulk_call(self, record: ProducerRecord, as_bytes: bool = False) -> SendCall:
        """The call for a record that is one of many in a call, which is traced as a whole.

        Args:
            as_bytes: key and value are bytes already, and no serializer is asked.
        """
        call = self.call_of(record, None)
        call.in_bulk = True
        call.as_bytes = as_bytes
        return call

    def is_ready(self) -> cython.bint:
        """Whether `attempt` may be called: nobody follows records, and this interrupts no call of the same thread."""
        return self.accepts and not self.closed and self.follower is None and not inside()

    def attempt(self, call: SendCall) -> Delivery | None:
        """Send a record as far as that needs no waiting; None: `steps` go on from there.

        An error before it is accepted is raised, and the interceptors get it as well.
        """
        self._begin(call)
        try:
            return self._append(call) if self._prepare(call) else None
        except BaseException as error:
            self._tell_refused(call, error)
            raise

    def steps(self, call: SendCall) -> Steps[Delivery]:
        """What is left of a call, from where it has come."""
        steps = self._steps(call)
        follower = self.follower
        return steps if follower is None else follower(call._as_record(), steps)

    def _steps(self, call: SendCall) -> Steps[Delivery]:
        if not call.has_begun:
            self._begin(call)
        try:
            return (yield from self._rest(call))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._tell_refused(call, error)
            raise

    def _rest(self, call: SendCall) -> Steps[Delivery]:
        admitted: Callable[[], None] = self.gate.check_send
        if call.admitted is None:
            self.check_open()
        else:
            admitted = call.admitted
            admitted()
        while True:
            if not self._prepare(call):
                cluster = yield from self.await_topic(call.topic, call.partition)
                self._found(call, cluster)
                self._prepare(call)
            try:
                if self.placement.wants_new_batches and call.partition is None:
                    delivery = self._before_new_batch(call)
                    if delivery is not None:
                        return delivery
                record = EncodedRecord(*_encoded(call))
                partition = None if call.chosen == _STICKY else call.chosen
                delivery = yield from self._appender.append_steps(
                    call.topic_state, partition, record, call.callback, admitted
                )
            except TopicForgotten:
                # The topic was not used for long, and forgotten. Its present partitions decide where the record goes.
                call.topic_state = call.cluster = None
                call.is_placed = call.told_of_batch = False
                continue
            call.topic_state.used = True
            return delivery

    def later(self, call: SendCall) -> LaterRecord:
        """Prepare a record that is sent in the middle of another call, to be appended later. Takes no lock.

        An error of the record itself is raised at once, as by `attempt`.
        """
        self._begin(call)
        try:
            if self.closed:
                raise ProducerClosedError(_CLOSED)
            if not self._accumulator.admits_records():
                raise IllegalStateError(
                    "the producer takes no records now: no transaction is open, or one has failed"
                )
            check_topic_size(call.topic)
            self._serialize(call)
            self._measure(call)
        except BaseException as error:
            self._tell_refused(call, error)
            raise
        transaction = self.gate.transaction

        def admitted() -> None:
            if self.gate.transaction is not transaction:
                raise TransactionAbortedError("the transaction ended before the record could be appended")
            self.check_open()

        call.admitted = admitted
        encoded = EncodedRecord(*_encoded(call))
        return LaterRecord(
            call.topic, encoded, self._steps(call), admitted, lambda error: self._tell_refused(call, error)
        )

    def await_topic(self, topic: str, partition: int | None) -> Steps[ClusterSnapshot]:
        """Steps that wait until the topic (and a partition of that number) is known.

        Raises:
            KafkaTimeoutError: TimeIsUp was thrown in; the text names the cause.
        """
        snapshot = self._metadata.snapshot
        if snapshot.has(topic, partition):
            self._metadata.touch(topic, self._clock.now())
            return snapshot
        check_topic_size(topic)
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

    def check_open(self) -> None:
        """Raise when no record can be accepted now."""
        if self.closed:
            raise ProducerClosedError(_CLOSED)
        self.gate.check_send()

    def serialize_rows(
        self, topic: str, keys: Sequence[Any] | None, values: Sequence[Any], headers: Sequence[Any] | None
    ) -> tuple[Sequence[bytes | None] | None, Sequence[bytes | None], Sequence[Any] | None]:
        """Keys, values and headers of many records of a topic as they are sent, row by row.

        Raises:
            SerializationError: a serializer failed, or gave no bytes; a note tells which row.
        """
        row: cython.Py_ssize_t = 0
        call: SendCall = SendCall.__new__(SendCall) if cython.compiled else SendCall()
        new_keys: list = []
        new_values: list = []
        new_headers: list = []
        try:
            for row in range(len(values)):
                call.topic = topic
                call.key = None if keys is None else keys[row]
                call.value = values[row]
                call.headers = None if headers is None else headers[row]
                self._serialize(call)
                new_keys.append(call.key_bytes)
                new_values.append(call.value_bytes)
                new_headers.append(call.headers)
        except Exception as error:
            error.add_note(f"row {row}; no row was sent")
            raise
        return (
            None if keys is None and not self._for_key.wants_headers else new_keys,
            new_values,
            new_headers if any(new_headers) else None,
        )

    # ------------------------------------------------------------------------------------------ the parts of the way

    def _begin(self, call: SendCall) -> None:
        """Give the record to the interceptors, then to tracing: so that tracing sees what interceptors add."""
        if self._shows_records:
            record = call._as_record()
            shown = self._interceptors.on_send(record)
            if shown is not record:
                call._take(shown)
        if self.tracing is not None and not call.in_bulk:
            if self._context is not None:
                call.headers = freeze_headers(self._context(call.headers))
                call.record = None
            else:
                record, call.ended = self.tracing.begin(call._as_record())
                if record is not call.record:
                    call._take(record)
        call.has_begun = True

    def _prepare(self, call: SendCall) -> cython.bint:
        """Do all that comes before the append and was not done yet; False: the topic is not known."""
        if call.topic_state is None and not self._find_topic(call):
            return False
        if not call.is_serialized:
            self._serialize(call)
        if not call.is_placed:
            self._place(call)
        if not call.is_measured:
            self._measure(call)
        if call.callback is None:
            if not self._tells_outcomes and call.ended is None:
                call.callback = call.on_delivery
            elif call.ended is call.on_delivery is call.headers is None:
                call.callback = self.acknowledge
            else:
                call.callback = Acknowledge(call.ended, self._interceptors, call.headers, call.on_delivery)
        return True

    def _find_topic(self, call: SendCall) -> cython.bint:
        state: TopicState | None = self._topics.get(call.topic)
        usual: cython.bint = (
            state is not None
            and state.known
            and (call.partition is None or call.partition < len(state.queues))
        )
        if usual and self.placement.partitioner is None:
            call.topic_state = state
            return True
        snapshot = self._metadata.snapshot
        if usual and snapshot.partition_count(call.topic) == len(state.queues):  # type: ignore[union-attr]
            call.topic_state, call.cluster = state, snapshot  # a partitioner sees what is so
            return True
        if not snapshot.has(call.topic, call.partition):
            return False
        self._metadata.touch(call.topic, self._clock.now())
        self._found(call, snapshot)
        return True

    def _found(self, call: SendCall, cluster: Any) -> None:
        """The topic is in this snapshot."""
        call.cluster = cluster
        call.topic_state = self._accumulator.topic(call.topic, cluster.partition_count(call.topic) or 1)
        call.topic_state.used = True

    def _serialize(self, call: SendCall) -> None:
        """Key, value and headers as they are sent."""
        if call.as_bytes:
            call.key_bytes = _AS_IT_IS.turn(call.topic, None, call.key)
            call.value_bytes = _AS_IT_IS.turn(call.topic, None, call.value)
        elif not self._for_key.wants_headers and not self._for_value.wants_headers:
            call.key_bytes = self._for_key.turn(call.topic, None, call.key)
            call.value_bytes = self._for_value.turn(call.topic, None, call.value)
        else:
            if self._tells_outcomes:
                call._as_record()  # with the headers of before: that is what they are told if it is refused
            headers = MutableHeaders(call.headers)
            call.key_bytes = self._for_key.turn(call.topic, headers, call.key)
            call.value_bytes = self._for_value.turn(call.topic, headers, call.value)
            call.headers = headers.freeze() or None
        call.is_serialized = True

    def _place(self, call: SendCall) -> None:
        call.chosen = self.placement.choose(
            call.partition, call.topic, call.key, call.key_bytes, call.value, call.value_bytes, call.cluster,
            len(call.topic_state.queues),
        )  # fmt: skip
        call.is_placed = True

    def _measure(self, call: SendCall) -> None:
        """Check size and time."""
        size: cython.Py_ssize_t = OVERHEAD
        if call.key_bytes is not None:
            size += len(call.key_bytes)
        if call.value_bytes is not None:
            size += len(call.value_bytes)
        if call.headers is not None:
            size += headers_bound(call.headers)
        if size > self._surely_fits:
            size = estimate_record_size(
                None if call.key_bytes is None else len(call.key_bytes),
                None if call.value_bytes is None else len(call.value_bytes),
                call.headers or (),
            )
            if size > self.limit.size:
                raise self.limit.error(f"the record for topic {call.topic!r}", size)
        call.size = size
        if call.timestamp_ms is None:
            call.timestamp = wall_clock(self._wall_ms)
        elif call.timestamp_ms > _MAX_TIMESTAMP:
            raise ValueError(f"timestamp_ms is too large: {call.timestamp_ms}")
        else:
            call.timestamp = call.timestamp_ms
        call.is_measured = True

    def _append(self, call: SendCall) -> Delivery | None:
        """Append a record that was prepared, if that needs no waiting."""
        queue: PartitionQueue
        delivery: Delivery | None = None
        state: TopicState = call.topic_state
        queues: list = state.queues  # read once: the list is replaced when the topic changes
        sticky: TopicState | None = state if call.chosen == _STICKY else None
        at: cython.Py_ssize_t = call.chosen if sticky is None else state.sticky_partition
        if self.placement.wants_new_batches and call.partition is None:
            try:
                delivery = self._before_new_batch(call)
            except (ProducerClosedError, NotAdmitted, TopicForgotten):
                return None  # the steps raise it, or look the topic up again
        elif 0 <= at < len(queues):
            queue = queues[at]
            delivery = queue.append_to_open(
                call.timestamp,
                call.key_bytes,
                call.value_bytes,
                call.headers,
                call.callback,
                sticky,
                self._wake,
            )
        if delivery is None:
            delivery = self._appender.append_now(
                state, None if call.chosen == _STICKY else call.chosen, _encoded(call), call.callback
            )
        if delivery is not None:
            state.used = True
        return delivery

    def _before_new_batch(self, call: SendCall) -> Delivery | None:
        """Try the open batch. If there is none, tell the partitioner, once, and ask it once more."""
        if call.told_of_batch:
            return None
        delivery: Delivery | None = self._appender.try_append(
            call.topic_state, call.chosen, _encoded(call), call.callback
        )
        # The open batch may only lack memory: then the call waits for it, as with other partitioners.
        if delivery is None and call.topic_state.queues[call.chosen].needs_batch():
            call.told_of_batch = True
            partitioner: Any = self.placement.partitioner
            partitioner.on_new_batch(call.topic, call.cluster, call.chosen)
            self._place(call)
        return delivery

    def _tell_refused(self, call: SendCall, error: Any) -> None:
        """Tell the record's span, then the interceptors, that it is not accepted."""
        if call.ended is None and not self._tells_outcomes:
            return
        record = call._as_record()
        partition = call.chosen if call.is_placed and call.chosen != _STICKY else None
        if call.ended is not None:
            call.ended(refused_metadata(record, partition), error)
        self._interceptors.on_send_error(record, partition, error)


@cython.cfunc
def _encoded(call: SendCall) -> tuple:  # type: ignore[type-arg]
    """The fields of an EncodedRecord."""
    return call.timestamp, call.key_bytes, call.value_bytes, call.headers, call.size


@cython.cfunc
@cython.exceptval(-1, check=True)
def _is_number(number: Any) -> cython.bint:
    """Whether it is None, or what a partition or a time can be without a closer look."""
    return number is None or (type(number) is int and number >= 0)
