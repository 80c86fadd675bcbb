# SPDX-License-Identifier: Apache-2.0
"""The AsyncProducer as users see it: in every kind of loop, in several at once, against a small broker on a socket."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Sized
from typing import Any

import anyio
import pyarrow as pa
import pytest
from aio.support import FILLS, SOON, cancel_here, known, pool_of, until

from penstock import AsyncProducer, Interceptor, Producer, ProducerRecord
from penstock.errors import (
    BadRowsError,
    BufferExhaustedError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
)


def test_a_record_is_sent_and_awaited(run, made, broker) -> None:
    producer = made()

    async def main() -> None:
        delivery = await producer.send("t", b"a", key=b"k", headers=[("h", b"1")])
        first, again = await delivery, await delivery
        assert first is not again
        assert first == again
        assert first.offset == 0
        assert (await producer.send_and_wait("t", b"b")).offset == 1
        assert (await (await producer.send_record(ProducerRecord("t", b"c")))).offset == 2
        await producer.flush()
        assert [info.partition for info in await producer.partitions_for("three")] == [0, 1, 2]
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 3

    run(main)
    assert broker.values() == [b"a", b"b", b"c"]


def test_sending_what_fits_lets_no_other_task_run(made) -> None:
    producer = made()

    async def main() -> None:
        await producer.send_and_wait("t", b"first")  # the topic is known, the connection there
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1

        asyncio.get_running_loop().call_soon(count)
        done = [await producer.send("t", b"v") for _ in range(10)]
        assert turns == 0
        await done[-1]
        turns = 0
        asyncio.get_running_loop().call_soon(count)
        for delivery in done:
            await delivery  # its outcome is known
        assert turns == 0

    asyncio.run(main(), debug=True)


def test_outcomes_wake_the_loop_once_for_an_answer(made, broker) -> None:
    producer = made(linger_ms=60_000)
    crossings = 0

    async def main() -> None:
        nonlocal crossings
        loop = asyncio.get_running_loop()
        cross = loop.call_soon_threadsafe

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal crossings
            crossings += 1
            return cross(*args, **kwargs)

        await producer.partitions_for("three")
        broker.hold = True
        waiting = [
            asyncio.ensure_future(producer.send_and_wait("three", b"v", partition=number % 3))
            for number in range(300)
        ]
        told: list[object] = []
        for number in range(300):
            await producer.send(
                "three", b"v", partition=number % 3, on_delivery=lambda *outcome: told.append(outcome)
            )
        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        await asyncio.sleep(0)  # the tasks have sent
        flushing = asyncio.ensure_future(producer.flush())
        await until(lambda: len(broker.values("three")) == 600)
        answers = len(broker.log)
        broker.release()
        await asyncio.gather(flushing, *waiting)
        await until(lambda: len(told) == 300)
        assert crossings <= 3 * answers + 3

    asyncio.run(main(), debug=True)


def test_it_may_be_made_before_a_loop_runs_and_used_in_several_loops_and_threads(made, broker) -> None:
    producer = made()  # no loop runs here

    async def main(name: str) -> None:
        for number in range(50):
            await producer.send_and_wait("t", f"{name}{number}".encode())

    asyncio.run(main("first"), debug=True)
    anyio.run(main, "second", backend="trio")
    threads = [threading.Thread(target=asyncio.run, args=(main(name),)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    asyncio.run(main("c"), debug=True)
    for thread in threads:
        thread.join(SOON)
    assert len(broker.values()) == 250


def test_a_delivery_is_awaited_by_many_tasks_and_in_two_loops(made, broker) -> None:
    producer = made()
    broker.hold = True
    delivery = asyncio.run(producer.send("t", b"v"))
    offsets: list[int] = []

    async def wait() -> None:
        async def one() -> None:
            offsets.append((await delivery).offset)

        await asyncio.gather(*(one() for _ in range(5)))

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()

    async def main() -> None:
        waiting = asyncio.ensure_future(wait())
        await until(lambda: len(delivery._answered_by().followers.entries) == 2)  # one for each loop
        broker.release()
        await waiting

    asyncio.run(main(), debug=True)
    thread.join(SOON)
    assert offsets == [0] * 10


def test_a_failed_record_raises_where_it_is_awaited(run, made, broker) -> None:
    producer = made()
    broker.error_code = 87  # INVALID_RECORD

    async def main() -> None:
        delivery = await producer.send("t", b"v")
        for _ in range(2):
            with pytest.raises(InvalidRecordError):
                await delivery
        with pytest.raises(InvalidRecordError):
            await producer.send_and_wait("t", b"v")

    run(main)


def test_what_is_wrong_is_raised_by_send(made, run) -> None:
    producer = made()

    async def main() -> None:
        await known(producer)
        with pytest.raises(KafkaTimeoutError, match="unknown"):
            await made(max_block_ms=50).send("unknown", b"v")
        with pytest.raises(TypeError, match="callback"):
            await producer.send("t", b"v", callback=print)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="topic"):
            await producer.send(7, b"v")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="ProducerRecord"):
            await producer.send_record(b"v")  # type: ignore[arg-type]
        with pytest.raises(RecordTooLargeError):
            await producer.send("t", b"v" * 2_000_000)
        with pytest.raises(ValueError, match="negative"):
            await producer.aclose(-1)

    run(main)


def test_try_send_raises_instead_of_waiting(made, broker) -> None:
    producer = made.tight()

    async def main() -> None:
        broker.telling.clear()
        with pytest.raises(KafkaTimeoutError) as raised:
            producer.try_send("t", b"v")
        broker.telling.set()
        assert str(raised.value).startswith("Topic t not present in metadata after 0 ms. ")
        assert str(raised.value).endswith(
            " try_send() does not wait for the metadata of a topic, which are asked for now: call it again later, or "
            "use `await send()`, which waits for them."
        )
        await producer.partitions_for("t")  # which it has asked for
        with pytest.raises(KafkaTimeoutError, match=r"Partition 7 of topic t .* numbered from 0 to \d+\.$"):
            producer.try_send("t", b"v", partition=7)  # to ask again would give no other answer
        broker.hold = True
        accepted = [producer.try_send("t", FILLS) for _ in range(2)]
        began = time.monotonic()
        with pytest.raises(BufferExhaustedError):
            producer.try_send("t", FILLS)
        assert time.monotonic() - began < 30  # and not max.block.ms
        assert pool_of(producer).waiting() == 0
        broker.release()
        for delivery in accepted:
            await delivery

    asyncio.run(main(), debug=True)
    assert len(broker.values()) == 2


def test_many_records_and_tables(run, made, broker) -> None:
    producer = made()
    table = pa.table({"value": [b"1", b"2"]})

    async def tables() -> AsyncIterator[Any]:
        yield table
        await anyio.sleep(0.001)
        yield pa.table({"value": [b"3"], "partition": pa.array([0], pa.int32())})

    async def broken() -> AsyncIterator[Any]:
        yield table
        raise OSError("the source is gone")

    async def main() -> None:
        assert (await (await producer.send_many("t", [b"a", b"b"]))).records == 2
        assert (await (await producer.send_arrow("t", table))).records == 2
        assert (await (await producer.send_arrow("t", tables()))).records == 3
        assert (await (await producer.send_arrow("t", tables(), on_error="skip"))).records == 3
        with pytest.raises(OSError, match="gone"):
            await producer.send_arrow("t", broken())
        with pytest.raises(OSError, match="gone") as raised:
            await producer.send_arrow("t", broken(), on_error="skip")
        assert (await raised.value.bulk_delivery).records == 2  # type: ignore[attr-defined]

    run(main)
    assert broker.values() == [b"a", b"b", b"1", b"2", b"1", b"2", b"3", b"1", b"2", b"3", b"1", b"2"]


def test_rows_of_several_tables_are_numbered_through(made) -> None:
    producer = made()
    bad = pa.table({"value": [b"1", b"2"], "partition": pa.array([0, 7], pa.int32())})

    async def tables() -> AsyncIterator[Any]:
        yield pa.table({"value": [b"0"]})
        yield bad
        yield bad

    async def main() -> None:
        bulk = await producer.send_arrow("t", tables(), on_error="skip")
        report = await bulk
        assert [(each.first_row, each.last_row) for each in report.errors] == [(2, 2), (4, 4)]
        with pytest.raises(BadRowsError) as raised:
            await producer.send_arrow("t", tables())
        assert raised.value.count == 2

    asyncio.run(main(), debug=True)


def test_a_large_bulk_lets_other_tasks_run(made) -> None:
    producer = made(buffer_memory=64 * 1024 * 1024, batch_size=1024)

    async def main() -> None:
        await producer.partitions_for("t")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        await producer.send_many("t", [b"v" * 100] * 100_000)
        beside.cancel()
        assert turns > 1
        await producer.aclose(0)  # the small broker would take its time

    asyncio.run(main())


# ---- callbacks


def test_callbacks_run_in_the_loop_in_the_context_of_the_sender(run, made) -> None:
    producer = made()
    where = contextvars.ContextVar("where", default="nowhere")
    told: list[Any] = []

    async def main() -> None:
        here = threading.get_ident()
        where.set("here")

        def tell(metadata: Any, error: Exception | None) -> None:
            told.append((metadata.offset, error, threading.get_ident() == here, where.get()))

        for _ in range(3):
            await producer.send("t", b"v", on_delivery=tell)
        producer.try_send("t", b"v", on_delivery=tell)
        await producer.send_and_wait("t", b"v", on_delivery=tell)
        await producer.flush()
        await until(lambda: len(told) == 5)

    run(main)
    assert told == [(offset, None, True, "here") for offset in range(5)]


def test_callbacks_run_on_the_io_thread_on_request(made) -> None:
    producer = made(on_delivery_in="io_thread")
    threads: list[str] = []

    async def main() -> None:
        await producer.send_and_wait(
            "t", b"v", on_delivery=lambda *_: threads.append(threading.current_thread().name)
        )

    asyncio.run(main(), debug=True)
    assert threads == [producer._core.thread.name]


class _Awaited:
    async def __call__(self, metadata: Any, error: Exception | None) -> None:
        """Do nothing: the test never awaits it."""


async def _coroutine(metadata: Any, error: Exception | None) -> None:
    """Do nothing: the test never awaits it."""


@pytest.mark.parametrize("wrong", [_coroutine, _Awaited(), "no function"])
def test_what_cannot_be_called_or_must_be_awaited_is_refused(made, broker, wrong) -> None:
    producer = made()

    async def main() -> None:
        with pytest.raises(TypeError, match="on_delivery must be"):
            await producer.send("t", b"v", on_delivery=wrong)
        with pytest.raises(TypeError, match="on_delivery must be"):
            producer.try_send("t", b"v", on_delivery=wrong)

    asyncio.run(main(), debug=True)
    assert broker.values() == []


def test_a_callback_that_raises_or_gives_a_coroutine_is_told_and_the_others_run(made, caplog) -> None:
    producer = made()
    told: list[object] = []

    def fails(*_: object) -> None:
        raise ValueError("of the callback")

    def gives_a_coroutine(metadata: Any, error: Exception | None) -> Any:
        return _coroutine(metadata, error)

    async def main() -> None:
        await producer.send("t", b"v", on_delivery=fails)
        await producer.send("t", b"v", on_delivery=gives_a_coroutine)
        await producer.send_and_wait("t", b"v", on_delivery=lambda *_: told.append(1))
        await until(lambda: told)

    asyncio.run(main(), debug=True)
    assert "of the callback" in caplog.text
    assert "on_delivery callback for t-0 raised (it is called with (metadata, error))" in caplog.text
    assert "gave a coroutine" in caplog.text


def test_no_loop_for_a_callback(made) -> None:
    with pytest.raises(
        RuntimeError, match='send from a loop, or make the producer with on_delivery_in="io_thread"'
    ):
        made().try_send("t", b"v", on_delivery=lambda *_: None)


def test_a_failure_whose_callback_has_lost_its_loop_is_told_by_the_log(made, broker, caplog) -> None:
    caplog.set_level(logging.WARNING)
    producer = made()
    told: list[object] = []
    broker.error_code = 87
    broker.hold = True

    async def main() -> None:
        await producer.partitions_for("t")
        await producer.send("t", b"v", on_delivery=lambda *_: told.append(1))

    asyncio.run(main())
    gc.collect()
    broker.release()
    asyncio.run(producer.aclose(SOON))
    assert told == []
    assert "1 record" in caplog.text


# ---- blocking producers in loops


def test_a_blocking_producer_warns_once_where_it_would_block_a_loop(broker) -> None:
    async def main() -> None:
        with Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as producer:
            with pytest.warns(RuntimeWarning, match="AsyncProducer") as warned:
                producer.send("t", b"v").result(SOON)
            assert [each.filename for each in warned] == [__file__]
            producer.send("t", b"v").result(SOON)  # a warning is an error here

    asyncio.run(main())


@pytest.mark.parametrize("call", ["flush", "result", "close"])
def test_each_call_that_would_block_warns(broker, call) -> None:
    def answer_after_the_warning(warned: Sized) -> None:
        deadline = time.monotonic() + SOON
        while not len(warned) and time.monotonic() < deadline:
            time.sleep(0.001)
        broker.release()

    def wait(warned: Sized, waits: Callable[[], object]) -> None:
        answering = threading.Thread(target=answer_after_the_warning, args=(warned,))
        answering.start()
        waits()
        answering.join(SOON)

    async def main(producer: Producer) -> None:
        delivery = producer.send("t", b"v")
        with pytest.warns(RuntimeWarning, match=call) as warned:
            wait(warned, getattr(delivery if call == "result" else producer, call))

    with Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as producer:
        producer.partitions_for("t")
        broker.hold = True
        asyncio.run(main(producer))


def test_nothing_warns_outside_of_loops_and_where_nothing_waits(broker) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as producer:
        producer.send("t", b"v").result(SOON)

        async def main() -> None:
            producer.send("t", b"v")

        asyncio.run(main())


# ---- interceptors and threads


def test_interceptors_run_in_the_task(made) -> None:
    names: list[str] = []

    class Noting(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            task = asyncio.current_task()
            names.append("" if task is None else task.get_name())
            return record

    producer = made(interceptors=[Noting()])

    async def main() -> None:
        await asyncio.create_task(producer.send("t", b"v"), name="mine")

    asyncio.run(main(), debug=True)
    assert names == ["mine"]


# ---- the end


def test_leaving_the_block_delivers_what_was_accepted(run, made, broker) -> None:
    async def main() -> None:
        async with made(linger_ms=600_000) as producer:
            await producer.send("t", b"v")
        with pytest.raises(ProducerClosedError):
            await producer.send("t", b"v")
        await producer.aclose()  # twice is harmless
        assert not producer._core.thread.is_alive()
        assert "closed" in repr(producer)

    run(main)
    assert broker.values() == [b"v"]


def test_aclose_fails_what_is_left_when_its_time_is_up(run, made, broker, caplog) -> None:
    producer = made()

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        delivery = await producer.send("t", b"v")
        await producer.aclose(0.05)
        with pytest.raises(KafkaError):
            await delivery
        assert not producer._core.thread.is_alive()

    run(main)
    (told,) = [each.getMessage() for each in caplog.records if "gave up 1 record" in each.getMessage()]
    assert "Closing without a time-out waits" in told  # this producer has no close()
    assert "close()" not in told


def test_aclose_that_is_cancelled_does_not_wait(run, made, broker) -> None:
    producer = made()

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        delivery = await producer.send("t", b"v")
        with anyio.move_on_after(0.05) as scope:
            await producer.aclose()
        assert scope.cancelled_caught
        assert producer._core.ended.done
        with pytest.raises(KafkaError):
            await delivery

    run(main)


def test_a_block_that_is_cancelled_delivers_what_was_accepted(run, made, broker) -> None:
    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with made(linger_ms=600_000) as producer:
                await producer.send("t", b"v")
                await cancel_here(scope)
        assert scope.cancelled_caught

    run(main)
    assert broker.values() == [b"v"]


def test_one_that_is_forgotten_warns_and_delivers(broker) -> None:
    async def main() -> None:
        producer = AsyncProducer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False)
        await producer.send("t", b"v")
        thread = producer._core.thread
        with pytest.warns(ResourceWarning, match=r"forgotten without aclose\(\)"):
            del producer
        thread.join(SOON)

    asyncio.run(main())
    assert broker.values() == [b"v"]


def test_it_refuses_wrong_arguments(broker) -> None:
    with pytest.raises(ValueError, match="on_delivery_in"):
        AsyncProducer(bootstrap_servers=broker.address, on_delivery_in="here")  # type: ignore[arg-type]
    with warnings.catch_warnings(), pytest.raises(KafkaError, match="linger_mz"):
        AsyncProducer(bootstrap_servers=broker.address, linger_mz=1)  # type: ignore[call-arg]


def test_importing_penstock_imports_no_loop() -> None:
    code = (
        "import sys, penstock, penstock.producer.producer; "
        "print(*sorted({'asyncio', 'penstock._loops', 'penstock.aio', 'trio', 'anyio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == []
