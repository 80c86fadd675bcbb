# SPDX-License-Identifier: Apache-2.0
"""A Producer for unit tests: same calls, no broker, and a record of everything that was sent.

    producer = MockProducer()
    place_order(producer, "A-1")                                   # the code to be tested
    assert producer.history() == [ProducerRecord("orders", b"A-1")]

Rules:
1. It refuses what the real producer refuses: serializers run, partitions are checked, transactions keep their order.
2. Nothing happens in the background. A record is completed inside send(), or, with auto_complete=False, when the test
   says so; its callbacks run on the thread that completes it.
3. State is changed under the lock, callbacks run outside it.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from penstock._arguments import check_bool, check_limit, check_no_timeout, check_transactional_id
from penstock._counted import counted
from penstock._locks import new_nesting_lock
from penstock._other_clients import BLOCKING, ONLY_WITH, names_of_other_clients
from penstock._refusals import noting_refusals
from penstock._time import Clock, SystemClock
from penstock.consumer_groups import as_group, as_positions
from penstock.errors import (
    BadRowsError,
    IllegalStateError,
    KafkaError,
    ProducerClosedError,
    ProducerFencedError,
)
from penstock.records.arrow_rows import ColumnNames
from penstock.records.python_rows import ManyRecords
from penstock.serializers import BytesSerializer, MutableHeaders, serialize_part
from penstock.testing.mock.delivery import (
    MockBulkDelivery,
    MockDelivery,
    MockOutbox,
    OnDelivery,
    PendingRecord,
    Prepared,
    prepare_rows,
)
from penstock.testing.mock.settings import (
    InjectedErrors,
    MockOptions,
    MockPartitionInfo,
    MockPlacement,
    MockTopics,
)
from penstock.testing.mock.transactions import GroupOffsets, MockTransactions
from penstock.transaction_handle import TransactionHandle
from penstock.types import (
    GroupLike,
    HeadersLike,
    PositionsLike,
    ProducerRecord,
    RowErrors,
    TopicPartition,
    as_headers,
    check_other_clients_arguments,
)

if TYPE_CHECKING:
    from penstock.config.keys import ProducerOptions


@names_of_other_clients(ONLY_WITH, whose="")
@names_of_other_clients(BLOCKING)
class MockProducer:
    """Stands in for a Producer in tests.

    Args:
        config: as for Producer, as a mapping. Serializers, partitioner and transactional id are used; all other options
            are checked as a Producer checks them, kept in `options`, and change nothing.
        auto_complete: acknowledge each record inside send(). False: complete_next(), error_next() or flush() do it.
        topics: partition counts by topic; no other topic exists then. None: every topic exists, with one partition.
        clock: gives the records' timestamps.
        **options: as for Producer.

    Attributes:
        options: all options given, by their names in snake case.
        mock_metrics: what metrics() gives a copy of; empty until the test fills it.

    Raises:
        ConfigError: Producer would refuse an option. Only bootstrap.servers may be missing.
        ValueError: a topic has no partition.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | PathLike[str] | None = None,
        /,
        *,
        auto_complete: bool = True,
        topics: Mapping[str, int] | None = None,
        clock: Clock | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._topics = MockTopics(topics)
        read = MockOptions(config, options)
        self.options = read.given
        self.mock_metrics: dict[str, dict[str, Any]] = {}
        self._instance_id = uuid.uuid4()
        self._auto_complete = auto_complete
        self._clock = clock or SystemClock()
        self._plugins = read.plugins
        self._placement = MockPlacement(self._topics, self._plugins.partitioner)
        self._outbox = MockOutbox(self._on_failure)
        # Guards all that follows. A finalizer or a signal handler that interrupts a call may make another one.
        self._lock: Any = new_nesting_lock()
        self._closed = False
        self._history: list[ProducerRecord] = []
        self._transactions = MockTransactions(read.transactional_id)
        self._injected = InjectedErrors()

    # ------------------------------------------------------------------------------------------ the producer's calls

    @noting_refusals
    def send(  # noqa: PLR0913 - two of them are refused
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        callback: None = None,
        *,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: None = None,
    ) -> MockDelivery:
        """Accept a record; see Producer.send.

        Raises:
            KafkaTimeoutError: the topic or the partition does not exist.
            SerializationError: key or value could not be turned into bytes.
            ProducerClosedError: the producer is closed.
            ProducerFencedError: it was fenced.
            TransactionAbortableError: its transaction can only be aborted.
            IllegalStateError: it is transactional and no transaction is open.
            TypeError, ValueError: an argument is wrong.
        """
        check_other_clients_arguments(callback, timestamp)
        record = ProducerRecord(topic, value, key, as_headers(headers), partition, timestamp_ms)
        return self.send_record(record, on_delivery)

    @noting_refusals
    def send_record(self, record: ProducerRecord, on_delivery: OnDelivery | None = None) -> MockDelivery:
        """Accept a record that was made as a value; see `send`."""
        if not isinstance(record, ProducerRecord):
            raise TypeError(f"record must be a ProducerRecord, not {type(record).__name__}")
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        self._check_sending("send")
        # User code runs without the lock: a serializer may well ask the producer something.
        pending = self._prepare(record, on_delivery)
        self._accept(record, pending)
        return pending.delivery

    @noting_refusals
    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[HeadersLike | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
    ) -> MockBulkDelivery:
        """Accept many records; see Producer.send_many."""
        many = ManyRecords.of(topic, values, keys, headers, partition, timestamps_ms)
        self._check_sending("send_many")
        prepared = [(row, record, self._prepare(record, None)) for row, record in enumerate(many.records())]
        return self._accept_all(prepared, [])

    @noting_refusals
    def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        key: str | None = "key",
        value: str | None = "value",
        headers: str | None = "headers",
        partition: str | None = "partition",
        timestamp: str | None = "timestamp",
        on_error: Literal["fail", "skip"] = "fail",
    ) -> MockBulkDelivery:
        """Accept the rows of an Arrow table; see Producer.send_arrow."""
        names = ColumnNames.of_call(topic, on_error, key, value, headers, partition, timestamp)
        self._check_sending("send_arrow")
        prepare = partial(self._prepare, on_delivery=None, as_bytes=True)
        prepared, bad = prepare_rows(topic, data, names, prepare)
        if bad and on_error == "fail":
            total = len(prepared) + len(bad)
            raise BadRowsError(
                f"{len(bad):,} of {counted(total, 'row')} cannot be sent, and none was sent. {bad[0]}",
                bad,
                len(bad),
            )
        return self._accept_all(prepared, bad)

    def _note_refused(self, error: BaseException) -> None:
        with self._lock:
            self._transactions.note_refused(error)

    def _check_sending(self, call: str) -> None:
        with self._lock:
            self._check_open_locked()
            self._transactions.check_send()
            self._injected.maybe_raise(call)

    def _accept(self, record: ProducerRecord, pending: PendingRecord) -> None:
        with self._lock:
            self._check_open_locked()
            self._transactions.check_send()
            accepted = self._transactions.uncommitted if self._transactions.in_transaction else self._history
            accepted.append(record)
            if not self._auto_complete:
                self._outbox.add(pending)
        if self._auto_complete:
            self._outbox.acknowledge(pending)

    def _accept_all(self, prepared: Sequence[Prepared], bad: Sequence[RowErrors]) -> MockBulkDelivery:
        for _, record, pending in prepared:
            self._accept(record, pending)
        return MockBulkDelivery(prepared, bad)

    def flush(self, timeout: float | None = None) -> None:
        """Acknowledge all pending records."""
        check_limit(timeout)
        self._check_call("flush")
        self._outbox.acknowledge_all()

    def close(self, timeout: float | None = None) -> None:
        """Acknowledge all pending records and stop; with a timeout of 0 they fail. Twice is harmless.

        Raises:
            ValueError: the time is negative.
        """
        check_limit(timeout)
        with self._lock:
            if self._closed:
                return
            self._injected.maybe_raise("close")
            self._closed = True
        if timeout == 0 or self._outbox.in_callback():
            self._outbox.fail_all(
                ProducerClosedError("the producer was closed before the record was acknowledged")
            )
        else:
            self._outbox.acknowledge_all()
        self._plugins.close()

    def partitions_for(self, topic: str) -> tuple[MockPartitionInfo, ...]:
        """The partitions of a topic.

        Raises:
            KafkaTimeoutError: the topic does not exist.
        """
        ProducerRecord(topic)  # refuses what is no topic
        with self._lock:
            self._check_open_locked()
            self._injected.maybe_raise("partitions_for")
        return self._topics.partitions_for(topic)

    def client_instance_id(self, timeout: float) -> uuid.UUID:
        """An id of this producer's own; it is there at once."""
        check_limit(timeout, required=True)
        with self._lock:
            self._check_open_locked()
            self._injected.maybe_raise("client_instance_id")
        return self._instance_id

    def metrics(self) -> dict[str, dict[str, Any]]:
        """A copy of `mock_metrics`."""
        with self._lock:
            self._injected.maybe_raise("metrics")
        return copy.deepcopy(self.mock_metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "fenced" if self._transactions.fenced else "open"
        return f"<MockProducer: {state}, {counted(len(self._outbox), 'record')} pending>"

    # ------------------------------------------------------------------------------------------ transactions

    def init_transactions(self, transactional_id: str | None = None, *, timeout: None = None) -> None:
        """Get ready for transactions, once.

        Raises:
            IllegalStateError: it was done before, or there is no transactional id.
        """
        check_transactional_id(transactional_id, timeout)
        with self._lock:
            self._check_call_locked("init_transactions", lambda state: state.check_init(transactional_id))
            self._transactions.init(transactional_id)

    def begin_transaction(self) -> None:
        """Open a transaction.

        Raises:
            IllegalStateError: init_transactions() was not called, or a transaction is open.
            ProducerFencedError: the producer was fenced.
        """
        with self._lock:
            self._check_open_locked()
            self._transactions.check_begin()
            self._injected.maybe_raise("begin_transaction")
            self._transactions.begin()

    def send_offsets_to_transaction(
        self, offsets: PositionsLike, group: GroupLike, timeout: None = None
    ) -> None:
        """Let the transaction commit a consumer group's offsets.

        Args:
            offsets: the offset of the next record to read, by partition. Empty: nothing is done.
            group: the group; of one given with member and generation only the id is kept.
            timeout: refused.

        Raises:
            IllegalStateError: no transaction is open.
            ProducerFencedError: the producer was fenced.
            TypeError, ValueError: an argument is wrong.
        """
        check_no_timeout(timeout, "send_offsets_to_transaction")
        group_id = as_group(group).group_id
        checked = {place: position.offset for place, position in as_positions(offsets).items()}
        call = "send_offsets_to_transaction"
        with self._lock:
            self._check_call_locked(call, lambda state: state.check_open(f"{call}()"))
            if checked:
                self._transactions.add_offsets(checked, group_id)

    def commit_transaction(self, timeout: None = None, *, incomplete: bool = False) -> None:
        """Acknowledge what is pending and publish the transaction: its records become history.

        Args:
            timeout: refused.
            incomplete: also if a send in it was refused.

        Raises:
            TransactionAbortableError: a record of the transaction failed, or a send in it was refused.
            IllegalStateError: no transaction is open.
            ProducerFencedError: the producer was fenced.
        """
        check_no_timeout(timeout, "commit_transaction")
        check_bool(incomplete, "incomplete")
        with self._nothing_pending("commit_transaction", incomplete=incomplete) as transactions:
            self._history.extend(transactions.commit())

    def abort_transaction(self, timeout: None = None) -> None:
        """Acknowledge what is pending and drop the transaction: its records are forgotten.

        Raises:
            IllegalStateError: no transaction is open.
            ProducerFencedError: the producer was fenced.
        """
        check_no_timeout(timeout, "abort_transaction")
        with self._nothing_pending(
            "abort_transaction", may_have_failed=True, incomplete=True
        ) as transactions:
            transactions.abort()

    def detach_transaction(self, *, incomplete: bool = False) -> TransactionHandle:
        """Acknowledge what is pending and hand the open transaction over; `detached_records(handle)` is what it held.

        A mock has no cluster in which `complete_transaction` could end it. As with the real one, the producer must be
        initialized again afterwards.

        Args:
            incomplete: also if a send in it was refused.

        Raises:
            TransactionAbortableError: a record of the transaction failed, or a send in it was refused.
            IllegalStateError: no transaction is open.
            ProducerFencedError: the producer was fenced.
        """
        check_bool(incomplete, "incomplete")
        with self._nothing_pending("detach_transaction", incomplete=incomplete) as transactions:
            return transactions.detach()

    @contextmanager
    def transaction(self, *, incomplete: bool = False) -> Iterator[None]:
        """Open a transaction; commit it at the end of the block, or abort it when the block raises.

        Args:
            incomplete: commit also when a send in the block was refused, and the block caught that.
        """
        check_bool(incomplete, "incomplete")
        self.begin_transaction()
        try:
            yield
        except BaseException as error:
            self._abort_after(error)
            raise
        try:
            self.commit_transaction(incomplete=incomplete)
        except KafkaError as error:
            if error.requires_abort:
                self._abort_after(error)
            raise

    # ------------------------------------------------------------------------------------------ for the test to say

    def complete_next(self) -> bool:
        """Acknowledge the oldest pending record; False when there is none."""
        return self._outbox.acknowledge_next()

    def error_next(self, error: KafkaError) -> bool:
        """Let the oldest pending record fail; False when there is none.

        Inside a transaction the producer then refuses everything but abort_transaction().
        """
        if not isinstance(error, KafkaError):
            raise TypeError(f"a record fails with a KafkaError, not with {error!r}")
        return self._outbox.fail_next(error)

    def raise_on(self, call: str, error: BaseException | None, *, times: int | None = None) -> None:
        """Let a call raise an error instead of doing its work.

        Args:
            call: the method's name; "send" stands for send_record as well.
            error: what it raises; None: nothing any more.
            times: how often; None: always.
        """
        with self._lock:
            self._injected.set(call, error, times)

    def fence_producer(self) -> None:
        """Behave as if a newer producer had taken over the transactional id: all pending records fail, all calls too.

        Raises:
            IllegalStateError: init_transactions() was not called.
        """
        with self._lock:
            self._check_open_locked()
            self._transactions.fence()
        self._outbox.fail_all(ProducerFencedError())

    def clear(self) -> None:
        """Forget records, committed offsets and injected errors. Pending records fail; offsets count on."""
        self._outbox.fail_all(KafkaError("the record was dropped by MockProducer.clear()"))
        with self._lock:
            self._history.clear()
            self._injected.clear()
            self._transactions.clear()

    # ------------------------------------------------------------------------------------------ for the test to ask

    def history(self) -> list[ProducerRecord]:
        """The records accepted so far in order, as they were given; those of a transaction once it is committed.

        A record is in it from send() on, whatever becomes of it later.
        """
        with self._lock:
            return list(self._history)

    def uncommitted_records(self) -> list[ProducerRecord]:
        """The records of the open transaction."""
        with self._lock:
            return list(self._transactions.uncommitted)

    def detached_records(self, handle: TransactionHandle) -> list[ProducerRecord]:
        """The records of a transaction that was detached."""
        with self._lock:
            return list(self._transactions.detached.get(handle, ()))

    def uncommitted_offsets(self) -> GroupOffsets:
        """The consumer offsets in the open transaction: {group: {partition: offset}}."""
        with self._lock:
            return copy.deepcopy(self._transactions.uncommitted_offsets)

    def committed_offsets(self) -> list[GroupOffsets]:
        """The consumer offsets of each committed transaction that had any: [{group: {partition: offset}}]."""
        with self._lock:
            return copy.deepcopy(self._transactions.committed_offsets)

    @property
    def pending_count(self) -> int:
        """How many records have no outcome yet."""
        return len(self._outbox)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    @property
    def fenced(self) -> bool:
        """Whether the producer was fenced."""
        return self._transactions.fenced

    @property
    def transaction_in_flight(self) -> bool:
        """Whether a transaction is open."""
        return self._transactions.in_transaction

    @property
    def commit_count(self) -> int:
        """How many transactions were committed."""
        return self._transactions.commit_count

    @property
    def abort_count(self) -> int:
        """How many transactions were aborted."""
        return self._transactions.abort_count

    # ------------------------------------------------------------------------------------------ inside

    def _prepare(
        self, record: ProducerRecord, on_delivery: OnDelivery | None, as_bytes: bool = False
    ) -> PendingRecord:
        self._topics.check(record.topic, record.partition)
        headers = MutableHeaders(record.headers)
        for_key, for_value = self._plugins.key_serializer, self._plugins.value_serializer
        if as_bytes:
            for_key = for_value = BytesSerializer()
        key = serialize_part(for_key, "key", record.topic, headers, record.key)
        value = serialize_part(for_value, "value", record.topic, headers, record.value)
        headers.freeze()
        place = TopicPartition(record.topic, self._placement.choose(record, key, value))
        timestamp = self._clock.wall_ms() if record.timestamp_ms is None else record.timestamp_ms
        sizes = (-1 if part is None else len(part) for part in (key, value))
        return PendingRecord(MockDelivery(place), on_delivery, timestamp, *sizes)

    def _check_call(self, name: str, check: Callable[[MockTransactions], None] | None = None) -> None:
        """What a call that may block has to pass before it does anything."""
        with self._lock:
            self._check_call_locked(name, check)

    def _check_call_locked(self, name: str, check: Callable[[MockTransactions], None] | None = None) -> None:
        if self._outbox.in_callback():
            raise IllegalStateError(
                f"{name}() was called from a delivery callback: the real producer would wait for its own thread there"
            )
        self._check_open_locked()
        if check is not None:
            check(self._transactions)
        self._injected.maybe_raise(name)

    @contextmanager
    def _nothing_pending(
        self, name: str, *, may_have_failed: bool = False, incomplete: bool = False
    ) -> Iterator[MockTransactions]:
        """Acknowledge what is pending until nothing is, and hold the lock meanwhile over the open transaction."""

        def check(transactions: MockTransactions) -> None:
            transactions.check_open(f"{name}()", may_have_failed=may_have_failed)
            if not incomplete:
                transactions.refusals.check(name)

        self._check_call(name, check)
        while True:
            self._outbox.acknowledge_all()
            with self._lock:
                # Once more: a callback of a record just acknowledged may have fenced the producer, and another thread
                # may have sent a record since.
                check(self._transactions)
                if not len(self._outbox):
                    yield self._transactions
                    return

    def _check_open_locked(self) -> None:
        if self._closed:
            raise ProducerClosedError("the producer is closed")

    def _abort_after(self, error: BaseException) -> None:
        """Abort because of an error, which stays the one that is raised, unless it comes from a fence."""
        try:
            self.abort_transaction()
        except ProducerFencedError as fence:
            if isinstance(error, KafkaError) and not isinstance(error, ProducerFencedError):
                raise fence from error
            error.add_note(f"abort_transaction() failed as well: {fence}")
        except KafkaError as second:
            error.add_note(f"abort_transaction() failed as well: {second}")

    def _on_failure(self, error: KafkaError) -> None:
        with self._lock:
            self._transactions.record_failed(error)
