# SPDX-License-Identifier: Apache-2.0
"""The producer that blocks: what users import. Each public call checks its arguments and hands over to its part."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from penstock._arguments import check_bool, check_limit, check_no_timeout, check_transactional_id
from penstock._locks import forbid_reentry
from penstock._other_clients import BLOCKING, ONLY_WITH, names_of_other_clients
from penstock._refusals import noting_refusals
from penstock.config.config import ProducerConfig
from penstock.consumer_groups import as_group, as_positions
from penstock.producer import lifecycle
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.metadata.cluster import PartitionInfo
from penstock.producer.owner import check_may_wait, on_io_thread
from penstock.producer.send._path_cy import SendCall
from penstock.producer.send._send_cy import SendFace
from penstock.producer.send.bulk_delivery import BulkDelivery
from penstock.producer.steps import Steps, run_steps
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows
from penstock.records.python_rows import ManyRecords
from penstock.transaction_handle import TransactionHandle
from penstock.types import GroupLike, HeadersLike, PositionsLike

if TYPE_CHECKING:
    from penstock.config.keys import ProducerOptions
    from penstock.producer.assembly import ProducerParts

R = TypeVar("R")

_AFTER_ERROR_SECONDS = 10.0  # how long leaving `with` after an exception waits for records
_WORDING = lifecycle.Wording("Producer", "close()", "a with statement")


@names_of_other_clients(ONLY_WITH, whose="")
@names_of_other_clients(BLOCKING)
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

    _core: lifecycle.Core

    def __init__(
        self,
        config: Mapping[str, Any] | str | PathLike[str] | None = None,
        /,
        **options: Unpack[ProducerOptions],
    ) -> None:
        core = lifecycle.Core(ProducerConfig.from_user(config, options), _WORDING)
        self._parts = core.parts
        self._set_up_send(core)

    # ------------------------------------------------------------------------------------------ sending

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
        self._core.check_process()
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
        self._core.check_process()
        forbid_reentry("send_arrow()")
        names = ColumnNames.of_call(topic, on_error, key, value, headers, partition, timestamp)
        with ArrowSource(data) as source:
            rows = arrow_rows(source, names)
            steps = self._parts.columns.steps(topic, rows, skip=on_error == "skip")
            return self._run_sending(steps, "send_arrow()")

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """The partitions of a topic, asked from the cluster if need be; waits at most max.block.ms."""
        return self._run(self._core.partitions_for(topic), "partitions_for()")

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record accepted so far has its outcome. Lingering batches go out at once.

        Raises:
            KafkaTimeoutError: the time is up; the records go on. Its `records_left` is how many have no outcome.
            AuthenticationError: no broker accepts this client; the records are sent when the cause is fixed.
            ValueError: the time is negative.
        """
        check_limit(timeout)
        seconds = math.inf if timeout is None else timeout
        run_steps(self._core.flush(timeout), seconds, self._core.clock, self._before_wait("flush()"))

    # ------------------------------------------------------------------------------------- transactions

    def init_transactions(self, transactional_id: str | None = None, *, timeout: None = None) -> None:
        """Take over the transactional id: fence older producers that use it, and abort what they left open.

        Call it once before the first transaction, and after each `detach_transaction`.

        Args:
            transactional_id: another id than the configured one, from now on.
            timeout: refused, as by the other calls of transactions: max.block.ms is how long they wait.

        Raises:
            KafkaTimeoutError: no answer within max.block.ms; call it again.
            ProducerFencedError: another producer took over meanwhile.
        """
        check_transactional_id(transactional_id, timeout)
        self._run_call(self._core.init_transactions(transactional_id))

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
        self._core.transactions("begin_transaction").begin()

    def send_offsets_to_transaction(
        self,
        offsets: PositionsLike,
        group: GroupLike,
        timeout: None = None,
    ) -> None:
        """Make the positions of a consumer group part of the transaction.

        Both are taken as the consumers of confluent-kafka, kafka-python and aiokafka give them.

        Args:
            offsets: the next offset to be read, for each partition: a mapping, or confluent-kafka's list.
            group: the group's id or, better, with member and generation, so that a member that was replaced is refused:
                a ConsumerGroupMetadata, what confluent-kafka's `consumer_group_metadata()` or kafka-python's
                `group_metadata()` gives.
            timeout: refused.

        Raises:
            TypeError, ValueError: one of them is nothing of that.
        """
        check_no_timeout(timeout, "send_offsets_to_transaction")
        self._core.transactions("send_offsets_to_transaction", waits=True)
        self._run_call(self._core.send_offsets(as_positions(offsets), as_group(group)))

    def commit_transaction(self, timeout: None = None, *, incomplete: bool = False) -> None:
        """Send what is left, and commit.

        Args:
            timeout: refused.
            incomplete: commit although a `send` in this transaction was refused, whose record is then not part of it.

        Raises:
            TransactionAbortableError: a `send` in this transaction raised, and the program went on; or a record failed.
            KafkaTimeoutError: no answer within max.block.ms; call it again, nothing else.
            AuthenticationError: no broker accepts this client; fix the cause, then make the same call again.
            KafkaError: a record failed; abort the transaction.
            ProducerFencedError: another producer uses the transactional id; close this one.
        """
        check_no_timeout(timeout, "commit_transaction")
        check_bool(incomplete, "incomplete")
        self._run_call(self._core.commit(incomplete=incomplete))

    def abort_transaction(self, timeout: None = None) -> None:
        """Drop what was not sent, and abort."""
        check_no_timeout(timeout, "abort_transaction")
        self._run_call(self._core.abort())

    @contextmanager
    def transaction(self, *, incomplete: bool = False) -> Generator[None, None, None]:
        """Begin a transaction, and commit it at the end of the block.

        When the block raises, or a record was not delivered so that there is no commit, it is aborted and the error
        raised on. After KafkaTimeoutError or AuthenticationError of the commit it is not: call `commit_transaction`
        again.

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
            self._run_call(self._core.abort_after(error))
            raise

    def detach_transaction(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over, to be ended from anywhere with `complete_transaction`.

        All records are delivered first. The producer is uninitialized afterwards: `init_transactions` with another id
        goes on with the same memory and connections.

        Args:
            incomplete: as for `commit_transaction`.
        """
        check_bool(incomplete, "incomplete")
        return self._run_call(self._core.detach(incomplete=incomplete))

    # ------------------------------------------------------------------------------------------ closing

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was accepted, waiting at most `timeout` seconds, then fail the rest and stop. Twice is harmless.

        From a delivery callback it does not wait at all.

        Raises:
            ValueError: the time is negative.
        """
        check_limit(timeout)
        core: lifecycle.Core | None = getattr(self, "_core", None)
        if core is None or core.forked:
            return
        forbid_reentry("close()")
        deadline = None if timeout is None else core.clock.now() + timeout
        if not on_io_thread(core.owner):
            # Records that finalizers and signal handlers sent in the middle of other calls were accepted, too.
            self._parts.accumulator.deferred.all_appended().wait(timeout)
        core.begin_close()
        if on_io_thread(core.owner):
            self._parts.io_thread.force_close()
            core.end_close_on_io_thread()
            return
        if timeout != 0 and not core.ended.done:
            core.owner.warn_in_loop("close()")
        try:
            # Also when it was closed before, by another thread or a callback: every caller waits.
            core.ended.wait(None if deadline is None else max(0.0, deadline - core.clock.now()))
        finally:
            # Also after Ctrl-C: what has no outcome by now fails, and the thread ends.
            try:
                if not core.ended.done:
                    self._parts.io_thread.force_close()
                    core.ended.wait(lifecycle.FORCED_END_SECONDS)
            finally:
                core.end_close()
        if core.ended.done:
            core.thread.join(lifecycle.FORCED_END_SECONDS)
        else:
            core.warn_of_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else _AFTER_ERROR_SECONDS)

    # ------------------------------------------------------------------------------------------ watching

    def client_instance_id(self, timeout: float) -> uuid.UUID:
        """The id under which the cluster knows the metrics of this client that it asks for (enable.metrics.push).

        Raises:
            KafkaTimeoutError: no broker has given one in time.
            UnsupportedVersionError: the brokers collect no metrics of clients.
            IllegalStateError: enable.metrics.push is off.
            ProducerClosedError: the producer is closed, or was closed meanwhile.
            ValueError: the time is negative.
        """
        check_limit(timeout, required=True)
        steps = self._core.client_instance_id(timeout)
        return run_steps(steps, timeout, self._core.clock, self._before_wait("client_instance_id()"))

    def metrics(self) -> dict[str, dict[str, Any]]:
        """All metrics now: {group: {name: value}}; by topic and by node {group: {"orders": {name: value}}}."""
        return self._core.metrics()

    def __repr__(self) -> str:
        core: lifecycle.Core | None = getattr(self, "_core", None)
        return "<Producer that could not be made>" if core is None else repr(core)

    # ------------------------------------------------------------------------------------------ inside

    @noting_refusals
    def _finish(self, call: SendCall) -> Delivery:
        return self._run_sending(self._parts.send_path.steps(call), "send()")

    def _run_sending(self, steps: Steps[R], call: str) -> R:
        try:
            return self._run(steps, call)
        except Exception as error:
            self._core.note_send_error(error)
            raise

    def _run(self, steps: Steps[R], call: str) -> R:
        core = self._core
        return run_steps(steps, core.max_block, core.clock, self._before_wait(call), core.note_wait)

    def _run_call(self, steps: Steps[R]) -> R:
        return run_steps(
            steps, self._core.max_block, self._core.clock, self._before_wait("a transaction call")
        )

    def _before_wait(self, call: str) -> Callable[[], None]:
        """What refuses, or warns of, a wait on this thread."""
        owner = self._core.owner

        def check() -> None:
            check_may_wait(call, owner)
            owner.warn_in_loop(call)

        return check

    def _note_refused(self, error: BaseException) -> None:
        self._core.note_refused(error)


def parts_of(producer: Producer) -> ProducerParts:
    """What a producer is made of, for those who only look: its counters, its options."""
    return producer._core.parts  # noqa: SLF001 - its own module
