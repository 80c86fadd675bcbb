# SPDX-License-Identifier: Apache-2.0
"""MockAsyncProducer: it has the calls of AsyncProducer, and outcomes come when the test says so."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import anyio
import pyarrow as pa
import pytest
from aio.support import until

from penstock import AsyncProducer, ProducerRecord
from penstock.errors import BufferExhaustedError, KafkaError, TransactionAbortableError
from penstock.testing import MockAsyncProducer, MockProducer


def _public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and hasattr(cls, name)}


def test_it_has_the_calls_of_the_real_one_with_the_same_parameters() -> None:
    for name in _public(AsyncProducer):
        real, mock = getattr(AsyncProducer, name), getattr(MockAsyncProducer, name)
        assert inspect.iscoroutinefunction(real) == inspect.iscoroutinefunction(mock), name
        if callable(real):
            assert list(inspect.signature(real).parameters) == list(inspect.signature(mock).parameters), name


def test_it_can_be_told_and_asked_what_the_blocking_one_can() -> None:
    assert _public(MockProducer) - {"close"} <= _public(MockAsyncProducer) | {"options", "mock_metrics"}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_records_are_completed_by_hand(backend: str) -> None:
    producer = MockAsyncProducer(auto_complete=False)
    told: list[Any] = []

    async def main() -> None:
        here = threading.get_ident()

        def tell(metadata: Any, error: Exception | None) -> None:
            told.append((metadata.offset, error is None, threading.get_ident() == here))

        first = await producer.send("t", b"1", on_delivery=tell)
        second = producer.try_send("t", b"2")
        with anyio.move_on_after(0.01) as scope:
            await first
        assert scope.cancelled_caught
        assert first._followers == []  # nothing is left of the abandoned await
        async with anyio.create_task_group() as others:
            others.start_soon(_await, first)
            await anyio.sleep(0.001)
            threading.Thread(target=producer.complete_next).start()
        producer.error_next(KafkaError("no"))
        with pytest.raises(KafkaError, match="no"):
            await second
        await until(lambda: told)

    anyio.run(main, backend=backend)
    assert told == [(0, True, True)]


async def _await(delivery: Any) -> None:
    await delivery


def test_what_a_callback_raises_is_logged_with_how_it_is_called(caplog: pytest.LogCaptureFixture) -> None:
    def in_the_order_of_another_client(error: Any, message: Any) -> None:
        message.key()

    async def main() -> None:
        delivery = await MockAsyncProducer().send("t", b"v", on_delivery=in_the_order_of_another_client)
        assert (await delivery).offset == 0
        await until(lambda: caplog.records)

    asyncio.run(main())
    assert "on_delivery callback for t-0 raised (it is called with (metadata, error))" in caplog.text


def test_tables_transactions_and_the_end() -> None:
    async def tables() -> Any:
        yield pa.table({"value": [b"1"]})
        yield pa.table({"value": [b"2", b"3"]})

    async def main() -> None:
        async with MockAsyncProducer(transactional_id="x") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                assert (await (await producer.send_arrow("t", tables()))).records == 3
                assert (await (await producer.send_many("t", [b"4"]))).records == 1
            assert [record.value for record in producer.history()] == [b"1", b"2", b"3", b"4"]
            producer.raise_on("send", BufferExhaustedError("none"), times=1)
            await producer.begin_transaction()
            with pytest.raises(BufferExhaustedError):
                await producer.send("t", b"v")
            with pytest.raises(TransactionAbortableError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            assert (producer.commit_count, producer.abort_count) == (1, 1)
        assert producer.closed
        assert "MockAsyncProducer" in repr(producer)

    asyncio.run(main(), debug=True)


def test_try_send_can_fail_alone() -> None:
    async def main() -> None:
        async with MockAsyncProducer() as producer:
            producer.raise_on("try_send", BufferExhaustedError("none"))
            with pytest.raises(BufferExhaustedError):
                producer.try_send("t", b"no")
            await producer.send_and_wait("t", b"waits")
            producer.clear()
            producer.try_send("t", b"yes")
            assert [record.value for record in producer.history()] == [b"yes"]

    asyncio.run(main())


def test_coroutine_functions_are_refused() -> None:
    async def told(*_: object) -> None:
        """Do nothing: the test never awaits it."""

    async def main() -> None:
        with pytest.raises(TypeError, match="coroutine function"):
            await MockAsyncProducer().send("t", b"v", on_delivery=told)  # type: ignore[arg-type]

    asyncio.run(main(), debug=True)


def test_one_mock_serves_one_loop_after_another() -> None:
    producer = MockAsyncProducer()
    for _ in range(2):
        asyncio.run(producer.send_and_wait("t", b"v"))
    assert producer.history() == [ProducerRecord("t", b"v")] * 2
