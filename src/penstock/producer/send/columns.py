# SPDX-License-Identifier: Apache-2.0
"""The path of `send_many` and `send_arrow`: from columns to batches, a window of rows at a time.

Like the general path of `send`, it consists of steps that yield what they wait for; the caller decides how to wait.
For each window: find the topics, place the rows, sort them by partition, append them partition by partition.

Rules:
1. The rows of a partition keep their order, also those with a key and those without one among each other.
2. While the steps wait, they hold only the rows, and no memory of the pool.
3. An error that is raised after rows were accepted has the BulkDelivery in `bulk_delivery`, which says which rows were
not accepted.

If the producer has interceptors, or a partitioner of the user, these must see each record. Then the rows take the
general path one by one, with the same outcome.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock._arguments import is_topic_name
from penstock._counted import counted
from penstock._time import Clock
from penstock.errors import (
    BadRowsError,
    DamagedRowError,
    InvalidTopicError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from penstock.producer.batch._accumulator_cy import RecordAccumulator
from penstock.producer.batch._appending_cy import BulkWake
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.batch._partitioner_cy import TopicState
from penstock.producer.batch._queue_cy import PartitionQueue, TopicForgotten
from penstock.producer.send._path_cy import SendCall, SendPath
from penstock.producer.send.bulk_delivery import BulkDelivery, BulkPromise, Lost, span_of, span_rows, trace
from penstock.producer.steps import Checkpoint, Steps
from penstock.producer.unseen import EACH_ROWS_OWN
from penstock.records._rows_cy import (
    BAD_HEADER,
    BAD_LAYOUT,
    BAD_PARTITION,
    BAD_SIZE,
    BAD_TIMESTAMP,
    STICKY,
    Rows,
)
from penstock.records._window_cy import NO_TOPIC, Window
from penstock.records.arrow_rows import moment_text
from penstock.records.format import RecordLimit
from penstock.records.python_rows import ManyRecords, rows_with_headers
from penstock.types import ProducerRecord, RowErrors

if TYPE_CHECKING:
    from penstock._tracing import BulkEnd

# Rows that are placed and sorted at once. With so many rows, each of a hundred partitions still gets most of a batch
# from a window. With more, their vectors (8 bytes a row) would not fit into the processor's cache.
WINDOW_ROWS = 65_536

# The number of rows with their own error object; the others share one for each kind of error. A table may have millions
# of bad rows, and an error object for each would need more memory than the table.
_TOLD = 100
# The number of bad rows that the text of the error names.
_NAMED = 3

_KINDS = {
    BAD_SIZE: "the record is too large",
    BAD_PARTITION: "the topic has no partition of that number",
    BAD_TIMESTAMP: "the timestamp is before 1970, or too large",
    BAD_HEADER: "a header is null, or its name is null or not UTF-8",
    BAD_LAYOUT: "the table contradicts itself: an offset, a code of a dictionary or a view lies outside of the data",
    NO_TOPIC: "the topic is null, or a name that no topic can have",
}
# Codes that are found before the whole row was checked.
_NOT_LOOKED_THROUGH = (NO_TOPIC, BAD_HEADER, BAD_SIZE)
_CLASSES: dict[int, type[Exception]] = {BAD_SIZE: RecordTooLargeError, BAD_LAYOUT: DamagedRowError}


class BadRows:
    """Collects bad rows.

    Args:
        limit: the largest size of a record.

    Attributes:
        count: how many there are.
        errors: the first of them, in order.
        refused_topics: the topics of a column that the cluster refuses, and why.
    """

    def __init__(self, limit: RecordLimit) -> None:
        self._limit = limit
        self.count = 0
        self.errors: list[RowErrors] = []
        self._general: dict[int, Exception] = {}
        self.refused_topics: dict[bytes, Exception] = {}  # by the cluster, and why

    def add(self, rows: Rows, row: int, code: int, number: int) -> Exception:
        """Note a bad row. Returns its error.

        Args:
            rows: where it is.
            row: its place there.
            code: what is wrong, as `Window.bad_rows` says.
            number: its number among all.
        """
        if code in _NOT_LOOKED_THROUGH and rows.is_damaged(row):
            code = BAD_LAYOUT  # with any other error, a caller might read the damaged row
        self.count += 1
        refused = None
        if code == NO_TOPIC and self.refused_topics:
            refused = self.refused_topics.get(rows.topic.get(row))
        if self.count > _TOLD:
            return refused or self._kind(code)
        error = refused or self._problem(rows, row, code)
        self.errors.append(RowErrors(number, number, error))
        return error

    def _kind(self, code: int) -> Exception:
        error = self._general.get(code)
        if error is None:
            kind = _CLASSES.get(code, ValueError)
            error = self._general[code] = kind(_KINDS[code])
        return error

    def _problem(self, rows: Rows, row: int, code: int) -> Exception:
        if code == BAD_SIZE:
            return self._limit.error("the record", rows.size_bound(row))
        value: Any = ""
        if code == BAD_LAYOUT:
            return DamagedRowError(f"{_KINDS[code]} (of its {rows.wrong_part(row)})")
        if code == BAD_PARTITION:
            topic = "" if rows.topic is None else f" of {rows.topic.get(row)!r}"
            value = f": {rows.partition_at(row)}{topic}"
        elif code == BAD_TIMESTAMP:
            value = f": {moment_text(rows.timestamp.as_given(row), rows.timestamp.unit)}"
        elif code == NO_TOPIC and rows.topic is not None:
            value = f": {rows.topic.get(row)!r}"
        return ValueError(_KINDS[code] + value)

    def error(self, total: str, outcome: str) -> BadRowsError:
        """The error to raise for them."""
        named = "; ".join(str(entry) for entry in self.errors[:_NAMED])
        more = "; ..." if len(self.errors) > _NAMED else ""
        return BadRowsError(
            f"{self.count:,} {total} cannot be sent, and {outcome}. {named}{more}",
            self.errors,
            self.count,
        )


class _Call:
    """The state of one call of send_many or send_arrow.

    Args:
        topic: where all rows go; None: each row says so.
        skip: whether bad rows are left out.
        wake: wakes the I/O thread for rows that were accepted.
        bad: collects bad rows.
        promise: notes the accepted and the refused rows.
    """

    def __init__(
        self, topic: str | None, skip: bool, wake: BulkWake, bad: BadRows, promise: BulkPromise
    ) -> None:
        self.topic = topic
        self.skip = skip
        self.wake = wake
        self.bad = bad
        self.promise = promise
        self.window = Window(0)
        self.known: dict[bytes, int] = {}  # topics of rows, by the names in the column
        self.topics: list[TopicState | None] = []  # by those numbers; None for a name that no topic can have
        self.queues: list[Sequence[PartitionQueue]] = []  # of the topics, as they were when rows were placed
        self.total: int | None = None  # rows in all, where that is known
        self.skipped: set[int] = set()  # bad rows of the window
        self.is_placed = False  # the window holds all rows, and the check has already placed them

    def windows(self, rows: Rows) -> Iterator[Window]:
        """All rows of a chunk, a window at a time."""
        if self.is_placed:
            yield self.window
            return
        size = min(WINDOW_ROWS, rows.length)
        if size > self.window.capacity:
            self.window = Window(size)
        for first in range(0, rows.length, size or 1):
            self.window.open(rows, first, min(first + size, rows.length))
            self.window.expendable = self.skip
            self.skipped = set()
            yield self.window

    def topic_of(self, row: int) -> str:
        """The topic of a row of the window."""
        if self.topic is not None:
            return self.topic
        name: bytes = self.window.rows.topic.get(row)
        return name.decode()


class ColumnSender:
    """Sends rows.

    Args:
        accumulator: takes them.
        send_path: the general path; it has the user's serializers, the limits and the gate.
        row_by_row: whether each record must take a general path.
        clock: for timestamps.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        send_path: SendPath,
        row_by_row: bool,
        clock: Clock,
    ) -> None:
        self._accumulator = accumulator
        self._send_path = send_path
        self.row_by_row = row_by_row
        self._clock = clock

    def promise(self, *, skip: bool) -> BulkPromise:
        """A new promise. `steps` makes its own, unless several calls of it share one."""
        return BulkPromise(self._accumulator.unseen, skips=skip)

    def steps(
        self,
        topic: str | None,
        chunks: Iterable[Rows],
        skip: bool,
        promise: BulkPromise | None = None,
        first_row: int = 0,
    ) -> Steps[BulkDelivery]:
        """Send all rows; their BulkDelivery. What `send_arrow` does."""
        tracing = self._send_path.tracing
        if tracing is None:
            return (yield from self._steps(topic, chunks, skip, promise, first_row))
        add, end = tracing.begin_bulk(topic, -1)
        if headers := add(None):
            chunks = (rows_with_headers(rows, headers) for rows in chunks)
        steps = self._steps(topic, chunks, skip, promise, first_row)
        return (yield from _traced(steps, end, whole=promise is None))

    def _steps(
        self,
        topic: str | None,
        chunks: Iterable[Rows],
        skip: bool,
        promise: BulkPromise | None = None,
        first_row: int = 0,
    ) -> Steps[BulkDelivery]:
        """Send all rows; their BulkDelivery.

        Args:
            topic: where they go; None: each row says so.
            chunks: the rows; without `skip` all are looked at before the first is sent.
            skip: leave out rows that cannot be sent, instead of sending none.
            promise: the promise that has the rows before `first_row`, to be continued.

        Raises:
            BadRowsError: rows cannot be sent, and none was.
            KafkaError: as `send` raises them.
        """
        self._send_path.check_open()
        promise = promise or self.promise(skip=skip)
        if topic is not None:
            topic = str.__str__(topic)  # compiled code takes no subclass, such as a member of an enumeration
        call = _Call(topic, skip, self._accumulator.bulk_wake(), BadRows(self._send_path.limit), promise)
        if not skip:
            chunks = deque(chunks)
            yield from self._check_all(call, chunks)
        try:
            yield from self._send_all(call, chunks, first_row)
        except GeneratorExit:
            raise
        except BaseException as error:
            _tell_accepted(error, promise.delivery)
            raise
        finally:
            call.wake.now()  # also after an error: the I/O thread may not know of accepted rows yet
        return promise.delivery

    def many_steps(self, many: ManyRecords) -> Steps[BulkDelivery]:
        """Send what `send_many` was given; its BulkDelivery."""
        tracing = self._send_path.tracing
        if tracing is None:
            return (yield from self._many_steps(many))
        add, end = tracing.begin_bulk(many.topic, len(many.values))
        return (yield from _traced(self._many_steps(many.with_headers(add)), end, whole=True))

    def _many_steps(self, many: ManyRecords) -> Steps[BulkDelivery]:
        if self.row_by_row:
            return (yield from self.record_steps(list(many.records())))
        self._send_path.check_open()
        as_they_are = not self._send_path.serializes and many.are_bytes()
        rows = many.rows(None if as_they_are else self._send_path.serialize_rows)
        return (yield from self._steps(many.topic, [rows] if rows.length else [], skip=False))

    def record_steps(self, records: Sequence[ProducerRecord]) -> Steps[BulkDelivery]:
        """Send records one by one through the general path, serializers and all."""
        promise = BulkPromise(self._accumulator.unseen)
        for row, record in enumerate(records):
            try:
                delivery = yield from self._send_one(self._send_path.bulk_call(record))
            except GeneratorExit:
                raise
            except BaseException as error:
                if isinstance(error, Exception):
                    promise.refuse([(error, 0, (row, len(records) - row, None))])
                _tell_accepted(error, promise.delivery)
                raise
            promise.note(delivery, row)
            promise.maybe_gather()
            yield Checkpoint.PROGRESS
        return promise.delivery

    def _send_one(self, call: SendCall) -> Steps[Delivery]:
        path = self._send_path
        delivery = path.attempt(call) if path.is_ready() else None
        return delivery or (yield from path.steps(call))

    # ------------------------------------------------------------------------------------------ placing

    def _check_all(self, call: _Call, chunks: deque[Rows]) -> Steps[None]:
        """Check that no row is bad. If one window holds all rows, they stay placed."""
        total = 0
        fits = len(chunks) == 1 and 0 < chunks[0].length <= WINDOW_ROWS
        for rows in chunks:
            for window in call.windows(rows):
                yield from self._place(call, fits and self._send_path.placement.key_hash)
                _collect(window, total, call.bad)
            total += rows.length
        call.total = total
        if call.bad.count:
            raise call.bad.error(f"of {counted(total, 'row')}", "none was sent")
        call.is_placed = fits

    def _place(self, call: _Call, key_hash: int) -> Steps[None]:
        """Find the topics of the window's rows, and place the rows."""
        window = call.window
        if call.topic is not None:
            call.topics = [(yield from self._find_topic(call.topic))]
        else:
            window.read_topics(call.known)
            for name in list(call.known)[len(call.topics) :]:
                try:
                    call.topics.append((yield from self._find_topic(_topic_name(name))))
                except (InvalidTopicError, TopicAuthorizationError) as error:
                    call.bad.refused_topics[name] = error.with_traceback(None)
                    call.topics.append(None)
        call.queues = [() if state is None else state.queues for state in call.topics]
        window.place([len(queues) for queues in call.queues], self._send_path.limit.size, key_hash)

    def _find_topic(self, name: str | None) -> Steps[TopicState | None]:
        if name is None:
            return None
        cluster = yield from self._send_path.await_topic(name, None)
        state = self._accumulator.topic(name, cluster.partition_count(name) or 1)
        state.used = True
        return state

    # ------------------------------------------------------------------------------------------ sending

    def _send_all(self, call: _Call, chunks: Iterable[Rows], base_row: int) -> Steps[None]:
        streamed = not isinstance(chunks, deque)
        for rows in _each(chunks):
            call.promise.begin_chunk(base_row)
            for _ in call.windows(rows):
                try:
                    yield from self._send_window(call)
                except Exception as error:
                    call.promise.refuse(_rest(call, error))
                    raise
                call.promise.gather()
            base_row += rows.length
            if streamed:
                call.wake.now()  # the source may need long for the next chunk

    def _send_window(self, call: _Call) -> Steps[None]:
        window = call.window
        if not call.is_placed:
            if call.topic is None:
                call.wake.now()  # to find a topic may take long
            yield from self._place(call, self._send_path.placement.key_hash)
        if window.bad:
            bad = _collect(window, call.promise.base_row, call.bad)
            if not call.skip:
                # They were good at the check of all rows: a topic has fewer partitions since then.
                raise call.bad.error("of the rows that are left", "no more were sent")
            call.skipped = {row for lost in bad for row in span_rows(lost[2], 0)}
            call.promise.skip(bad, EACH_ROWS_OWN if call.topic is None else call.topic)
        if self.row_by_row:
            yield from self._send_rows(call)
            return
        if window.sticky and (window.sticky < window.count or call.topic is None):
            window.settle_sticky(
                [self._chooser(*pair) for pair in zip(call.topics, call.queues, strict=True)],
                self._accumulator.batch_size,
            )
        slots = [queue for queues in call.queues for queue in queues]
        appender, parts, admit = self._accumulator.appender, call.promise.parts, self._admit(window)
        for slot, first, last in window.sort():
            where = call.topics[0] if slot == STICKY else slots[slot]
            assert where is not None  # a name that no topic can have has no rows here
            admit()
            left = appender.append_rows_now(where, window, (first, last), parts, call.wake)
            if left > first:
                yield Checkpoint.PROGRESS
            while left < last:
                before = len(parts)
                try:
                    yield from appender.append_rows_steps(
                        where, window, (left, last), parts, call.wake, admit
                    )
                    break
                except TopicForgotten:
                    left += sum(part[2] for part in parts[before:])
                    where = yield from self._find_again(where)

    def _find_again(self, where: PartitionQueue | TopicState) -> Steps[PartitionQueue | TopicState]:
        """The new topic or queue in place of one that was forgotten, and is used again."""
        if isinstance(where, TopicState):
            state = yield from self._find_topic(where.name)
            assert state is not None
            return state
        yield from self._find_topic(where.topic)
        return self._accumulator.queue(where.topic, where.partition)

    def _chooser(self, state: TopicState | None, queues: Sequence[PartitionQueue]) -> Any:
        """A function that chooses partitions for rows without key."""
        # The choice may know of partitions that were not there when the rows were placed.
        return lambda: self._accumulator.partitioner.choose(state) % len(queues)  # type: ignore[arg-type]

    def _admit(self, window: Window) -> Any:
        """A function to call before each chunk: it checks that records are accepted, and sets the default timestamp."""

        def admit() -> None:
            self._send_path.check_open()
            window.now_ms = self._clock.wall_ms()

        return admit

    def _send_rows(self, call: _Call) -> Steps[None]:
        """Send the rows of the window one by one, in their order."""
        window = call.window
        for row in range(window.first, window.last):
            if row in call.skipped:
                continue
            value, key, headers, partition, timestamp = window.rows.record(row)
            record = ProducerRecord(call.topic_of(row), value, key, headers, partition, timestamp)
            delivery = yield from self._send_one(self._send_path.bulk_call(record, as_bytes=True))
            call.promise.note(delivery, row)
            yield Checkpoint.PROGRESS


def _traced(steps: Steps[BulkDelivery], end: BulkEnd | None, *, whole: bool) -> Steps[BulkDelivery]:
    """Take the steps, and end their span with the outcome of all rows.

    Args:
        steps: what is traced.
        end: ends the span, if there is one.
        whole: whether the rows of the BulkDelivery are those of these steps.
    """
    if end is None:
        return (yield from steps)
    try:
        bulk = yield from steps
    except BaseException as error:
        end(0, error)
        raise
    trace(bulk, end if whole else lambda _, error: end(-1, error))
    return bulk


def _collect(window: Window, base_row: int, bad: BadRows) -> list[Lost]:
    """Note the bad rows of a window. Returns them."""
    if not window.bad:
        return []
    found: dict[int, tuple[Exception, array[int]]] = {}  # by the identity of the error
    for row, code in window.bad_rows():
        error = bad.add(window.rows, row, code, base_row + row)
        found.setdefault(id(error), (error, array("i")))[1].append(row - window.first)
    return [(error, base_row, span_of(window.first, steps)) for error, steps in found.values()]


def _rest(call: _Call, error: Exception) -> list[Lost]:
    """The rows that were not accepted when an error came: those of the window, and the known rows behind it."""
    window, base_row = call.window, call.promise.base_row
    gone = call.skipped.union(*(span_rows(part[4], 0) for part in call.promise.parts))
    steps = array("i", (row - window.first for row in range(window.first, window.last) if row not in gone))
    rest: list[Lost] = [(error, base_row, span_of(window.first, steps))] if steps else []
    end = base_row + window.rows.length if call.total is None else call.total
    if base_row + window.last < end:
        rest.append((error, base_row, (window.last, end - base_row - window.last, None)))
    return rest


def _tell_accepted(error: BaseException, bulk: BulkDelivery) -> None:
    """Add the rows that were already accepted to an error."""
    with suppress(AttributeError):  # an error of another package may not allow new attributes
        error.bulk_delivery = bulk  # type: ignore[attr-defined]
        if bulk.accepted:
            are = "is" if bulk.accepted == 1 else "are"
            error.add_note(
                f"{counted(bulk.accepted, 'row')} had been accepted before, and {are} on the way; `bulk_delivery` of "
                "this error tells what becomes of them, and its `errors` which rows are missing"
            )


def _each(chunks: Iterable[Rows]) -> Iterator[Rows]:
    """The chunks, without a reference to earlier ones: their memory belongs to the caller's data."""
    if isinstance(chunks, deque):
        while chunks:
            yield chunks.popleft()
    else:
        yield from chunks


def _topic_name(name: bytes) -> str | None:
    """A topic's name from a column; None for one that no topic can have."""
    try:
        text = name.decode()
    except ValueError:
        return None
    return text if is_topic_name(text) else None
