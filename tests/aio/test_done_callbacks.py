# SPDX-License-Identifier: Apache-2.0
"""Deliveries given to the functions of asyncio, and where their done callbacks run."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from aio.support import LOOPS, SOON, until

from penstock import Interceptor, Producer
from penstock.errors import KafkaError, MessageTooLargeError
from penstock.testing import MockAsyncProducer, MockProducer
from penstock.watching.opentelemetry import OpenTelemetry

ASYNCIO = [name for name in LOOPS if name != "trio"]


@pytest.fixture(params=ASYNCIO)
def in_asyncio(request: pytest.FixtureRequest) -> Callable[..., Any]:
    backend, options = LOOPS[request.param]
    return lambda main, *args: anyio.run(main, *args, backend=backend, backend_options=options)


class Sending:
    """Futures of records without an outcome, and how they get one; of a producer, or of a mock."""

    def __init__(self, producer: Any, broker: Any, bulk: bool) -> None:
        self.producer, self._broker, self._bulk = producer, broker, bulk

    async def pending(self, count: int = 3) -> list[Any]:
        if self._broker is not None:
            await self.producer.partitions_for("three")
            self._broker.hold = True
        if self._bulk:
            return [await self.producer.send_many("three", [b"v"], partition=n % 3) for n in range(count)]
        return [await self.producer.send("three", b"v", partition=n % 3) for n in range(count)]

    def complete(self, _: object = None) -> None:
        if self._broker is not None:
            self._broker.release()
        else:
            while self.producer.complete_next():
                pass


@pytest.fixture(params=["one", "bulk", "mock", "mock bulk"])
def sending(request: pytest.FixtureRequest, made: Any, broker: Any) -> Sending:
    bulk = "bulk" in request.param
    if "mock" in request.param:
        return Sending(MockAsyncProducer(auto_complete=False, topics={"three": 3}), None, bulk)
    return Sending(made(), broker, bulk)


@pytest.mark.parametrize("return_when", [asyncio.ALL_COMPLETED, asyncio.FIRST_EXCEPTION])
def test_wait_takes_those_that_are_pending_and_those_that_are_done(in_asyncio, sending, return_when) -> None:
    async def main() -> None:
        futures = await sending.pending()
        asyncio.get_running_loop().call_soon(sending.complete)
        done, pending = await asyncio.wait(futures, return_when=return_when)
        assert (done, pending) == (set(futures), set())
        assert await asyncio.wait(futures, timeout=SOON, return_when=return_when) == (set(futures), set())
        assert not any(future.cancelled() for future in futures)

    in_asyncio(main)


def test_wait_gives_up_when_the_time_is_up_and_leaves_nothing_behind(in_asyncio, sending) -> None:
    async def main() -> None:
        futures = await sending.pending()
        for _ in range(3):
            assert await asyncio.wait(futures, timeout=0.001) == (set(), set(futures))
        told: list[Any] = []
        futures[0].add_done_callback(told.append)
        assert _callbacks_of(futures) == 1
        sending.complete()
        await until(lambda: told)
        assert told == [futures[0]]
        assert _callbacks_of(futures) == 0

    in_asyncio(main)


def _callbacks_of(futures: list[Any]) -> int:
    kept: Any = 0
    for future in futures:
        if hasattr(future, "_callbacks"):
            kept += len(future._callbacks._entries)
        elif hasattr(future, "_followers"):
            kept += len(future._followers)
        else:
            kept += len(future._answered_by().followers.entries)
    return int(kept)


def test_wait_returns_with_the_first(in_asyncio) -> None:
    producer = MockAsyncProducer(auto_complete=False)

    async def main() -> None:
        futures = [await producer.send("t", b"v") for _ in range(3)]
        asyncio.get_running_loop().call_soon(producer.complete_next)
        first = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        assert first == ({futures[0]}, set(futures[1:]))
        asyncio.get_running_loop().call_soon(producer.error_next, MessageTooLargeError())
        failed = await asyncio.wait(futures[1:], return_when=asyncio.FIRST_EXCEPTION)
        assert failed == ({futures[1]}, {futures[2]})

    in_asyncio(main)


def test_wait_returns_with_the_first_of_a_producer(in_asyncio, made, broker) -> None:
    producer = made()

    async def main() -> None:
        written = await producer.send("t", b"v")
        await written
        broker.hold = True
        waits = await producer.send("t", b"v")
        for at_least in ({}, {"timeout": SOON}):
            first = await asyncio.wait([written, waits], return_when=asyncio.FIRST_COMPLETED, **at_least)
            assert first == ({written}, {waits})
        broker.release()
        await waits

    in_asyncio(main)


async def _gather(futures: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*futures))


async def _as_completed(futures: list[Any]) -> list[Any]:
    return [await one for one in asyncio.as_completed(futures, timeout=SOON)]


async def _wait_for(futures: list[Any]) -> list[Any]:
    return [await asyncio.wait_for(future, SOON) for future in futures]


async def _shield(futures: list[Any]) -> list[Any]:
    return [await asyncio.shield(future) for future in futures]


async def _ensure_future(futures: list[Any]) -> list[Any]:
    tasks = [asyncio.ensure_future(future) for future in futures]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


@pytest.mark.parametrize("way", [_gather, _as_completed, _wait_for, _shield, _ensure_future])
def test_the_other_functions_of_asyncio_take_them(in_asyncio, sending, way) -> None:
    async def main() -> None:
        futures = await sending.pending()
        asyncio.get_running_loop().call_soon(sending.complete)
        outcomes = await way(futures)
        assert sorted(map(repr, outcomes)) == sorted(repr(future.result(0)) for future in futures)
        assert sorted(map(repr, await way(futures))) == sorted(map(repr, outcomes))  # all are done now
        with pytest.raises(TypeError, match="coroutine"):
            await asyncio.create_task(futures[0])

    in_asyncio(main)


def test_a_producer_that_blocks_may_be_waited_for_in_a_loop(in_asyncio, broker) -> None:
    async def main(producer: Producer) -> None:
        broker.hold = True
        deliveries = [producer.send("t", b"v") for _ in range(3)]
        assert await asyncio.wait(deliveries, timeout=0.001) == (set(), set(deliveries))
        broker.release()
        assert await asyncio.wait(deliveries, timeout=SOON) == (set(deliveries), set())

    with Producer(bootstrap_servers=broker.address, enable_idempotence=False, linger_ms=0) as producer:
        producer.partitions_for("t")
        in_asyncio(main, producer)


def test_a_callback_that_was_added_in_a_loop_runs_there(run, sending) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def main() -> None:
        here, calls = threading.get_ident(), []

        def note(future: Any) -> None:
            calls.append((threading.get_ident(), name.get(), future.done()))

        name.set("of the task")
        futures = await sending.pending()
        for future in futures:
            future.add_done_callback(note)
        name.set("changed")
        threading.Thread(target=sending.complete).start()
        await until(lambda: len(calls) == 3)
        futures[0].add_done_callback(note)
        assert len(calls) == 3  # not within the call, as with a future of asyncio
        await until(lambda: len(calls) == 4)
        assert calls == [(here, "of the task", True)] * 3 + [(here, "changed", True)]

    run(main)


def test_callbacks_wake_the_loop_once_for_an_answer(made, broker) -> None:
    producer = made(linger_ms=60_000)
    crossings = 0

    async def main() -> None:
        nonlocal crossings
        await producer.partitions_for("t")
        told: list[Any] = []
        for _ in range(20):
            (await producer.send("t", b"v")).add_done_callback(told.append)
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def count(*args: Any, **more: Any) -> Any:
            nonlocal crossings
            crossings += threading.current_thread() is not threading.main_thread()
            return original(*args, **more)

        loop.call_soon_threadsafe = count  # type: ignore[method-assign]
        flushed = threading.Thread(target=lambda: asyncio.run(producer.flush()))
        flushed.start()
        await until(lambda: len(told) == 20)
        flushed.join()

    asyncio.run(main())
    assert crossings == 1


def test_removing_tells_how_many(sending, in_asyncio) -> None:
    async def main() -> None:
        told: list[Any] = []
        futures = await sending.pending(2)
        first, second = futures
        first.add_done_callback(told.append)
        first.add_done_callback(told.append)
        second.add_done_callback(told.append)
        assert first.remove_done_callback(print) == 0
        assert first.remove_done_callback(told.append) == 2
        assert first.remove_done_callback(told.append) == 0
        sending.complete()
        await until(lambda: told)
        assert told == [second]
        assert second.remove_done_callback(told.append) == 0

    in_asyncio(main)


def test_a_callback_that_raises_is_logged_and_the_next_is_called(sending, in_asyncio, caplog) -> None:
    async def main() -> None:
        told: list[Any] = []
        (future,) = await sending.pending(1)
        future.add_done_callback(lambda _: 1 / 0)
        future.add_done_callback(told.append)
        sending.complete()
        await until(lambda: told)

    with caplog.at_level(logging.ERROR, "penstock"):
        in_asyncio(main)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_a_loop_that_has_ended_is_forgotten_and_a_failure_is_told(made, broker, caplog) -> None:
    producer = made()
    called: list[Any] = []

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        (await producer.send("t", b"v")).add_done_callback(called.append)
        (await producer.send_many("t", [b"v"])).add_done_callback(called.append)

    asyncio.run(main())
    broker.error_code = 87  # INVALID_RECORD
    with caplog.at_level(logging.WARNING, "penstock.producer"):
        broker.release()
        asyncio.run(producer.aclose())
        gc.collect()
    assert called == []
    told = [
        record.getMessage()
        for record in caplog.records
        if "did not ask for the outcome" in record.getMessage()
    ]
    assert sum(int(line.split()[0]) for line in told) == 2


# Name: options of a producer that puts something of its own around `on_delivery`, or nothing.
AROUND: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "an interceptor": lambda: {"interceptor_classes": [Interceptor()]},
    "spans": lambda: {"tracing": OpenTelemetry("calls")},
}


@pytest.mark.parametrize("around", AROUND)
def test_a_failure_is_told_when_the_loop_of_its_callback_has_ended(made, broker, caplog, around) -> None:
    producer = made(**AROUND[around]())
    called: list[Any] = []

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        await producer.send("t", b"v", on_delivery=lambda *outcome: called.append(outcome))

    asyncio.run(main())
    broker.error_code = 87  # INVALID_RECORD
    with caplog.at_level(logging.WARNING, "penstock.producer"):
        broker.release()
        asyncio.run(producer.aclose())
        gc.collect()
    assert called == []
    (told,) = [
        record.getMessage()
        for record in caplog.records
        if "did not ask for the outcome" in record.getMessage()
    ]
    assert told.startswith("1 record for topic 't' failed")


@pytest.mark.parametrize("around", AROUND)
def test_a_failure_that_its_callback_hears_of_is_not_told_again(made, broker, caplog, around) -> None:
    producer = made(**AROUND[around]())
    errors: list[Any] = []

    async def main() -> None:
        await producer.partitions_for("t")
        broker.error_code = 87  # INVALID_RECORD
        await producer.send("t", b"v", on_delivery=lambda _, error: errors.append(error))
        await until(lambda: errors)
        await producer.aclose()

    with caplog.at_level(logging.WARNING, "penstock.producer"):
        asyncio.run(main())
        gc.collect()
    assert [type(error).__name__ for error in errors] == ["InvalidRecordError"]
    assert "did not ask for the outcome" not in caplog.text


def test_without_a_loop_callbacks_run_as_ever() -> None:
    producer = MockProducer(auto_complete=False)
    told: list[Any] = []
    delivery = producer.send("t", b"v")
    delivery.add_done_callback(lambda _: told.append(threading.get_ident()))
    producer.complete_next()
    delivery.add_done_callback(lambda _: told.append(threading.get_ident()))
    assert told == [threading.get_ident()] * 2


def test_a_failed_record_is_told_by_its_callback_in_the_loop(in_asyncio, made, broker) -> None:
    producer = made()

    async def main() -> list[KafkaError | None]:
        await producer.partitions_for("t")
        broker.hold = True
        told: list[KafkaError | None] = []
        (await producer.send("t", b"v")).add_done_callback(lambda it: told.append(it.exception()))
        await producer.aclose(0)
        await until(lambda: told)
        return told

    (error,) = in_asyncio(main)
    assert type(error).__name__ == "ProducerClosedError"


def test_following_a_delivery_imports_no_asyncio() -> None:
    code = (
        "import sys\n"
        "from penstock.testing import MockProducer\n"
        "told = []\n"
        "before = 'asyncio' in sys.modules\n"
        "from penstock.producer.batch._delivery_cy import BatchResult, Delivery\n"
        "result = BatchResult('t', 0)\n"
        "delivery = Delivery(result, 0)\n"
        "delivery.add_done_callback(told.append)\n"
        "result.settle(5)\n"
        "assert told == [delivery]\n"
        "assert ('asyncio' in sys.modules) == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
