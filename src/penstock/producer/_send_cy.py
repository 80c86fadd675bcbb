# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The fast path of send(): from the call to a record in the open batch, without the interpreter. Compiled if possible.

Here are the things that are touched once per record: the queue of one partition, the state of one topic, the Delivery,
and the function that joins them. What runs once per batch uses the same queues through their methods, because only
this module can take the lock (in compiled code it is a C mutex).

Rules:
1. A partition lock is innermost: nothing else is locked, waited for or called back under it.
2. `FastPath.try_send` either appends and returns a Delivery, or has changed nothing and returns None; whatever is
   unusual is left to the general path.
3. The sticky fields of a topic are written only under the lock of the partition they name, and read again under it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from penstock.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from penstock.producer.delivery import follow
from penstock.types import HeadersLike, OnDelivery, ProducerRecord, RecordMetadata, as_headers

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._primitives_cy import partition_for_key
    from cython.cimports.penstock.producer._send_cy import TIME_UTC, timespec, timespec_get
    from cython.cimports.penstock.records._batch_cy import BatchWriter
else:
    from penstock._primitives_cy import partition_for_key
    from penstock.records._batch_cy import BatchWriter

if TYPE_CHECKING:
    from penstock.producer.batch import Batch
    from penstock.producer.delivery import BatchResult

# Why an append did not happen.
NO_BATCH = 0  # no batch is open, or the open one was full and is closed now
NEEDS_SEGMENT = 1  # the compressed batch may grow, if there is a segment for it
MOVED = 2  # records without key go to another partition now

# C variables when compiled.
_WRITER_NEEDS_SEGMENT = cython.declare(cython.Py_ssize_t, -2)
# The most that the size check adds to key and value: batch header, record overhead, header count, and two lengths of
# up to 5 bytes. Where that is too much, the general path counts to the byte.
_OVERHEAD = cython.declare(cython.Py_ssize_t, 61 + 21 + 1 + 2 * 5)

_EMPTY_BATCH = cython.declare(cython.Py_ssize_t, 61)  # the raw size of a batch without records
_NO_BUDGET = cython.declare(cython.Py_ssize_t, 0x7FFFFFFF)

_LAST_TIMESTAMP = cython.declare(cython.longlong, 2**63 - 1)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.no_gc  # a Delivery refers to its batch's result only, and a finished result refers to nothing
@cython.freelist(256)
@cython.cclass
class Delivery:
    """The future of one accepted record.

    It can be waited for (`result`, `exception`), asked (`done`), followed (`add_done_callback`), and awaited inside a
    running asyncio loop. It cannot be cancelled: the record is on its way.
    """

    def __init__(
        self, batch: BatchResult, index: int, timestamp: int = -1, key_size: int = -1, value_size: int = -1
    ) -> None:
        self._batch = batch
        self.index = index
        self._timestamp = timestamp
        self._key_size = key_size
        self._value_size = value_size

    def done(self) -> bool:
        """Whether the outcome is known and its callback has run."""
        batch = self._batch
        if batch.pieces:
            batch = self.answered_by()
        return bool(batch.done)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; where the record is.

        Raises:
            KafkaTimeoutError: the time is up; the record goes on.
            KafkaError: the record was not acknowledged, and why.
        """
        metadata, error = self._wait(timeout)
        if error is not None:
            # All records of a batch share it: without this its traceback would grow with every call.
            raise error.with_traceback(None)
        return metadata

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the outcome; the error, or None when the record was acknowledged.

        Raises:
            KafkaTimeoutError: the time is up; the record goes on.
        """
        batch = self._batch
        if batch.done and batch.error is None:
            return None  # the ordinary case: all records of the batch were acknowledged
        answer = batch.wait(self.index, timeout)
        if answer is None:
            raise self._out_of_time(timeout)
        return answer[0].error_of(answer[1])

    def add_done_callback(self, fn: Callable[[Delivery], object]) -> None:
        """Call `fn(delivery)` when it is done: on the I/O thread, or at once when it is done already."""
        follow(self, fn)

    def place_in_batch(self) -> tuple[BatchResult, int]:
        """The result of the batch that the record was accepted in, and its index there."""
        return self._batch, self.index

    def payload(self) -> int:
        """Bytes of key and value."""
        return max(0, self._key_size) + max(0, self._value_size)

    def answered_by(self) -> BatchResult:
        """The result that answers for the record now: its batch's or, after a split, a piece's."""
        return self._batch.resolve(self.index)[0]

    def outcome(self) -> tuple[RecordMetadata, KafkaError | None]:
        """Metadata and error of a settled record, as callbacks get them."""
        batch, index = self._batch.resolve(self.index)
        return batch.metadata_of(index, self._timestamp, self._key_size, self._value_size), batch.error_of(
            index
        )

    def _wait(self, timeout: float | None) -> tuple[RecordMetadata, KafkaError | None]:
        if self._batch.wait(self.index, timeout) is None:
            raise self._out_of_time(timeout)
        return self.outcome()

    def _out_of_time(self, timeout: float | None) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"no outcome for a record of {self._batch.topic_partition} within {timeout} s; it is still on its way"
        )

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        import asyncio

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        self.add_done_callback(lambda _: loop.call_soon_threadsafe(finish))
        yield from done
        return self.result(0)

    def __repr__(self) -> str:
        batch, _ = self._batch.resolve(self.index)
        if not batch.done:
            return f"<Delivery {batch.topic_partition} pending>"
        metadata, error = self.outcome()
        return f"<Delivery {batch.topic_partition} {error!r}>" if error else f"<Delivery {metadata}>"


@cython.final
@cython.cclass
class PartitionQueue:
    """The batches of one partition that wait to be sent, oldest first; the last one may be open for records.

    Args:
        topic: the partition's topic.
        partition: its number.
        active: all queues that have batches; this one adds itself.
        incomplete: all batches whose outcome is not known; a batch is added when it is queued.
    """

    def __init__(self, topic: str, partition: int, active: set, incomplete: set) -> None:  # type: ignore[type-arg]
        self.topic = topic
        self.partition = partition
        self.active = active
        self.incomplete = incomplete
        self.muted = False
        self.closed = False
        self._writer: Any = None  # of the open batch
        self._result: Any = None
        self.batches = deque()
        if not cython.compiled:
            self._lock = threading.Lock()

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Any,
        sticky: TopicState | None = None,
        spares: list | None = None,  # type: ignore[type-arg]
        fresh: Batch | None = None,
    ) -> Delivery | int:
        """Append one record; its Delivery, or why it could not be had: NO_BATCH, NEEDS_SEGMENT or MOVED.

        Args:
            sticky: the topic, when the record goes wherever records without key go now.
            spares: segments by which a compressed batch may grow; a used one is taken out.
            fresh: a new batch, queued when no open one has room.

        Raises:
            ProducerClosedError: the producer was closed meanwhile.
        """
        delivery: Delivery | None
        with self._lock:
            if self.closed:
                raise ProducerClosedError("the producer is closed")
            if sticky is not None and sticky.sticky_partition != self.partition:
                return MOVED
            delivery = self._append_locked(self._writer, self._result, timestamp, key, value, headers)
            if delivery is None and self._writer is not None:
                if self._refusal == _WRITER_NEEDS_SEGMENT:
                    if spares is None:
                        return NEEDS_SEGMENT
                    if spares:
                        self._writer.grow(spares.pop())
                        delivery = self._append_locked(
                            self._writer, self._result, timestamp, key, value, headers
                        )
                if delivery is None:
                    # No room, or nothing to grow by: what has been gathered goes out as it is.
                    self._writer = None
                    self._result = None
            if delivery is None:
                if sticky is not None and sticky.sticky_bytes >= sticky.sticky_size:
                    # A switch that was put off so as not to cut a batch short: now the batch is full.
                    sticky.switch()
                    return MOVED
                if fresh is None:
                    return NO_BATCH
                # Queued only once it has its record: a failure here leaves no empty batch behind.
                delivery = self._append_locked(fresh.writer, fresh.result, timestamp, key, value, headers)
                if delivery is None:
                    raise ValueError(
                        f"a new batch of {self.topic}-{self.partition} has no room for its first record"
                    )
                self.active.add(self)
                self.batches.append(fresh)
                self.incomplete.add(fresh)
                self._writer = fresh.writer
                self._result = fresh.result
            if on_delivery is not None:
                self._result.callbacks.append((delivery, on_delivery))
            if sticky is not None:
                sticky.count_locked(self._size, self._writer.is_full())
        return delivery

    def _append_locked(
        self,
        writer: BatchWriter | None,
        result: Any,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
    ) -> Delivery | None:
        delivery: Delivery
        if writer is None:
            return None
        size: cython.Py_ssize_t = writer.append(timestamp, key, value, headers)
        if size < 0:
            self._refusal = size
            return None
        self._size = size
        if cython.compiled:
            delivery = Delivery.__new__(Delivery)
            delivery._batch = result
            delivery.index = writer.count - 1
            delivery._timestamp = timestamp
            delivery._key_size = -1 if key is None else len(key)
            delivery._value_size = -1 if value is None else len(value)
            return delivery
        return Delivery(
            result,
            writer.count - 1,
            timestamp,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
        )

    def append_rows(
        self,
        window: Any,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        accepted: list,  # type: ignore[type-arg]
        sticky: TopicState | None = None,
        spares: list | None = None,  # type: ignore[type-arg]
        fresh: Batch | None = None,
    ) -> tuple[int, int]:
        """Append rows until a batch is full; how many, and why not more: as `append` says, -1 when nothing is wrong.

        Args:
            window: where the rows are: `append_to(writer, first, last, budget)` appends them, and `refusal`,
                `payload` and `span(first, count)` tell of it.
            first: where to start in it, and `last`, where to end.
            accepted: gets (result, first index, count, payload, span) of what was appended, before anything can
                interrupt.
            sticky: as for `append`, and so are `spares` and `fresh`.

        Raises:
            ProducerClosedError: the producer was closed meanwhile.
        """
        taken: cython.Py_ssize_t = 0
        budget: cython.Py_ssize_t = _NO_BUDGET
        why: cython.Py_ssize_t = -1
        before: cython.Py_ssize_t
        writer: BatchWriter
        with self._lock:
            if self.closed:
                raise ProducerClosedError("the producer is closed")
            if sticky is not None:
                if sticky.sticky_partition != self.partition:
                    return 0, MOVED
                budget = 2 * sticky.sticky_size - sticky.sticky_bytes
            if self._writer is None:
                if sticky is not None and sticky.sticky_bytes >= sticky.sticky_size:
                    sticky.switch()
                    return 0, MOVED
                if fresh is None:
                    return 0, NO_BATCH
                taken = window.append_to(fresh.writer, first, last, budget)
                if taken == 0:
                    raise ValueError(
                        f"a new batch of {self.topic}-{self.partition} has no room for its first record"
                    )
                before = _EMPTY_BATCH
                self.active.add(self)
                self.batches.append(fresh)
                self.incomplete.add(fresh)
                self._writer = fresh.writer
                self._result = fresh.result
            else:
                before = self._writer.raw_size
                taken = window.append_to(self._writer, first, last, budget)
                if taken == 0 and window.refusal == _WRITER_NEEDS_SEGMENT:
                    if spares is None:
                        return 0, NEEDS_SEGMENT
                    if spares:
                        self._writer.grow(spares.pop())
                        taken = window.append_to(self._writer, first, last, budget)
            writer = self._writer
            if taken:
                accepted.append(
                    (self._result, writer.count - taken, taken, window.payload, window.span(first, taken))
                )
                if sticky is not None:
                    sticky.count_locked(writer.raw_size - before, writer.is_full())
            if window.refusal == _WRITER_NEEDS_SEGMENT and taken:
                why = NEEDS_SEGMENT
            elif window.refusal:
                # No room, or nothing to grow by: what has been gathered goes out as it is.
                self._writer = None
                self._result = None
                why = NO_BATCH
                if sticky is not None and sticky.sticky_partition == self.partition:
                    if sticky.sticky_bytes >= sticky.sticky_size:
                        sticky.switch()
                        why = MOVED
        return taken, why

    def head(self) -> tuple[Batch | None, bool]:
        """The oldest batch, and whether it is full or closed (later ones make it so)."""
        with self._lock:
            if not self.batches:
                return None, False
            open_writer: BatchWriter = self._writer
            full: cython.bint = len(self.batches) > 1 or open_writer is None or open_writer.is_full()
            return self.batches[0], full

    def depth(self) -> int:
        """How many batches wait."""
        return len(self.batches)

    def take(self, batch: Batch) -> bool:
        """Take the oldest batch, if it still is that one, and close it for further records."""
        with self._lock:
            if not self.batches or self.batches[0] is not batch:
                return False
            self._pop_locked()
            return True

    def take_older(self, created: float) -> list[Batch]:
        """Take the batches at the head that were created at or before a moment."""
        taken: list = []
        with self._lock:
            while self.batches and self.batches[0].created <= created:
                taken.append(self._pop_locked())
        return taken

    def close(self) -> None:
        """Refuse records from now on; what waits stays."""
        with self._lock:
            self.closed = True
            self._writer = None
            self._result = None

    def take_all(self) -> list[Batch]:
        """Take every batch."""
        taken: list = []
        with self._lock:
            while self.batches:
                taken.append(self._pop_locked())
        return taken

    def put_back(self, batches: list[Batch]) -> None:
        """Queue batches again at the head, in their order: they are older than what waits."""
        with self._lock:
            self.batches.extendleft(reversed(batches))
            self.active.add(self)

    def put_back_in_order(self, batch: Batch, comes_before: Callable[[Batch, Batch], bool]) -> None:
        """Queue a batch again behind those at the head that `comes_before(queued, batch)` says precede it."""
        at: cython.Py_ssize_t = 0
        with self._lock:
            for queued in self.batches:
                if not comes_before(queued, batch):
                    break
                at += 1
            self.batches.insert(at, batch)
            self.active.add(self)

    def take_some(self, wanted: Callable[[Batch], bool]) -> list[Batch]:
        """Take the batches that `wanted` says; the others stay in their order."""
        taken: list = []
        kept: list = []
        with self._lock:
            while self.batches:
                batch: Any = self._pop_locked()
                if wanted(batch):
                    taken.append(batch)
                else:
                    kept.append(batch)
            self.batches.extend(kept)
        return taken

    def retire(self) -> None:
        """Leave the active queues, if nothing waits here."""
        with self._lock:
            if not self.batches:
                self.active.discard(self)

    def _pop_locked(self) -> Batch:
        batch: Any = self.batches.popleft()
        if batch.writer is self._writer:
            self._writer = None
            self._result = None
        return batch

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition}: {len(self.batches)} batches>"


@cython.final
@cython.cclass
class TopicState:
    """What the send path knows of one topic.

    Args:
        name: the topic.
        sticky_size: bytes after which records without key go to another partition.
        choose: picks that partition: `choose(topic_state) -> int`.
    """

    def __init__(self, name: str, sticky_size: int, choose: Callable[[TopicState], int]) -> None:
        self.name = name
        self.sticky_size = sticky_size
        self.choose = choose
        self.queues = []
        self.sticky_partition = -1
        self.sticky_bytes = 0
        self.used = True  # set by every send, cleared by whoever asks which topics are in use
        self.load: Any = None  # queue lengths for the adaptive choice; replaced whole by the I/O thread

    def switch(self) -> None:
        """Choose where records without key go next. Under the lock of the partition left, or before the first."""
        self.sticky_partition = self.choose(self)
        self.sticky_bytes = 0

    def count_locked(self, size: cython.Py_ssize_t, full: cython.bint) -> None:
        """Count bytes appended to the sticky partition, and move on when it has had its share."""
        self.sticky_bytes += size
        if self.sticky_bytes >= self.sticky_size and (full or self.sticky_bytes >= 2 * self.sticky_size):
            self.switch()


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
        topics: the topics in use, by name; the accumulator keeps it.
        max_record_size: what one record may take, the size check's overhead included.
        hash_keys: whether keys choose the partition.
        wall_ms: the clock for timestamps, or None for the system's.
        wake: wakes the I/O thread; called when a batch became full.
        append_now: appends where no open batch has room, see RecordAccumulator; None: the general path does.
    """

    def __init__(
        self,
        topics: dict,  # type: ignore[type-arg]
        max_record_size: int,
        hash_keys: bool,
        wall_ms: Callable[[], int] | None,
        wake: Callable[[], object],
        append_now: Callable[..., Delivery | None] | None = None,
    ) -> None:
        self.topics = topics
        self.enabled = False
        self._wake = wake
        self._append_now = append_now
        self._max_record_size = max_record_size
        self._hash_keys = hash_keys
        self._wall_ms = wall_ms
        self._last_topic: TopicState | None = None

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
        """Append the record and return its Delivery, or return None having changed nothing."""
        state: TopicState | None
        queue: PartitionQueue
        delivery: Delivery | None
        chosen: cython.Py_ssize_t
        timestamp: cython.longlong
        full: cython.bint = False
        sticky: cython.bint = False
        if not self.enabled:
            return None
        if on_delivery is not None and not callable(on_delivery):
            return None
        state = self._last_topic
        if state is None or topic is not state.name:
            state = self.topics.get(topic)
            if state is None:
                return None
            self._last_topic = state
        size: cython.Py_ssize_t = self._size_bound(key, value, headers)
        if size < 0 or size > self._max_record_size:
            return None
        queues: list = state.queues  # one look: it is replaced whole when the topic changes
        count: cython.Py_ssize_t = len(queues)
        if partition is not None:
            if type(partition) is not int:
                return None
            if not 0 <= partition < count:
                return None
            chosen = partition
        elif key is not None and self._hash_keys:
            chosen = partition_for_key(key, count)
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
        with queue._lock:
            delivery = None
            if not sticky or state.sticky_partition == chosen:
                delivery = queue._append_locked(queue._writer, queue._result, timestamp, key, value, headers)
            if delivery is not None:
                if on_delivery is not None:
                    queue._result.callbacks.append((delivery, on_delivery))
                full = queue._writer.is_full()
                if sticky:
                    state.count_locked(queue._size, full)
        if delivery is None:
            if self._append_now is None:
                return None
            # Once per batch: the open one is full, or there is none.
            delivery = self._append_now(
                state, None if sticky else chosen, (timestamp, key, value, headers, size), on_delivery
            )
            if delivery is None:
                return None
        elif full:
            self._wake()
        state.used = True
        return delivery

    def _size_bound(self, key: Any, value: Any, headers: Any) -> cython.Py_ssize_t:
        """The most that the record can take in a batch of its own, or -1: it is not made of bytes."""
        size: cython.Py_ssize_t = _OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                return -1
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                return -1
            size += len(key)
        if headers is not None:
            more: cython.Py_ssize_t = _headers_bound(headers)
            if more < 0:
                return -1
            size += more
        return size


@cython.cclass
class SendFace:
    """The `send` of a producer: the fast path, with the general one behind it.

    A base class of the producer rather than a part of it, so that the call itself is compiled: a Python function with
    seven parameters around the fast path would cost as much as the fast path does.
    """

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
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

        Raises:
            KafkaTimeoutError: the topic, or the partition, did not become known in time; the text says why.
            BufferExhaustedError: no memory became free in time.
            RecordTooLargeError: it exceeds max.request.size.
            SerializationError: key or value could not be turned into bytes.
            ProducerClosedError: the producer is closed.
            TypeError, ValueError: an argument is wrong.
        """
        fast: FastPath = self._fast_path
        delivery: Delivery | None = fast.try_send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if delivery is None:
            record = ProducerRecord(topic, value, key, as_headers(headers), partition, timestamp_ms)
            return self.send_record(record, on_delivery)
        return delivery

    def send_record(self, record: ProducerRecord, on_delivery: OnDelivery | None = None) -> Delivery:
        """Send a record that was made as a value; see `send`."""
        raise NotImplementedError
