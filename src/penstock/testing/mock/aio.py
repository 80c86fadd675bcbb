# SPDX-License-Identifier: Apache-2.0
"""An AsyncProducer for unit tests: the calls of AsyncProducer, and the mind of a MockProducer.

    producer = MockAsyncProducer()
    await place_order(producer, "A-1")                             # the code to be tested
    assert producer.history() == [ProducerRecord("orders", b"A-1")]

It works in every event loop, one after the other too. `on_delivery` is called in the loop that has sent the record.
"""

from __future__ import annotations

import contextvars
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from penstock._arguments import check_bool, check_on_delivery
from penstock._events import ON_DELIVERY_RAISED
from penstock._loops import running_loop
from penstock._other_clients import ASYNC, ONLY_ASYNC_WITH, names_of_other_clients
from penstock._refusals import noting_refusals
from penstock._time import Clock
from penstock.errors import KafkaError
from penstock.testing.mock.delivery import (
    MockBulkDelivery,
    MockDelivery,
    OnDelivery,
    Tables,
    tell_of_callback,
)
from penstock.testing.mock.producer import MockProducer
from penstock.testing.mock.settings import InjectedErrors, MockPartitionInfo
from penstock.testing.mock.transactions import GroupOffsets
from penstock.transaction_handle import TransactionHandle
from penstock.types import GroupLike, HeadersLike, PositionsLike, ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from penstock.config.keys import ProducerOptions


@names_of_other_clients(ONLY_ASYNC_WITH, whose="")
@names_of_other_clients(ASYNC)
class MockAsyncProducer:
    """Stands in for an AsyncProducer in tests; see MockProducer, whose arguments it takes.

    What the test says and asks (`complete_next`, `error_next`, `raise_on`, `history` and so on) are plain methods, as
    those of MockProducer. `raise_on` knows calls by the names of Producer; "close" stands for `aclose`.

    Args:
        config: as for MockProducer, as the other arguments.
        on_delivery_in: as for AsyncProducer; "io_thread": on the thread that completes the record.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | PathLike[str] | None = None,
        /,
        *,
        on_delivery_in: Literal["loop", "io_thread"] = "loop",
        auto_complete: bool = True,
        topics: Mapping[str, int] | None = None,
        clock: Clock | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if on_delivery_in not in ("loop", "io_thread"):
            raise ValueError(f"on_delivery_in must be 'loop' or 'io_thread', not {on_delivery_in!r}")
        self._in_loop = on_delivery_in == "loop"
        self._mock = MockProducer(config, auto_complete=auto_complete, topics=topics, clock=clock, **options)
        self._injected = InjectedErrors(("try_send",))  # of what a MockProducer has not
        self._note_refused = self._mock._note_refused  # noqa: SLF001 - for noting_refusals
        self.options = self._mock.options
        self.mock_metrics = self._mock.mock_metrics

    # ------------------------------------------------------------------------------------------ the producer's calls

    async def send(  # noqa: PLR0913 - two of them are refused
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
        """Accept a record; see AsyncProducer.send."""
        return self._mock.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms,
            on_delivery=self._callback(on_delivery), callback=callback, timestamp=timestamp,
        )  # fmt: skip

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
        """Accept a record and wait until it is completed; see AsyncProducer.send_and_wait."""
        return await self._mock.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms,
            on_delivery=self._callback(on_delivery), callback=callback, timestamp=timestamp,
        )  # fmt: skip

    @noting_refusals
    def try_send(  # noqa: PLR0913 - two of them are refused
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
        """Accept a record; see AsyncProducer.try_send. To let it find no memory: raise_on("try_send", ...)."""
        self._injected.maybe_raise("try_send")
        return self._mock.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms,
            on_delivery=self._callback(on_delivery), callback=callback, timestamp=timestamp,
        )  # fmt: skip

    async def send_record(
        self, record: ProducerRecord, on_delivery: OnDelivery | None = None
    ) -> MockDelivery:
        """Accept a record that was made as a value; see `send`."""
        return self._mock.send_record(record, self._callback(on_delivery))

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[HeadersLike | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
    ) -> MockBulkDelivery:
        """Accept many records; see AsyncProducer.send_many."""
        return self._mock.send_many(
            topic, values, keys=keys, headers=headers, partition=partition, timestamps_ms=timestamps_ms
        )

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
    ) -> MockBulkDelivery:
        """Accept the rows of an Arrow table, or of an asynchronous iterable of tables; see AsyncProducer.send_arrow."""
        if isinstance(data, AsyncIterable):
            data = Tables([table async for table in data])
        return self._mock.send_arrow(
            topic, data, key=key, value=value, headers=headers, partition=partition, timestamp=timestamp,
            on_error=on_error,
        )  # fmt: skip

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as AsyncProducer.flush
        """Acknowledge all pending records."""
        self._mock.flush(timeout)

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as AsyncProducer.aclose
        """Acknowledge all pending records and stop; see MockProducer.close."""
        self._mock.close(timeout)

    async def partitions_for(self, topic: str) -> tuple[MockPartitionInfo, ...]:
        """The partitions of a topic."""
        return self._mock.partitions_for(topic)

    async def client_instance_id(self, timeout: float) -> uuid.UUID:  # noqa: ASYNC109 - as AsyncProducer's
        """An id of this producer's own."""
        return self._mock.client_instance_id(timeout)

    def metrics(self) -> dict[str, dict[str, Any]]:
        """A copy of `mock_metrics`."""
        return self._mock.metrics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mock.close()

    def __repr__(self) -> str:
        return repr(self._mock).replace("MockProducer", "MockAsyncProducer", 1)

    # ------------------------------------------------------------------------------------------ transactions

    async def init_transactions(self, transactional_id: str | None = None, *, timeout: None = None) -> None:  # noqa: ASYNC109 - refused
        """Get ready for transactions, once."""
        self._mock.init_transactions(transactional_id, timeout=timeout)

    @property
    def initialization_in_doubt(self) -> bool:
        """Whether an answer to the last `init_transactions` was lost: never."""
        return False

    async def begin_transaction(self) -> None:
        """Open a transaction."""
        self._mock.begin_transaction()

    async def send_offsets_to_transaction(
        self,
        offsets: PositionsLike,
        group: GroupLike,
        timeout: None = None,  # noqa: ASYNC109 - refused
    ) -> None:
        """Let the transaction commit a consumer group's offsets."""
        self._mock.send_offsets_to_transaction(offsets, group, timeout)

    async def commit_transaction(self, timeout: None = None, *, incomplete: bool = False) -> None:  # noqa: ASYNC109 - refused
        """Acknowledge what is pending and publish the transaction: its records become history."""
        self._mock.commit_transaction(timeout, incomplete=incomplete)

    async def abort_transaction(self, timeout: None = None) -> None:  # noqa: ASYNC109 - refused
        """Acknowledge what is pending and drop the transaction: its records are forgotten."""
        self._mock.abort_transaction(timeout)

    async def detach_transaction(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over; `detached_records(handle)` is what it held."""
        return self._mock.detach_transaction(incomplete=incomplete)

    @asynccontextmanager
    async def transaction(self, *, incomplete: bool = False) -> AsyncIterator[None]:
        """Open a transaction; commit it at the end of the block, or abort it when the block raises."""
        check_bool(incomplete, "incomplete")
        with self._mock.transaction(incomplete=incomplete):
            yield

    # ------------------------------------------------------------------------------------------ for the test

    def complete_next(self) -> bool:
        """Acknowledge the oldest pending record; False when there is none."""
        return self._mock.complete_next()

    def error_next(self, error: KafkaError) -> bool:
        """Let the oldest pending record fail; False when there is none."""
        return self._mock.error_next(error)

    def raise_on(self, call: str, error: BaseException | None, *, times: int | None = None) -> None:
        """Let a call raise an error instead of doing its work; see MockProducer.raise_on.

        "send" stands for `try_send` as well, "try_send" for that alone.
        """
        if call == "try_send":
            self._injected.set(call, error, times)
        else:
            self._mock.raise_on(call, error, times=times)

    def fence_producer(self) -> None:
        """Behave as if a newer producer had taken over the transactional id."""
        self._mock.fence_producer()

    def clear(self) -> None:
        """Forget records, committed offsets and injected errors. Pending records fail; offsets count on."""
        self._mock.clear()
        self._injected.clear()

    def history(self) -> list[ProducerRecord]:
        """The records accepted so far in order; those of a transaction once it is committed."""
        return self._mock.history()

    def uncommitted_records(self) -> list[ProducerRecord]:
        """The records of the open transaction."""
        return self._mock.uncommitted_records()

    def detached_records(self, handle: TransactionHandle) -> list[ProducerRecord]:
        """The records of a transaction that was detached."""
        return self._mock.detached_records(handle)

    def uncommitted_offsets(self) -> GroupOffsets:
        """The consumer offsets in the open transaction: {group: {partition: offset}}."""
        return self._mock.uncommitted_offsets()

    def committed_offsets(self) -> list[GroupOffsets]:
        """The consumer offsets of each committed transaction that had any."""
        return self._mock.committed_offsets()

    @property
    def pending_count(self) -> int:
        """How many records have no outcome yet."""
        return self._mock.pending_count

    @property
    def commit_count(self) -> int:
        """How many transactions were committed."""
        return self._mock.commit_count

    @property
    def abort_count(self) -> int:
        """How many transactions were aborted."""
        return self._mock.abort_count

    @property
    def transaction_in_flight(self) -> bool:
        """Whether a transaction is open."""
        return self._mock.transaction_in_flight

    @property
    def fenced(self) -> bool:
        """Whether it was fenced."""
        return self._mock.fenced

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._mock.closed

    def _callback(self, on_delivery: OnDelivery | None) -> OnDelivery | None:
        if on_delivery is None:
            return None
        check_on_delivery(on_delivery)
        if not self._in_loop:
            return on_delivery
        mailbox, context = running_loop().mailbox, contextvars.copy_context()

        def tell(metadata: RecordMetadata, error: Exception | None) -> None:
            mailbox.put(_Call(lambda: context.run(on_delivery, metadata, error), metadata))
            mailbox.ring()

        return tell


class _Call:
    """A callback that is to run in a loop."""

    __slots__ = ("_call", "_metadata")

    def __init__(self, call: Callable[[], object], metadata: RecordMetadata) -> None:
        self._call = call
        self._metadata = metadata

    def deliver(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - it is logged
            tell_of_callback(ON_DELIVERY_RAISED, error, self._metadata.topic_partition)

    def drop(self) -> None:
        """Forget the callback, because the loop has ended."""
