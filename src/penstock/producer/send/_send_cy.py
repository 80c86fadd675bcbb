# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The calls that send one record, and their shortest way. Compiled if possible.

`FastPath.try_send` takes the record that is bytes already and that nobody looks at: it either appends it and returns a
Delivery, or appends nothing and returns None. Then the send path of `_path_cy` takes the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import IllegalStateError
from penstock.types import HeadersLike, OnDelivery, ProducerRecord, check_other_clients_arguments

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock._serializing_cy import copy_of, headers_bound, pairs_of
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.batch._partitioner_cy import TopicState, place_by_key
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.producer.send._path_cy import OVERHEAD, SendCall, SendPath, wall_clock
else:
    from cython.cimports.penstock._serializing_cy import copy_of, headers_bound, pairs_of  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._delivery_cy import Delivery  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._partitioner_cy import TopicState, place_by_key  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.send._path_cy import (  # type: ignore[no-redef]
        OVERHEAD,
        SendCall,
        SendPath,
        wall_clock,
    )

# With this name, compiled code does not check the type of the argument. The function does, and tells the transaction.
TopicName = str
WholeNumber = int  # Cython would turn a float, a bool or a Decimal into an int

_LAST_TIMESTAMP = cython.declare(cython.longlong, 2**63 - 1)  # a C variable when compiled


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class FastPath:
    """Sends the ordinary record: bytes, a known topic, no waiting.

    Args:
        topics: the topics in use that may take this path, by name; the accumulator keeps it.
        max_record_size: what one record may take, the size check's overhead included.
        key_hash: how keys choose the partition: IGNORED, MURMUR2 or CRC32.
        wall_ms: the clock for timestamps, or None for the system's.
        wake: wakes the I/O thread; called when the batch that leaves next has become full.
        append_now: appends if no open batch has room; `Appender.append_now`.
    """

    topics = cython.declare(dict)
    enabled = cython.declare(cython.bint, visibility="public")
    detour = cython.declare(cython.bint, visibility="public")
    _max_record_size = cython.declare(cython.Py_ssize_t)
    _key_hash = cython.declare(cython.int)
    _wall_ms = cython.declare(object)
    _wake = cython.declare(object)
    _append_now = cython.declare(object)
    # Only of a path that adds something and calls another one; see `led_to_by`. Such a path is never enabled.
    behind = cython.declare(object, visibility="readonly")
    _context = cython.declare(object)
    _acknowledge = cython.declare(object)
    _last_topic: TopicState  # sent to before this record; any thread may replace it

    def __init__(
        self,
        topics: dict,  # type: ignore[type-arg]
        max_record_size: int,
        key_hash: int,
        wall_ms: Callable[[], int] | None,
        wake: Callable[[], object],
        append_now: Callable[..., Delivery | None],
    ) -> None:
        self.topics = topics
        self.enabled = False
        self.detour = False  # earlier records were put aside and still wait, see DeferredSends
        self._wake = wake
        self._append_now = append_now
        self.behind = self._context = self._acknowledge = None
        self._max_record_size = max_record_size
        self._key_hash = key_hash
        self._wall_ms = wall_ms
        self._last_topic = None  # type: ignore[assignment]

    @cython.ccall
    def try_send(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
    ) -> Delivery | None:
        """Append the record and return its Delivery; or append nothing and return None."""
        state: TopicState | None
        queue: PartitionQueue
        delivery: Delivery | None
        chosen: cython.Py_ssize_t
        timestamp: cython.longlong
        sticky: cython.bint = False
        if not self.enabled or self.detour:
            return None
        if on_delivery is not None and not callable(on_delivery):
            return None
        state = self._last_topic
        if state is None or topic is not state.name:  # type: ignore[redundant-expr]
            if type(topic) is not str:
                return None
            state = self.topics.get(topic)
            if state is None:
                return None
            self._last_topic = state
        # The most that the record can take in a batch of its own, if it is made of bytes.
        size: cython.Py_ssize_t = OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                return self._try_copies(topic, value, key, headers, partition, timestamp_ms, on_delivery)
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                return self._try_copies(topic, value, key, headers, partition, timestamp_ms, on_delivery)
            size += len(key)
        if headers is not None:
            if type(headers) is dict:
                headers = pairs_of(headers)
            more: cython.Py_ssize_t = headers_bound(headers)
            if more < 0:
                return None
            size += more
        if size > self._max_record_size:
            return None
        queues: list = state.queues  # read once: the list is replaced when the topic changes
        count: cython.Py_ssize_t = len(queues)
        if partition is not None:
            if type(partition) is not int:
                return None
            if not 0 <= partition < count:
                return None
            chosen = partition
        else:
            chosen = -1
            if key is not None:
                # Its type was checked; to cast is slow in plain Python, where Cython is installed.
                chosen = place_by_key(
                    cython.cast(bytes, key) if cython.compiled else key, count, self._key_hash
                )
            if chosen < 0:
                chosen = state.sticky_partition
                if not 0 <= chosen < count:
                    return None
                sticky = True
        queue = queues[chosen]
        if timestamp_ms is not None:
            if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _LAST_TIMESTAMP:
                return None
            timestamp = timestamp_ms
        else:
            timestamp = wall_clock(self._wall_ms)
        delivery = queue.append_to_open(
            timestamp,
            key,
            value,
            headers,
            on_delivery,
            state if sticky else None,
            self._wake,
        )
        if delivery is None:
            # Once per batch: the open one is full, or there is none. If this call interrupts another one that holds a
            # lock, `append_now` returns None, too.
            delivery = self._append_now(
                state, None if sticky else chosen, (timestamp, key, value, headers, size), on_delivery
            )
            if delivery is None:
                self._last_topic = None  # type: ignore[assignment]  # the topic may have been forgotten, and made anew
                return None
        state.used = True
        return delivery

    @cython.cfunc
    def _try_copies(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
    ) -> Delivery | None:
        """The same with a copy of a key or value that is another buffer than bytes."""
        value, key = copy_of(value), copy_of(key)
        for part in (value, key):
            if part is not None and type(part) is not bytes:
                return None
        return self.try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def led_to_by(self, context: Callable[[Any], Any] | None, acknowledge: OnDelivery | None) -> FastPath:
        """Make a path that adds something and then calls this one. A producer that adds nothing pays nothing for it.

        Args:
            context: called with a record's headers; returns them with those of the caller's context.
            acknowledge: called with the outcome of each record, where interceptors want nothing else.
        """
        leading = FastPath({}, 0, 0, None, self._wake, self._append_now)
        leading.behind = self
        leading._context = context
        leading._acknowledge = acknowledge
        return leading

    @cython.ccall
    def try_adding(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
    ) -> Delivery | None:
        """Add what the other path lacks, and call its `try_send`; None if that path is not enabled."""
        behind: FastPath = self.behind
        if not behind.enabled:
            return None
        if self._acknowledge is not None:
            if on_delivery is not None or headers is not None:
                return None  # they belong to the outcome
            on_delivery = self._acknowledge
        if self._context is not None:
            headers = self._context(pairs_of(headers) if type(headers) is dict else headers)
        return behind.try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def look_up_again(self) -> None:
        """Forget the topic of the last record: it may not be among `topics` any more. From any thread."""
        self._last_topic = None  # type: ignore[assignment]


@cython.cclass
class SendFace:
    """The `send` of a producer, which is compiled because it is called for each record.

    The measurement is in docs/performance.md, "One record": the compiled call with its seven parameters takes 16 of 155
    ns. A Python method around the fast path would take as much as the fast path does.
    """

    _core = cython.declare(object, visibility="public")  # see `lifecycle.Core`
    _fast_path: FastPath
    _path: SendPath
    _notes_refusals = cython.declare(cython.bint)
    _wraps_callbacks = cython.declare(cython.bint)

    def _set_up_send(self, core: Any, wraps_callbacks: bool = False) -> None:
        """Give it what `send` needs, before the first call.

        Args:
            core: what is behind the calls.
            wraps_callbacks: whether `_callback` gives another function than the user's.
        """
        self._wraps_callbacks = wraps_callbacks
        parts = core.parts
        self._core = core
        self._fast_path = parts.entry_path
        self._path = parts.send_path
        self._notes_refusals = parts.transactions is not None

    def send(
        self,
        topic: TopicName,
        value: Any = None,
        key: Any = None,
        callback: None = None,
        *,
        headers: HeadersLike | None = None,
        partition: WholeNumber | None = None,
        timestamp_ms: WholeNumber | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: None = None,
    ) -> Delivery:
        """Send a record; its Delivery, which tells later what became of it.

        Waits at most max.block.ms, for metadata and for memory together, and only where there is no other way.

        Args:
            topic: where it goes.
            value: its value; None is a tombstone.
            key: its key; records with the same key go to the same partition.
            headers: pairs (name, bytes or None), or a mapping.
            partition: the partition, where the key and the partitioner shall not choose it.
            timestamp_ms: milliseconds since the epoch; now, by default.
            on_delivery: called with (metadata, error) on the I/O thread when the outcome is known.
            callback: refused; another client's name of on_delivery.
            timestamp: refused; another client's name of timestamp_ms.

        Raises:
            KafkaTimeoutError: the topic, or the partition, did not become known in time; the text says why.
            BufferExhaustedError: no memory became free in time.
            RecordTooLargeError: it exceeds max.request.size.
            SerializationError: key or value could not be turned into bytes.
            ProducerClosedError: the producer is closed.
            TypeError, ValueError: an argument is wrong.
        """
        fast: FastPath | None = self._fast_path
        delivery: Delivery | None
        tried: cython.bint = False
        # for type checkers these arguments are always None
        if not self._notes_refusals and fast is not None and callback is None and timestamp is None:  # type: ignore[redundant-expr]
            # The ordinary record needs no further call: in plain Python each call costs time.
            delivery = fast.try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
            if delivery is not None:
                return delivery
            tried = True
        outcome = _begin(
            self, topic, value, key, headers, partition, timestamp_ms, on_delivery, callback, timestamp, tried
        )
        return outcome if isinstance(outcome, Delivery) else self._finish(outcome)

    def send_record(self, record: ProducerRecord, on_delivery: OnDelivery | None = None) -> Delivery:
        """Send a record that was made as a value; see `send`."""
        outcome = self._begin_record(record, on_delivery)
        return outcome if isinstance(outcome, Delivery) else self._finish(outcome)

    def _begin_record(self, record: Any, on_delivery: Any) -> Any:
        """Send a record that was made as a value; its Delivery, or the SendCall that has to wait."""
        try:
            if not isinstance(record, ProducerRecord):
                raise TypeError(f"record must be a ProducerRecord, not {type(record).__name__}")
            if on_delivery is not None:
                on_delivery = self._callback(on_delivery)
            delivery: Delivery | None = _try_fast(
                self._fast_path, record.topic, record.value, record.key, record.headers or None, record.partition,
                record.timestamp_ms, on_delivery, False,
            )  # fmt: skip
            if delivery is not None:
                return delivery
            return _attempt(self, self._path.call_of(record, on_delivery))
        except BaseException as error:
            if self._notes_refusals:
                self._core.note_refused(error)
            raise

    def _callback(self, on_delivery: Any) -> Any:
        """What is called in place of the user's function, which is checked here."""
        if not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        return on_delivery

    def _finish(self, call: SendCall) -> Delivery:
        """Go on with a call that has to wait."""
        raise NotImplementedError


@cython.cclass
class TrySendFace(SendFace):
    """The `try_send` of a producer for event loops: the same, and nobody waits.

    The second class with a single child, for the reason that `SendFace` gives.
    """

    def try_send(
        self,
        topic: TopicName,
        value: Any = None,
        key: Any = None,
        callback: None = None,
        *,
        headers: HeadersLike | None = None,
        partition: WholeNumber | None = None,
        timestamp_ms: WholeNumber | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: None = None,
    ) -> Delivery:
        """Send a record if that is possible now; its Delivery. Never waits; not a coroutine. See `send`.

        Raises:
            BufferExhaustedError: there is no memory now.
            KafkaTimeoutError: the topic is not known yet; it is asked for.
            KafkaError, TypeError, ValueError: otherwise as `send`.
        """
        outcome = _begin(
            self, topic, value, key, headers, partition, timestamp_ms, on_delivery, callback, timestamp, False
        )
        return outcome if isinstance(outcome, Delivery) else self._finish(outcome)

    def _begin(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
        callback: Any,
        timestamp: Any,
    ) -> Any:
        """Send a record as far as that needs no waiting; its Delivery, or the SendCall that has to wait."""
        return _begin(
            self, topic, value, key, headers, partition, timestamp_ms, on_delivery, callback, timestamp, False
        )


@cython.cfunc
def _begin(
    face: SendFace,
    topic: Any,
    value: Any,
    key: Any,
    headers: Any,
    partition: Any,
    timestamp_ms: Any,
    on_delivery: Any,
    callback: Any,
    timestamp: Any,
    tried: cython.bint,
) -> Any:
    """Send a record as far as that needs no waiting; its Delivery, or the SendCall that has to wait.

    What it raises is told to the open transaction. `tried`: the fast path has not taken it.
    """
    delivery: Delivery | None
    try:
        if callback is not None or timestamp is not None:
            check_other_clients_arguments(callback, timestamp)
        wraps: cython.bint = on_delivery is not None and face._wraps_callbacks
        if not wraps:
            delivery = _try_fast(
                face._fast_path, topic, value, key, headers, partition, timestamp_ms, on_delivery, tried
            )
            if delivery is not None:
                return delivery
        call: SendCall = face._path.call(
            topic, value, key, headers, partition, timestamp_ms, None if wraps else on_delivery
        )
        if wraps:
            call.on_delivery = face._callback(on_delivery)
        return _attempt(face, call)
    except BaseException as error:
        if face._notes_refusals:
            face._core.note_refused(error)
        raise


@cython.cfunc
def _try_fast(
    fast: FastPath | None,
    topic: Any,
    value: Any,
    key: Any,
    headers: Any,
    partition: Any,
    timestamp_ms: Any,
    on_delivery: Any,
    tried: cython.bint,
) -> Delivery | None:
    """What the fast path does with a record; `tried`: it has not taken it."""
    if fast is None:
        raise IllegalStateError("the producer was not made: a subclass calls super().__init__() first")
    if fast.behind is not None:
        return fast.try_adding(topic, value, key, headers, partition, timestamp_ms, on_delivery)
    if tried:
        return None
    return fast.try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)


@cython.cfunc
def _attempt(face: SendFace, call: SendCall) -> Any:
    path: SendPath = face._path
    delivery: Delivery | None
    if not path.is_ready():
        return face._core.begin_otherwise(call)
    try:
        delivery = path.attempt(call)
    except Exception as error:
        face._core.note_send_error(error)
        raise
    return call if delivery is None else delivery


if not cython.compiled:
    # A C field begins as None by itself.
    SendFace._core = SendFace._fast_path = SendFace._path = None  # type: ignore[assignment]
    SendFace._notes_refusals = SendFace._wraps_callbacks = False
