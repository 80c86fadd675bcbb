# SPDX-License-Identifier: Apache-2.0
"""The producer for event loops, which users import. Each call checks its arguments and awaits the Core's steps."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from penstock._arguments import (
    check_bool,
    check_limit,
    check_no_timeout,
    check_on_delivery,
    check_transactional_id,
)
from penstock._locks import forbid_reentry
from penstock._loops import running_loop
from penstock._other_clients import ASYNC, ONLY_ASYNC_WITH, names_of_other_clients
from penstock.aio.arrow import TableRows
from penstock.aio.callbacks import LoopCallbacks
from penstock.aio.driving import Shield, drive
from penstock.config.config import ProducerConfig
from penstock.consumer_groups import as_group, as_positions
from penstock.errors import BufferExhaustedError, KafkaTimeoutError
from penstock.producer import lifecycle
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.metadata.cluster import PartitionInfo
from penstock.producer.send._path_cy import SendCall
from penstock.producer.send._send_cy import TrySendFace
from penstock.producer.send.bulk_delivery import BulkDelivery
from penstock.producer.steps import Steps, run_steps
from penstock.records.arrow_rows import ColumnNames
from penstock.records.python_rows import ManyRecords
from penstock.transaction_handle import TransactionHandle
from penstock.types import (
    GroupLike,
    HeadersLike,
    OnDelivery,
    PositionsLike,
    ProducerRecord,
    RecordMetadata,
)

if TYPE_CHECKING:
    from penstock.config.keys import ProducerOptions

R = TypeVar("R")

_AFTER_ERROR_SECONDS = 10.0  # how long leaving `async with` after an exception waits for records
_ASKED_FOR = (
    "try_send() does not wait for the metadata of a topic, which are asked for now: call it again later, or use "
    "`await send()`, which waits for them."
)
_WORDING = lifecycle.Wording("AsyncProducer", "aclose()", "an async with statement")


@names_of_other_clients(ONLY_ASYNC_WITH, whose="")
@names_of_other_clients(ASYNC)
class AsyncProducer(TrySendFace):
    """Sends records to Kafka from an event loop: of asyncio, of uvloop, or of trio.

    It is the whole `Producer` with calls that are awaited. Records are gathered and sent by an I/O thread, so that a
    loop that is busy delays only the outcomes. It belongs to no loop: it may be made before one runs, and used from
    several loops and threads.

        async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
            delivery = await producer.send("orders", b"value", key=b"k1")    # accepted
            metadata = await delivery                                        # acknowledged

    A call that is cancelled has given back what it held. A `send` that is cancelled was not accepted; a record that was
    accepted is sent, also if nobody waits for it any more.

    Args:
        config: options by their Java names ("linger.ms"), as a mapping or the path of a properties file.
        on_delivery_in: where `on_delivery` is called: in the loop that has sent the record, or on the I/O thread.
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
        *,
        on_delivery_in: Literal["loop", "io_thread"] = "loop",
        **options: Unpack[ProducerOptions],
    ) -> None:
        if on_delivery_in not in ("loop", "io_thread"):
            raise ValueError(f"on_delivery_in must be 'loop' or 'io_thread', not {on_delivery_in!r}")
        core = lifecycle.Core(ProducerConfig.from_user(config, options), _WORDING)
        self._parts = core.parts
        self._callbacks = (
            LoopCallbacks(core.owner, core.parts.accumulator.unseen) if on_delivery_in == "loop" else None
        )
        self._checked: OnDelivery | None = None  # the last callback that was found good
        self._set_up_send(core, wraps_callbacks=True)

    # ------------------------------------------------------------------------------------------ sending

    async def send(  # type: ignore[override]  # noqa: PLR0913 - two of them are refused
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
    ) -> Delivery:
        """Send a record; its Delivery, which can be awaited for what became of it.

        Waits at most max.block.ms, for metadata and for memory together, in the order in which tasks and threads have
        come; where it need not wait, no other task runs in between. If it is cancelled, the record was not accepted.

        Args:
            topic: where it goes.
            value: its value; None is a tombstone.
            key: its key; records with the same key go to the same partition.
            headers: pairs (name, bytes or None), or a mapping.
            partition: the partition, where the key and the partitioner shall not choose it.
            timestamp_ms: milliseconds since the epoch; now, by default.
            on_delivery: called with (metadata, error) when the outcome is known: see `on_delivery_in`.
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
        begun = self._begin(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, callback, timestamp
        )
        return begun if isinstance(begun, Delivery) else await self._drive_send(begun)

    async def send_and_wait(  # noqa: PLR0913 - two of them are refused
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
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement; where it is. See `send`.

        If it is cancelled, the record may have been accepted; it is sent then.

        Raises:
            KafkaError: the record was refused as by `send`, or not acknowledged, and why.
        """
        begun = self._begin(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, callback, timestamp
        )
        return await (begun if isinstance(begun, Delivery) else await self._drive_send(begun))

    async def send_record(  # type: ignore[override]
        self, record: ProducerRecord, on_delivery: OnDelivery | None = None
    ) -> Delivery:
        """Send a record that was made as a value; see `send`."""
        begun = self._begin_record(record, on_delivery)
        return begun if isinstance(begun, Delivery) else await self._drive_send(begun)

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[HeadersLike | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
    ) -> BulkDelivery:
        """Send many records; one BulkDelivery for all of them, which can be awaited. See Producer.send_many.

        If it is cancelled, the CancelledError has the BulkDelivery of what was accepted before, as `bulk_delivery`.
        """
        try:
            self._core.check_process()
            forbid_reentry("send_many()")
            many = ManyRecords.of(topic, values, keys, headers, partition, timestamps_ms)
        except BaseException as error:
            self._core.note_refused(error)
            raise
        return await self._drive_sending(self._parts.columns.many_steps(many))

    async def send_arrow(
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
        """Send the rows of an Arrow table; one BulkDelivery for all of them. See Producer.send_arrow.

        Args:
            data: as for Producer.send_arrow; or an asynchronous iterable of such tables. With `on_error="skip"` each is
                sent before the next is asked for; with "fail" all are gathered first, because all rows are looked at
                before the first is accepted.
        """
        try:
            self._core.check_process()
            forbid_reentry("send_arrow()")
            names = ColumnNames.of_call(topic, on_error, key, value, headers, partition, timestamp)
        except BaseException as error:
            self._core.note_refused(error)
            raise
        if on_error == "skip" and isinstance(data, AsyncIterable):
            return await self._send_each(topic, data, names)
        tables = [table async for table in data] if isinstance(data, AsyncIterable) else [data]
        with TableRows(tables, names) as rows:
            return await self._drive_sending(self._parts.columns.steps(topic, rows, skip=on_error == "skip"))

    async def _send_each(
        self, topic: str | None, tables: AsyncIterable[Any], names: ColumnNames
    ) -> BulkDelivery:
        promise = self._parts.columns.promise(skip=True)
        first = 0
        try:
            async for table in tables:
                with TableRows([table], names) as rows:
                    steps = self._parts.columns.steps(
                        topic, rows, skip=True, promise=promise, first_row=first
                    )
                    await self._drive_sending(steps)
                    first += rows.count
        except BaseException as error:
            with suppress(AttributeError):  # from a class of somebody else's whose objects cannot be changed
                error.bulk_delivery = promise.delivery  # type: ignore[attr-defined]
            raise
        return promise.delivery

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """The partitions of a topic, asked from the cluster if need be; waits at most max.block.ms."""
        core = self._core
        return await drive(core.partitions_for(topic), core.max_block, core.clock, core.note_wait)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as Producer.flush; the records go on
        """Wait until every record accepted so far has its outcome. Lingering batches go out at once.

        Raises:
            KafkaTimeoutError: the time is up; the records go on. Its `records_left` is how many have no outcome.
            AuthenticationError: no broker accepts this client; the records are sent when the cause is fixed.
            ValueError: the time is negative.
        """
        check_limit(timeout)
        seconds = math.inf if timeout is None else timeout
        await drive(self._core.flush(timeout), seconds, self._core.clock)

    # ------------------------------------------------------------------------------------- transactions

    async def init_transactions(self, transactional_id: str | None = None, *, timeout: None = None) -> None:  # noqa: ASYNC109 - refused
        """Take over the transactional id; see Producer.init_transactions."""
        check_transactional_id(transactional_id, timeout)
        await self._drive_call(self._core.init_transactions(transactional_id))

    @property
    def initialization_in_doubt(self) -> bool:
        """Whether an answer to the last `init_transactions` was lost; see Producer.initialization_in_doubt."""
        manager = self._parts.transactions
        return manager is not None and manager.initialization_in_doubt

    async def begin_transaction(self) -> None:
        """Begin a transaction: the records sent from now on become visible together, or not at all."""
        self._core.transactions("begin_transaction").begin()

    async def send_offsets_to_transaction(
        self,
        offsets: PositionsLike,
        group: GroupLike,
        timeout: None = None,  # noqa: ASYNC109 - refused
    ) -> None:
        """Make the positions of a consumer group part of the transaction; see Producer.send_offsets_to_transaction."""
        check_no_timeout(timeout, "send_offsets_to_transaction")
        self._core.transactions("send_offsets_to_transaction", waits=True)
        await self._drive_call(self._core.send_offsets(as_positions(offsets), as_group(group)))

    async def commit_transaction(self, timeout: None = None, *, incomplete: bool = False) -> None:  # noqa: ASYNC109 - refused
        """Send what is left, and commit; see Producer.commit_transaction.

        A cancellation is raised when the outcome is known, or max.block.ms is over. Calling it again tells the outcome.
        """
        check_no_timeout(timeout, "commit_transaction")
        check_bool(incomplete, "incomplete")
        await self._drive_call(self._core.commit(incomplete=incomplete), Shield(in_steps=True))

    async def abort_transaction(self, timeout: None = None) -> None:  # noqa: ASYNC109 - refused
        """Drop what was not sent, and abort. A cancellation is raised as by `commit_transaction`."""
        check_no_timeout(timeout, "abort_transaction")
        await self._drive_call(self._core.abort(), Shield(in_steps=True))

    @asynccontextmanager
    async def transaction(self, *, incomplete: bool = False) -> AsyncGenerator[None, None]:
        """Begin a transaction, and commit it at the end of the block; see Producer.transaction.

        When the block raises, or is cancelled, the transaction is aborted before that is raised on.
        """
        check_bool(incomplete, "incomplete")
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction(incomplete=incomplete)
        except BaseException as error:
            shield = Shield(in_steps=False)
            try:
                await self._drive_call(self._core.abort_after(error), shield)
            except BaseException as failure:
                if shield.cancelled is not None:
                    raise shield.cancelled from failure
                raise
            if shield.cancelled is not None and isinstance(error, Exception):
                raise shield.cancelled from error
            raise

    async def detach_transaction(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over, to be ended from anywhere; see Producer.detach_transaction."""
        check_bool(incomplete, "incomplete")
        return await self._drive_call(self._core.detach(incomplete=incomplete))

    # ------------------------------------------------------------------------------------------ closing

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - what is left then fails
        """Deliver what was accepted, waiting at most `timeout` seconds, then fail the rest and stop. Twice is harmless.

        If it is cancelled, it does not wait any longer: what has no outcome fails, and the I/O thread ends.

        Raises:
            ValueError: the time is negative.
        """
        check_limit(timeout)
        core: lifecycle.Core | None = getattr(self, "_core", None)
        if core is None or core.forked:
            return
        forbid_reentry("aclose()")
        loop = running_loop()
        deadline = math.inf if timeout is None else core.clock.now() + timeout
        try:
            # Records that finalizers and signal handlers sent in the middle of other calls were accepted, too.
            appended = core.parts.accumulator.deferred.all_appended()
            await loop.wait_for(appended, deadline - core.clock.now())
            core.begin_close()
            await loop.wait_for(core.ended, deadline - core.clock.now())
        finally:
            try:
                core.begin_close()
                if not core.ended.done:
                    core.parts.io_thread.force_close()
                    with loop.shield():
                        await loop.wait_for(core.ended, lifecycle.FORCED_END_SECONDS)
            finally:
                core.end_close()
        if core.ended.done:
            core.thread.join(lifecycle.FORCED_END_SECONDS)  # it has nothing left to do
        else:
            core.warn_of_thread()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            with running_loop().shield():
                await self.aclose(_AFTER_ERROR_SECONDS)

    # ------------------------------------------------------------------------------------------ watching

    async def client_instance_id(self, timeout: float) -> uuid.UUID:  # noqa: ASYNC109 - as Producer.client_instance_id
        """The id under which the cluster knows this client's metrics; see Producer.client_instance_id."""
        check_limit(timeout, required=True)
        return await drive(self._core.client_instance_id(timeout), timeout, self._core.clock)

    def metrics(self) -> dict[str, dict[str, Any]]:
        """All metrics now: {group: {name: value}}; by topic and by node {group: {"orders": {name: value}}}."""
        return self._core.metrics()

    def __repr__(self) -> str:
        core: lifecycle.Core | None = getattr(self, "_core", None)
        return "<AsyncProducer that could not be made>" if core is None else repr(core)

    # ------------------------------------------------------------------------------------------ inside

    def _finish(self, call: SendCall) -> Delivery:
        """What `try_send` has still to do: it goes on where no wait is needed, and raises where one would be."""
        try:
            return run_steps(self._parts.send_path.steps(call), 0.0, self._core.clock)
        except Exception as error:
            if isinstance(error, BufferExhaustedError):
                error.add_note("try_send() does not wait; send() does")
            elif (
                isinstance(error, KafkaTimeoutError)
                and call.topic not in self._parts.metadata.snapshot.topics
            ):
                error.args = (f"{error} {_ASKED_FOR}",)
            self._note_failure(error)
            raise

    def _callback(self, on_delivery: OnDelivery) -> OnDelivery:
        if on_delivery is not self._checked:
            check_on_delivery(on_delivery)
            self._checked = on_delivery
        return on_delivery if self._callbacks is None else self._callbacks.of(on_delivery)

    async def _drive_send(self, call: SendCall) -> Delivery:
        return await self._drive_sending(self._parts.send_path.steps(call))

    async def _drive_sending(self, steps: Steps[R]) -> R:
        core = self._core
        try:
            return await drive(steps, core.max_block, core.clock, core.note_wait)
        except BaseException as error:
            self._note_failure(error)
            raise

    async def _drive_call(self, steps: Steps[R], shield: Shield | None = None) -> R:
        return await drive(steps, self._core.max_block, self._core.clock, shield=shield)

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._core.note_send_error(error)
        self._core.note_refused(error)
