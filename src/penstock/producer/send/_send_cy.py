# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The fast path of send(): from the call to a record in the open batch, without the interpreter. Compiled if possible.

`FastPath.try_send` either appends and returns a Delivery, or appends nothing and returns None. Then the general path
sends the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock._primitives_cy import CRC32, MURMUR2
from penstock.errors import IllegalStateError
from penstock.types import HeadersLike, OnDelivery, ProducerRecord, as_headers, check_other_clients_arguments

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock._primitives_cy import partition_for_key
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.batch._partitioner_cy import TopicState
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.records._crc_cy import crc32_partition
    from penstock.records.format import HEADER_SIZE, MAX_RECORD_OVERHEAD
else:
    from cython.cimports.penstock._primitives_cy import partition_for_key  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._delivery_cy import Delivery  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._partitioner_cy import TopicState  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.send._send_cy import TIME_UTC, timespec, timespec_get
    from cython.cimports.penstock.records._crc_cy import crc32_partition  # type: ignore[no-redef]
    from cython.cimports.penstock.records._layout_cy import (  # type: ignore[no-redef]
        HEADER_SIZE,
        MAX_RECORD_OVERHEAD,
    )

# With this name, compiled code does not check the type of the argument. The function does, and tells the transaction.
TopicName = str
WholeNumber = int  # Cython would turn a float, a bool or a Decimal into an int

# C variables when compiled. The first is the most that the size check adds to key and value: batch header, record
# overhead, header count, and two lengths of up to 5 bytes. If that is too large, the general path computes the size.
_OVERHEAD = cython.declare(cython.Py_ssize_t, HEADER_SIZE + MAX_RECORD_OVERHEAD + 1 + 2 * 5)
_MURMUR2 = cython.declare(cython.int, MURMUR2)
_CRC32 = cython.declare(cython.int, CRC32)
_LAST_TIMESTAMP = cython.declare(cython.longlong, 2**63 - 1)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
def _headers_bound(headers: Any) -> cython.Py_ssize_t:
    """The most that headers can take, or -1: they are not a list or tuple of (str, bytes or None) pairs."""
    size: cython.Py_ssize_t = 5
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    for pair in headers:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return -1
        name = pair[0]
        value = pair[1]
        if type(name) is not str:
            return -1
        size += 10 + 4 * len(name)  # a character takes at most four bytes
        if value is not None:
            if type(value) is not bytes:
                return -1
            size += len(value)
    return size


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
        self._max_record_size = max_record_size
        self._key_hash = key_hash
        self._wall_ms = wall_ms
        self._last_topic: TopicState | None = None
        # Only used in a path that adds headers and calls another path; see `led_to_by`. Such a path is never enabled.
        self.context: Callable[[Any], Any] | None = None
        self.behind: FastPath | None = None

    def led_to_by(self, context: Callable[[Any], Any]) -> FastPath:
        """Make a path that adds headers and then calls this one. A producer without such headers pays nothing for them.

        Args:
            context: called with the headers of a record; returns them with the added ones.
        """
        leading = FastPath({}, 0, 0, None, self._wake, self._append_now)
        leading.context = context
        leading.behind = self
        return leading

    def try_with_context(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
    ) -> Delivery | None:
        """Add the headers, and call `try_send` of the other path; None if that path is not enabled."""
        behind: FastPath | None = self.behind
        if behind is None or not behind.enabled:
            return None
        more = self.context(headers)  # type: ignore[misc]
        return behind.try_send(topic, value, key, more, partition, timestamp_ms, on_delivery)

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
        if state is None or topic is not state.name:
            if type(topic) is not str:
                return None
            state = self.topics.get(topic)
            if state is None:
                return None
            self._last_topic = state
        # The most that the record can take in a batch of its own, if it is made of bytes.
        size: cython.Py_ssize_t = _OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                return None
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                return None
            size += len(key)
        if headers is not None:
            more: cython.Py_ssize_t = _headers_bound(headers)
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
        elif key is not None and self._key_hash == _MURMUR2:
            chosen = partition_for_key(key, count)
        elif self._key_hash == _CRC32 and key:  # None and b"" go where records without key go
            chosen = crc32_partition(key, count)
        else:
            chosen = state.sticky_partition
            if not 0 <= chosen < count:
                return None
            sticky = True
        queue = queues[chosen]
        if timestamp_ms is not None:
            if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _LAST_TIMESTAMP:
                return None
            timestamp = timestamp_ms
        elif self._wall_ms is not None:
            timestamp = self._wall_ms()
        elif cython.compiled:
            moment = cython.declare(timespec)
            timespec_get(cython.address(moment), TIME_UTC)
            timestamp = moment.tv_sec * 1000 + moment.tv_nsec // 1_000_000
        else:
            timestamp = int(time.time() * 1000.0)
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
                self._last_topic = None  # the topic may have been forgotten, and made anew
                return None
        state.used = True
        return delivery

    def look_up_again(self) -> None:
        """Forget the topic of the last record: it may not be among `topics` any more. From any thread."""
        self._last_topic = None


@cython.cclass
class SendFace:
    """The `send` of a producer: it tries the fast path, and then takes the general one.

    The one base class with a single child, because the call itself has to be compiled. The measurement is in
    docs/performance.md, "One record": the compiled call with its seven parameters takes 16 of 155 ns. A Python method
    around the fast path would take as much as the fast path does.
    """

    def _set_up_send(self, fast_path: FastPath, notes_refusals: bool) -> None:
        """Give it what `send` needs, before the first call.

        Args:
            fast_path: the fast path.
            notes_refusals: whether `_note_refused` is called.
        """
        self._fast_path: FastPath | None = fast_path
        self._notes_refusals = notes_refusals

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
        # for type checkers these arguments are always None
        if self._notes_refusals or fast is None or callback is not None or timestamp is not None:  # type: ignore[redundant-expr]
            return _send_with_care(
                self, topic, value, key, headers, partition, timestamp_ms, on_delivery, callback, timestamp
            )
        # The ordinary record needs no further call: in plain Python each call costs time.
        delivery: Delivery | None = fast.try_send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if delivery is None:
            return _send_otherwise(
                self, fast, topic, value, key, headers, partition, timestamp_ms, on_delivery
            )
        return delivery

    def send_record(self, record: ProducerRecord, on_delivery: OnDelivery | None = None) -> Delivery:
        """Send a record that was made as a value; see `send`."""
        raise NotImplementedError

    def _note_refused(self, error: BaseException) -> None:
        """Tell the open transaction that a call has raised."""
        raise NotImplementedError


@cython.cfunc
def _send_with_care(
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
) -> Delivery:
    """Send a record, and tell the transaction if it is refused; or refuse arguments that are never allowed."""
    fast: FastPath | None = face._fast_path
    delivery: Delivery | None
    try:
        if callback is not None or timestamp is not None:
            check_other_clients_arguments(callback, timestamp)
        if fast is None:
            raise IllegalStateError("the producer was not made: a subclass calls super().__init__() first")
        delivery = fast.try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if delivery is None:
            return _send_otherwise(
                face, fast, topic, value, key, headers, partition, timestamp_ms, on_delivery
            )
        return delivery
    except BaseException as error:
        if face._notes_refusals:
            face._note_refused(error)
        raise


@cython.cfunc
def _send_otherwise(
    face: SendFace,
    fast: FastPath,
    topic: Any,
    value: Any,
    key: Any,
    headers: Any,
    partition: Any,
    timestamp_ms: Any,
    on_delivery: Any,
) -> Delivery:
    """Send a record that the fast path did not append."""
    delivery: Delivery | None = None
    if fast.behind is not None:
        delivery = fast.try_with_context(topic, value, key, headers, partition, timestamp_ms, on_delivery)
    if delivery is None:
        record = ProducerRecord(topic, value, key, as_headers(headers), partition, timestamp_ms)
        return face.send_record(record, on_delivery)
    return delivery


if not cython.compiled:
    # A C field begins as None by itself.
    SendFace._fast_path = None
    SendFace._notes_refusals = False
