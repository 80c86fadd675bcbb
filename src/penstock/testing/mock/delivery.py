# SPDX-License-Identifier: Apache-2.0
"""The Deliveries of a MockProducer, with the methods of the real ones: of one record, and of many at once.

Here are also the records that have no outcome yet, and the rows of a table as records.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock._arguments import check_timeout
from penstock._counted import counted
from penstock._done_callbacks import DoneCallback, DoneCallbacks
from penstock._events import ON_DELIVERY_RAISED, Event, tell_error
from penstock._locks import Latch, forbid_reentry
from penstock._other_clients import GET, dir_without_them
from penstock.errors import BulkDeliveryError, DamagedRowError, KafkaError, KafkaTimeoutError
from penstock.records._columns_cy import LIES
from penstock.records._rows_cy import Rows
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows, moment_text
from penstock.types import (
    BulkReport,
    PartitionReport,
    ProducerRecord,
    RecordMetadata,
    RowErrors,
    TopicPartition,
)

log = logging.getLogger("penstock.testing")


def tell_of_callback(text: str, error: BaseException, place: TopicPartition | None = None) -> None:
    """A function of the user's has raised."""
    args = () if place is None else (place,)
    tell_error(
        log, Event.CALLBACK_FAILED, text, *args, place=place, error=error
    )  # fmt: skip


OnDelivery = Callable[[RecordMetadata, Exception | None], object]


class MockDelivery:
    """The future of one record that a MockProducer accepted.

    As with the real one the outcome is set first, then `on_delivery` runs, then `done` turns true and those who wait
    are released.
    """

    __slots__ = ("_done", "_error", "_followers", "_metadata", "_settled_by", "_topic_partition")
    get = GET
    __dir__ = dir_without_them

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        # Set once, by the thread that settles.
        self._metadata = unknown_metadata(topic_partition)
        self._error: KafkaError | None = None
        self._settled_by: int | None = None
        self._done = Latch()
        self._followers: list[tuple[Callable[[MockDelivery], object]]] = []

    def done(self) -> bool:
        """Whether the outcome is known and its callback has run."""
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; where the record is.

        Raises:
            KafkaTimeoutError: the time is up, and nobody has completed the record.
            KafkaError: the record was not acknowledged, and why.
        """
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._metadata

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the outcome; the error, or None when the record was acknowledged.

        Raises:
            KafkaTimeoutError: the time is up, and nobody has completed the record.
        """
        self._wait(timeout)
        return self._error

    def add_done_callback(self, fn: Callable[[MockDelivery], object]) -> None:
        """Call `fn(delivery)` when it is done: in the event loop that runs on this thread now, if one does.

        Otherwise on the thread that completes it, or at once when it is done already.
        """
        self._add_follower((DoneCallback(fn, _no_look, log),))

    def remove_done_callback(self, fn: Callable[[MockDelivery], object]) -> int:
        """Forget callbacks that are this function and were not called yet; how many."""
        return sum(
            isinstance(entry[0], DoneCallback) and entry[0].fn == fn and self._take(entry)
            for entry in list(self._followers)
        )

    def cancelled(self) -> bool:
        """False: it cannot be."""
        return False

    def _add_follower(self, entry: tuple[Callable[[MockDelivery], object]]) -> None:
        # No lock: whichever comes second, this or `settle`, sees the other, and each entry is taken once.
        self._followers.append(entry)
        if self._done.is_set() and self._take(entry):
            self._call(entry[0])

    def _take(self, entry: tuple[Callable[[MockDelivery], object]]) -> bool:
        try:
            self._followers.remove(entry)
        except ValueError:
            return False  # `settle` has it
        return True

    def _settle(
        self, metadata: RecordMetadata, error: KafkaError | None, on_delivery: OnDelivery | None
    ) -> None:
        """Set the outcome and tell everybody. For the MockProducer, once."""
        self._metadata, self._error = metadata, error
        self._settled_by = threading.get_ident()
        if on_delivery is not None:
            try:
                on_delivery(metadata, error)
            except Exception as raised:  # noqa: BLE001 - it is logged
                tell_of_callback(ON_DELIVERY_RAISED, raised, self._topic_partition)
        self._done.set()
        while self._followers:
            try:
                (follower,) = self._followers.pop(0)
            except IndexError:
                return
            self._call(follower)

    def _wait(self, timeout: float | None) -> None:
        check_timeout(timeout)
        # Inside its own callback a delivery has an outcome and is not done: there it must not wait for itself.
        if self._settled_by == threading.get_ident() or self._done.is_set():
            return
        forbid_reentry("result()")
        if self._done.wait(timeout):
            return
        raise KafkaTimeoutError(
            f"no outcome for a record of {self._topic_partition} within {timeout} s: complete it with complete_next(), "
            "error_next() or flush()"
        )

    def _call(self, follower: Callable[[MockDelivery], object]) -> None:
        try:
            follower(self)
        except Exception as error:  # noqa: BLE001 - it is logged
            tell_of_callback("a done callback of a delivery raised", error)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            from penstock._loops import until  # a program that awaits nothing needs no event loop

            yield from until(_Outcome(self))
        return self.result(0)

    def __repr__(self) -> str:
        if not self.done():
            return f"<MockDelivery {self._topic_partition} pending>"
        return (
            f"<MockDelivery {self._topic_partition} {self._error!r}>"
            if self._error
            else f"<MockDelivery {self._metadata}>"
        )


def _no_look(_: object) -> None:
    """A mock does not note which outcomes were looked at."""


class _Outcome(NamedTuple):
    """What is awaited: an event of `_waiting_cy`, the same for all who wait for a delivery."""

    delivery: MockDelivery

    def join(self, waiting: Any) -> None:
        """Tell those who wait in an event loop."""
        waiting.follower = (waiting.happened,)
        self.delivery._add_follower(waiting.follower)

    def quit(self, waiting: Any) -> None:
        """Remove a task that does not wait any more."""
        self.delivery._take(waiting.follower)


def unknown_metadata(topic_partition: TopicPartition) -> RecordMetadata:
    """What callbacks of a failed record get: its partition, and -1 for all the rest."""
    return RecordMetadata(topic_partition.topic, topic_partition.partition, -1, -1, -1, -1)


# ---- the records on their way


class PendingRecord(NamedTuple):
    """An accepted record without outcome."""

    delivery: MockDelivery
    on_delivery: OnDelivery | None
    timestamp: int
    key_size: int
    value_size: int


class MockOutbox:
    """Pending records, oldest first, and the next offset of each partition; gives each record its outcome.

    There is no thread here: who completes a record runs its callbacks. Two threads that complete records of the same
    partition at the same moment may run their callbacks in either order; the offsets differ in any case.

    Args:
        on_failure: told about each record that fails, before its callbacks run.
    """

    def __init__(self, on_failure: Callable[[KafkaError], None]) -> None:
        self._on_failure = on_failure
        self._callback = threading.local()  # .running: this thread is inside a delivery's callbacks
        self._pending: deque[PendingRecord] = deque()  # appending and popping are atomic
        self._next_offsets: dict[TopicPartition, Iterator[int]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, pending: PendingRecord) -> None:
        """Keep a record until somebody completes it."""
        self._pending.append(pending)

    def acknowledge(self, pending: PendingRecord) -> None:
        """Give a record the next offset of its partition. One that failed takes none."""
        place = pending.delivery._topic_partition
        offset = next(
            self._next_offsets.setdefault(place, itertools.count())
        )  # in one step: other threads may acknowledge, too
        metadata = RecordMetadata(*place, offset, pending.timestamp, pending.key_size, pending.value_size)
        self._settle(pending, metadata, None)

    def acknowledge_next(self) -> bool:
        """Acknowledge the oldest pending record; False when there is none."""
        pending = self._try_take()
        if pending is not None:
            self.acknowledge(pending)
        return pending is not None

    def acknowledge_all(self) -> None:
        """Acknowledge every pending record."""
        while self.acknowledge_next():
            pass

    def fail_next(self, error: KafkaError) -> bool:
        """Let the oldest pending record fail; False when there is none."""
        pending = self._try_take()
        if pending is not None:
            self._on_failure(error)
            self._settle(pending, unknown_metadata(pending.delivery._topic_partition), error)
        return pending is not None

    def fail_all(self, error: KafkaError) -> None:
        """Let every pending record fail."""
        while self.fail_next(error):
            pass

    def in_callback(self) -> bool:
        """Whether the calling thread is inside a delivery's callback, where the real producer must not block."""
        return getattr(self._callback, "running", False)

    def _try_take(self) -> PendingRecord | None:
        try:
            return self._pending.popleft()
        except IndexError:
            return None

    def _settle(self, pending: PendingRecord, metadata: RecordMetadata, error: KafkaError | None) -> None:
        outer = self.in_callback()  # a callback may itself send, and thereby complete, a record
        self._callback.running = True
        try:
            pending.delivery._settle(metadata, error, pending.on_delivery)
        finally:
            self._callback.running = outer


# ---- many records at once

Prepared = tuple[int, ProducerRecord, PendingRecord]  # with the number of the row


class MockBulkDelivery:
    """The future of all rows of one call, with the methods of the real one.

    Args:
        accepted: the records that were accepted, with the numbers of their rows.
        refused: the rows that were left out.
    """

    get = GET
    __dir__ = dir_without_them

    def __init__(self, accepted: Sequence[Prepared], refused: Sequence[RowErrors]) -> None:
        self._accepted = accepted
        self._refused = refused
        self._callbacks = DoneCallbacks()
        self._is_followed = False

    @property
    def accepted(self) -> int:
        """How many records were accepted."""
        return len(self._accepted)

    @property
    def errors(self) -> list[RowErrors]:
        """The rows known by now not to be delivered, in order."""
        failed = [
            RowErrors(row, row, error)
            for row, _, pending in self._accepted
            if pending.delivery.done() and (error := pending.delivery.exception(0)) is not None
        ]
        return sorted([*failed, *self._refused], key=lambda entry: entry.first_row)

    def done(self) -> bool:
        """Whether the outcome of every row is known."""
        return all(pending.delivery.done() for _, _, pending in self._accepted)

    def result(self, timeout: float | None = None) -> BulkReport:
        """Wait for all outcomes; what was written where.

        Raises:
            BulkDeliveryError: some accepted records were not delivered.
            KafkaTimeoutError: the time is up, and nobody has completed the records.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._report()

    def exception(self, timeout: float | None = None) -> BulkDeliveryError | None:
        """Wait for all outcomes; the error that `result` would raise, or None."""
        check_timeout(timeout)
        failed = [
            RowErrors(row, row, error)
            for row, _, pending in self._accepted
            if (error := pending.delivery.exception(timeout)) is not None
        ]
        if not failed:
            return None
        bulk_error = BulkDeliveryError(
            f"{len(failed):,} of {counted(len(self._accepted), 'record')} {'was' if len(failed) == 1 else 'were'} not "
            f"delivered; {failed[0]}",
            self._report(),
        )
        bulk_error.__cause__ = failed[0].error
        return bulk_error

    def cancelled(self) -> bool:
        """False: it cannot be."""
        return False

    def add_done_callback(self, fn: Callable[[MockBulkDelivery], object]) -> None:
        """Call `fn(bulk)` when it is done: in the event loop that runs on this thread now, if one does.

        Otherwise on the thread that completes it, or at once when it is done already.
        """
        self._callbacks.add(DoneCallback(fn, _no_look, log), self._call)
        if not self._is_followed:
            self._is_followed = True
            self._follow()

    def remove_done_callback(self, fn: Callable[[MockBulkDelivery], object]) -> int:
        """Forget callbacks that are this function and were not called yet; how many."""
        return self._callbacks.remove(fn)

    def _follow(self) -> None:
        pending = [one.delivery for _, _, one in self._accepted if not one.delivery.done()]
        if not pending:
            self._callbacks.release(self._call)
            return
        completed = itertools.count(1)  # counts in one step: several threads may complete records

        def one_more(_: MockDelivery) -> None:
            if next(completed) == len(pending):
                self._callbacks.release(self._call)

        for delivery in pending:
            delivery._add_follower((one_more,))

    def _call(self, fn: Callable[[MockBulkDelivery], object]) -> None:
        try:
            fn(self)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is logged
            tell_of_callback("a done callback of a bulk delivery raised", error)

    def __await__(self) -> Generator[Any, None, BulkReport]:
        for _, _, pending in self._accepted:
            try:
                yield from pending.delivery.__await__()
            except KafkaError:  # told below, for all of them
                continue
        return self.result(0)

    def _report(self) -> BulkReport:
        records = size = 0
        partitions: dict[TopicPartition, PartitionReport] = {}
        for _, _, pending in self._accepted:
            if pending.delivery.exception(0) is not None:
                continue
            metadata = pending.delivery.result(0)
            records += 1
            size += max(0, metadata.serialized_key_size) + max(0, metadata.serialized_value_size)
            before = partitions.get(metadata.topic_partition)
            first = metadata.offset if before is None else before.first_offset
            count = 1 if before is None else before.records + 1
            partitions[metadata.topic_partition] = PartitionReport(count, first, metadata.offset)
        return BulkReport(records, size, partitions, tuple(self.errors))

    def __repr__(self) -> str:
        return f"<MockBulkDelivery {'done' if self.done() else 'pending'}: {counted(self.accepted, 'record')} accepted>"


class Tables(list[Any]):
    """Several tables that are sent as one."""


def prepare_rows(
    topic: str | None, data: Any, names: ColumnNames, prepare: Callable[[ProducerRecord], PendingRecord]
) -> tuple[list[Prepared], list[RowErrors]]:
    """The rows of an Arrow table as records that can be accepted, and the rows that cannot be sent.

    Args:
        topic: where all of them go; None: a column says it.
        data: the table, or Tables.
        names: its columns.
        prepare: checks a record and gives it its partition.
    """
    prepared: list[Prepared] = []
    bad: list[RowErrors] = []
    for table in data if isinstance(data, Tables) else (data,):
        first = len(prepared) + len(bad)
        with ArrowSource(table) as source:
            for number, (rows, row) in enumerate(_each_row(arrow_rows(source, names)), first):
                try:
                    record = _record(topic, rows, row)
                    prepared.append((number, record, prepare(record)))
                except (KafkaError, ValueError) as error:
                    bad.append(RowErrors(number, number, error))
    return prepared, bad


def _each_row(chunks: Iterable[Rows]) -> Iterator[tuple[Rows, int]]:
    for rows in chunks:
        for row in range(rows.length):
            yield rows, row


def _record(topic: str | None, rows: Rows, row: int) -> ProducerRecord:
    """A row as a record.

    Raises:
        ValueError: it cannot be one.
        DamagedRowError: it contradicts itself.
    """
    size = rows.size_bound(row)
    if size == LIES or (rows.topic is not None and rows.wrong_part(row) == "topic"):
        raise DamagedRowError(
            f"the table contradicts itself: the {rows.wrong_part(row)} lies outside of the data"
        )
    if size < 0:
        raise ValueError("a header is null, or its name is null or not UTF-8")
    if topic is None:
        name = rows.topic.get(row)
        if not name:
            raise ValueError(f"the topic is null, or a name that no topic can have: {name!r}")
        topic = name.decode()
    value, key, headers, partition, timestamp = rows.record(row)
    if timestamp is not None and timestamp < 0:
        given = moment_text(rows.timestamp.as_given(row), rows.timestamp.unit)
        raise ValueError(f"the timestamp is before 1970, or too large: {given}")
    return ProducerRecord(topic, value, key, headers, partition, timestamp)
