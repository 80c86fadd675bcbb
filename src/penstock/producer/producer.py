# SPDX-License-Identifier: Apache-2.0
"""The producer that blocks: what users import. Each public call checks its arguments and hands over to its part."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from penstock._arguments import check_bool, check_text, check_timeout
from penstock._locks import Latch, forbid_reentry, inside, new_lock
from penstock._refusals import noting_refusals
from penstock._ticket import Ticket, TicketKind
from penstock.config.config import ProducerConfig
from penstock.consumer_groups import as_group, as_positions
from penstock.errors import (
    BufferExhaustedError,
    ForkedProducerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
)
from penstock.producer import lifecycle
from penstock.producer.assembly import ProducerParts, assemble
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.io._sender_cy import Sender
from penstock.producer.io.client_metrics import add_nanoseconds
from penstock.producer.metadata.cluster import PartitionInfo
from penstock.producer.owner import check_may_wait, on_io_thread
from penstock.producer.send._send_cy import SendFace
from penstock.producer.send.bulk_delivery import BulkDelivery
from penstock.producer.steps import Steps, run_steps
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows
from penstock.records.python_rows import ManyRecords
from penstock.transaction_handle import TransactionHandle
from penstock.types import GroupLike, HeadersLike, OnDelivery, PositionsLike, ProducerRecord

if TYPE_CHECKING:
    from penstock.config.keys import ProducerOptions

log = logging.getLogger("penstock.producer")

R = TypeVar("R")

_AFTER_ERROR_SECONDS = 10.0  # how long leaving `with` after an exception waits for records
_EXIT_APPEND_SECONDS = 1.0  # what was put aside is appended at once, unless there is no memory for it
_FORCED_END_SECONDS = 5.0  # a forced close is quick, unless a user's callback holds the I/O thread


class Producer(SendFace):
    """Sends records to Kafka.

    Safe to share between threads; make one per process and keep it. `send` returns at once with a Delivery; records are
    gathered into batches and sent by an I/O thread.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            producer.send("orders", b"value", key=b"k1").result(timeout=10)

    Args:
        config: options by their Java names ("linger.ms"), as a mapping or the path of a properties file.
        **options: the same names in snake case (linger_ms).

    Raises:
        ConfigError: an option is unknown, malformed or contradicts another; nothing was started.
        BootstrapError: none of the bootstrap servers' names can be resolved.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | PathLike[str] | None = None,
        /,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._closed = True  # until all is built: a failed constructor leaves nothing to close
        self._forked = False
        self._config = ProducerConfig.from_user(config, options)
        try:
            self._start(assemble(self._config))
        except BaseException:
            self._config.close_plugins()
            raise

    def _start(self, parts: ProducerParts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._set_up_send(parts.fast_path, notes_refusals=parts.transactions is not None)
        self._owner = parts.accumulator.owner
        self._max_block = parts.config.max_block_ms / 1000
        self._lock: Any = new_lock()  # guards _closed against two threads that close at once
        # Set when the I/O thread has done its work. Thread.join() will not do: after Ctrl-C in it, Python 3.11 takes
        # a running thread for ended.
        self._ended = Latch()
        self._thread = threading.Thread(
            target=_work,
            args=(parts.sender, self._ended),
            name=f"penstock-producer-{parts.config.client_id}",
            daemon=True,
        )
        try:
            self._thread.start()
        except BaseException:
            parts.client.close()  # there is no thread that would
            raise
        self._closed = False
        lifecycle.register(self)

    # ------------------------------------------------------------------------------------------ sending

    @noting_refusals
    def send_record(self, record: ProducerRecord, on_delivery: OnDelivery | None = None) -> Delivery:
        """Send a record that was made as a value; see `send`."""
        if not isinstance(record, ProducerRecord):
            raise TypeError(f"record must be a ProducerRecord, not {type(record).__name__}")
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        self._check_process()
        if inside():
            # In the middle of another call of this thread, which may hold any lock.
            later = self._parts.send_path.later(record, on_delivery)
            return self._parts.accumulator.deferred.put_aside(later, on_delivery, self._max_block)
        return self._run_sending(self._parts.send_path.steps(record, on_delivery), "send()")

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
    ) -> BulkDelivery:
        """Send many records; one BulkDelivery for all of them.

        The same records in the same order per partition as by as many calls of `send`. All are looked at before the
        first is accepted. A wait for memory in which not a single record is accepted ends after max.block.ms.

        Args:
            topic: where they go.
            values: a value for each; None is a tombstone. Serializers apply, as to keys.
            keys: a key for each.
            headers: for each pairs (name, bytes or None), a mapping, or None.
            partition: one for all, or one for each.
            timestamps_ms: one for each.

        Raises:
            BadRowsError: records are too large, or for a partition that does not exist; none was sent.
            SerializationError: a key or value could not be turned into bytes; none was sent.
            BufferExhaustedError: no memory became free in time; its `bulk_delivery` has what was accepted before.
            KafkaError: otherwise as `send`.
            TypeError, ValueError: an argument is wrong.
        """
        self._check_process()
        forbid_reentry("send_many()")
        many = ManyRecords.of(topic, values, keys, headers, partition, timestamps_ms)
        return self._run_sending(self._parts.columns.many_steps(many), "send_many()")

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
    ) -> BulkDelivery:
        """Send the rows of an Arrow table; one BulkDelivery for all of them.

        The data are read where they lie, and no Python object is made for a row. Keys and values are the bytes of
        their columns (of strings, UTF-8): serializers do not apply. The data are referred to until the call returns.

        The same records in the same order per partition as by a `send` for each row. A wait for memory in which not a
        single row is accepted ends after max.block.ms.

        Args:
            topic: where they go; None: the column `topic` says it for each row.
            data: anything with `__arrow_c_stream__` or `__arrow_c_array__`: a table of pyarrow, Polars, DuckDB,
                pandas and others.
            key: the name of the column with the keys; where there is none of that name, the records have none. None:
                they have none in any case. So for the others, but that the values must be there.
            value: likewise, the values.
            headers: likewise, lists of structs with the fields key and value, or maps.
            partition: likewise, partitions; where it is null, the key or the producer chooses.
            timestamp: likewise, timestamps of any unit; where it is null, the time is now.
            on_error: what a row that cannot be sent means. "fail": nothing is sent, and all rows are looked at before
                the first is accepted. "skip": the others are sent, and the BulkDelivery's `errors` has it.

        Raises:
            BadRowsError: rows cannot be sent, and none was: too large, no topic, a partition that does not exist.
            BufferExhaustedError: no memory became free in time; its `bulk_delivery` has what was accepted before.
            KafkaError: otherwise as `send`.
            OSError: the source of the data failed.
            TypeError, ValueError: an argument is wrong, or a column is missing or has a type that it cannot have.
        """
        self._check_process()
        forbid_reentry("send_arrow()")
        names = ColumnNames.of_call(topic, on_error, key, value, headers, partition, timestamp)
        with ArrowSource(data) as source:
            rows = arrow_rows(source, names)
            steps = self._parts.columns.steps(topic, rows, skip=on_error == "skip")
            return self._run_sending(steps, "send_arrow()")

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """The partitions of a topic, asked from the cluster if need be; waits at most max.block.ms."""
        self._check_open()
        ProducerRecord(topic)  # refuses what is no topic
        forbid_reentry("partitions_for()")
        snapshot = self._run(self._parts.send_path.await_topic(topic, None), "partitions_for()")
        return snapshot.topics[topic].partitions

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record accepted so far has its outcome. Lingering batches go out at once.

        Raises:
            KafkaTimeoutError: the time is up; the records go on.
        """
        check_timeout(timeout)
        self._check_open()
        check_may_wait("flush()", self._owner)
        started = self._clock.now()
        ticket = self._parts.accumulator.flush()
        try:
            if not ticket.wait(timeout):
                left = self._parts.accumulator.incomplete_records()
                raise KafkaTimeoutError(
                    f"flush() waited {timeout} s and {left} records have no outcome yet; they are still on their way"
                )
        finally:
            ticket.give_up()
            add_nanoseconds(self._parts.client_metrics.flush_ns, self._clock.now() - started)

    # ------------------------------------------------------------------------------------- transactions

    # Each call that waits starts an operation and waits for its Ticket, at most max.block.ms. When the time is up the
    # operation goes on, and only the same call may be made again: it then waits for the same outcome.

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Take over the transactional id: fence older producers that use it, and abort what they left open.

        Call it once before the first transaction, and after each `detach_transaction`.

        Args:
            transactional_id: another id than the configured one, from now on.

        Raises:
            KafkaTimeoutError: no answer within max.block.ms; call it again.
            ProducerFencedError: another producer took over meanwhile.
        """
        if transactional_id is not None:
            check_text(transactional_id, "transactional_id")
        manager = self._transactions("init_transactions", waits=True)
        self._finish(manager, manager.initialize(transactional_id), "init_transactions")

    @property
    def initialization_in_doubt(self) -> bool:
        """Whether an answer to the last `init_transactions` was lost on the way, and the request made again.

        The lost request may still reach the coordinator, and would then abort what this producer has open. Within a
        transaction that it ends itself the next call fails, and nothing is lost; a transaction that is detached should
        not be begun with such an id.
        """
        manager = self._parts.transactions
        return manager is not None and manager.initialization_in_doubt

    def begin_transaction(self) -> None:
        """Begin a transaction: the records sent from now on become visible together, or not at all."""
        self._transactions("begin_transaction").begin()

    def send_offsets_to_transaction(
        self,
        offsets: PositionsLike,
        group: GroupLike,
    ) -> None:
        """Make the positions of a consumer group part of the transaction.

        Both are taken as the consumers of confluent-kafka, kafka-python and aiokafka give them.

        Args:
            offsets: the next offset to be read, for each partition: a mapping, or confluent-kafka's list.
            group: the group's id or, better, with member and generation, so that a member that was replaced is refused:
                a ConsumerGroupMetadata, what confluent-kafka's `consumer_group_metadata()` or kafka-python's
                `group_metadata()` gives.

        Raises:
            TypeError, ValueError: one of them is nothing of that.
        """
        manager = self._transactions("send_offsets_to_transaction", waits=True)
        member = as_group(group)
        positions = as_positions(offsets)
        if not positions:
            return
        self._finish(manager, manager.send_offsets(positions, member), "send_offsets_to_transaction")

    def commit_transaction(self, *, incomplete: bool = False) -> None:
        """Send what is left, and commit.

        Args:
            incomplete: commit although a `send` in this transaction was refused, whose record is then not part of it.

        Raises:
            TransactionAbortableError: a `send` in this transaction raised, and the program went on; or a record failed.
            KafkaTimeoutError: no answer within max.block.ms; call it again, nothing else.
            KafkaError: a record failed; abort the transaction.
            ProducerFencedError: another producer uses the transactional id; close this one.
        """
        check_bool(incomplete, "incomplete")
        manager = self._transactions("commit_transaction", waits=True)
        if not self._parts.accumulator.deferred.all_appended().wait(self._max_block):
            raise KafkaTimeoutError(
                "commit_transaction() waited for max.block.ms, and a record that a finalizer or a signal handler sent "
                "has not been appended yet; call it again, or abort_transaction()"
            )
        self._finish(manager, manager.commit(incomplete=incomplete), "commit_transaction")

    def abort_transaction(self) -> None:
        """Drop what was not sent, and abort."""
        manager = self._transactions("abort_transaction", waits=True)
        self._finish(manager, manager.abort(), "abort_transaction")

    @contextmanager
    def transaction(self, *, incomplete: bool = False) -> Generator[None, None, None]:
        """Begin a transaction, and commit it at the end of the block.

        When the block raises, or a record was not delivered so that there is no commit, it is aborted and the error
        raised on. A commit that had no answer in time is not: call `commit_transaction` again.

        Args:
            incomplete: commit also when a `send` in the block was refused, and the block caught that.

        Raises:
            ProducerFencedError: another producer uses the transactional id; also where a record failed because of it
                and the abort found out why.
        """
        check_bool(incomplete, "incomplete")
        self.begin_transaction()
        try:
            yield
            self.commit_transaction(incomplete=incomplete)
        except BaseException as error:
            self._abort_after(error)
            raise

    def detach_transaction(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over, to be ended from anywhere with `complete_transaction`.

        All records are delivered first. The producer is uninitialized afterwards: `init_transactions` with another id
        goes on with the same memory and connections.

        Args:
            incomplete: as for `commit_transaction`.
        """
        check_bool(incomplete, "incomplete")
        manager = self._transactions("detach_transaction")
        self.flush(self._max_block)
        return manager.detach(incomplete=incomplete)

    # ------------------------------------------------------------------------------------------ closing

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was accepted, waiting at most `timeout` seconds, then fail the rest and stop. Twice is harmless.

        From a delivery callback it does not wait at all.

        Raises:
            ValueError: the time is negative.
        """
        check_timeout(timeout)
        if timeout is not None and timeout < 0:
            raise ValueError(f"the time to close must not be negative: {timeout}")
        if self._forked or getattr(self, "_lock", None) is None:
            return
        forbid_reentry("close()")
        deadline = None if timeout is None else self._clock.now() + timeout
        if not on_io_thread(self._owner):
            # Records that finalizers and signal handlers sent in the middle of other calls were accepted, too.
            self._parts.accumulator.deferred.all_appended().wait(timeout)
        is_first = self._begin_close()
        if on_io_thread(self._owner):
            self._parts.sender.force_close()
            if is_first:
                self._end_close()
            return
        try:
            # Also when it was closed before, by another thread or a callback: whoever returns has waited.
            self._ended.wait(None if deadline is None else max(0.0, deadline - self._clock.now()))
        finally:
            # Also after Ctrl-C: what has no outcome by now fails, and the thread ends.
            try:
                if not self._ended.is_set():
                    self._parts.sender.force_close()
                    self._ended.wait(_FORCED_END_SECONDS)
            finally:
                if is_first:
                    self._end_close()
        if self._ended.is_set():
            self._thread.join(_FORCED_END_SECONDS)
        else:
            # A delivery callback, or whatever else of the user's runs there.
            held = lifecycle.held_at(self._thread)
            log.warning("the I/O thread of %r did not end: it is still in %s", self, held or "a call")

    def _begin_close(self) -> bool:
        """Stop accepting; False when the producer was closed before."""
        with self._lock:
            is_first = not self._closed
            self._closed = True
        # Done by every call, since Ctrl-C may have interrupted the first one anywhere; twice is harmless.
        self._parts.begin_close()
        return is_first

    def _end_close(self) -> None:
        lifecycle.unregister(self)
        self._parts.config.close_plugins()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else _AFTER_ERROR_SECONDS)

    def __del__(self) -> None:
        # Forgotten without close(): let the I/O thread finish by itself. At exit this has been done before.
        # No lock may be taken here: this can run in the middle of anything, on a thread that holds that very lock.
        if not getattr(self, "_forked", True) and not getattr(self, "_closed", True):
            accumulator, name = self._parts.accumulator, repr(self)
            left = accumulator.incomplete_records()
            self._closed = True
            self._parts.sender.initiate_close()
            lifecycle.adopt(self._thread, accumulator.incomplete_records)
            warnings.warn(
                f"{name} was forgotten without close(): {left} records have no outcome yet. They are still sent, but "
                "nobody waits for them. Call close(), or use the producer in a with statement.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def _after_fork_in_child(self) -> None:
        """Called in the child of a fork, which has a copy of the producer but not its thread."""
        self._forked = True
        self._parts.fast_path.enabled = False

    def _begin_exit(self) -> None:
        """Called when the program ends without close(): accept nothing more, and let the I/O thread finish."""
        if not self._forked:
            self._parts.accumulator.deferred.all_appended().wait(_EXIT_APPEND_SECONDS)
            self._begin_close()

    def _end_exit(self, seconds: float) -> None:
        """Wait that long for the I/O thread, then give the rest up, with a warning."""
        if self._forked:
            return
        if not self._ended.wait(seconds):
            left = self._parts.accumulator.incomplete_records()
            log.warning(
                "%r was not closed before the program ended, and %d records were given up. Call close(), or use the "
                "producer in a with statement.",
                self, left,
            )  # fmt: skip
            self._parts.sender.losses_told = True
        self.close(0)
        self._end_close()

    # ------------------------------------------------------------------------------------------ watching

    def metrics(self) -> dict[str, dict[str, Any]]:
        """All metrics now: {group: {name: value}}; by topic and by node {group: {"orders": {name: value}}}."""
        self._check_process()
        now = self._clock.now()
        self._parts.client_metrics.catch_up(now)
        return self._parts.registry.snapshot(now)

    def __repr__(self) -> str:
        state = "forked" if self._forked else "closed" if self._closed else "open"
        return (
            f"<Producer {self._config.client_id!r} for {','.join(self._config.bootstrap_servers)}: {state}>"
        )

    # ------------------------------------------------------------------------------------------ inside

    def _check_process(self) -> None:
        if self._forked:
            raise ForkedProducerError(
                "this producer was made before a fork and cannot be used in the child process: its connections and its "
                "I/O thread belong to the parent. Make a new producer in the child."
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ProducerClosedError("the producer is closed")

    def _run_sending(self, steps: Steps[R], call: str) -> R:
        try:
            return self._run(steps, call)
        except Exception as error:
            self._note_send_error(error)
            raise

    def _run(self, steps: Steps[R], call: str) -> R:
        return run_steps(
            steps, self._max_block, self._clock, lambda: check_may_wait(call, self._owner), self._note_wait
        )

    def _note_wait(self, ticket: Ticket[Any], seconds: float) -> None:
        metrics = self._parts.client_metrics
        is_metadata = ticket.kind is TicketKind.METADATA
        add_nanoseconds(metrics.metadata_wait_ns if is_metadata else metrics.buffer_wait_ns, seconds)

    def _note_refused(self, error: BaseException) -> None:
        transactions = self._parts.transactions
        if transactions is not None and not self._forked:  # whose lock may never be free in a forked child
            transactions.note_refused(error)

    def _note_send_error(self, error: Exception) -> None:
        now = self._clock.now()
        if isinstance(error, BufferExhaustedError):
            self._parts.client_metrics.buffer_exhausted.record(1, now)
        if isinstance(error, KafkaError):
            self._parts.sender_metrics.send_errors.record(1, now)

    def _transactions(self, call: str, *, waits: bool = False) -> TransactionManager:
        """The manager; `waits`: the call blocks, so that the I/O thread must not make it, nor begin it."""
        self._check_open()
        if waits:
            check_may_wait(f"{call}()", self._owner)
        forbid_reentry(f"{call}()")
        manager = self._parts.transactions
        if manager is None:
            raise IllegalStateError(f"{call}() needs a transactional.id in the producer's configuration")
        return manager

    def _no_answer(self, call: str) -> KafkaTimeoutError:
        """The error of a call whose time is up, with what is known to stand in the way."""
        cause = self._parts.metadata.explain_timeout("", None, 0).__cause__
        why = f" The last trouble: {cause}." if cause is not None else ""
        error = KafkaTimeoutError(
            f"{call}() had no answer within max.block.ms.{why} It goes on, and calling {call}() again waits for it"
        )
        error.__cause__ = cause
        return error

    def _finish(self, manager: TransactionManager, ticket: Ticket[None], call: str) -> None:
        started = self._parts.clock.now()
        ended = ticket.wait(self._max_block)
        add_nanoseconds(self._parts.client_metrics.transaction_ns[call], self._parts.clock.now() - started)
        if not ended:
            raise self._no_answer(call)
        manager.fetched(ticket)
        return ticket.result

    def _abort_after(self, error: BaseException) -> None:
        """Abort what is open; where that fails, too, the first error is the one to raise, with a note.

        Raises:
            ProducerFencedError: that is why a record or call has failed, which said no more than that it did.
        """
        manager = self._parts.transactions
        if manager is None:
            return
        failure: KafkaError | None = None
        if manager.is_open:
            try:
                self.abort_transaction()
            except KafkaError as caught:
                failure = caught
        fence = manager.fence()
        if fence is not None and isinstance(error, KafkaError) and not isinstance(error, ProducerFencedError):
            raise fence from error
        if failure is not None:
            error.add_note(f"the transaction could not be aborted either: {failure}")


def _work(sender: Sender, ended: Latch) -> None:
    """The I/O thread. It must not hold the producer: a forgotten one could never be collected."""
    try:
        sender.run()
    finally:
        ended.set()
