# SPDX-License-Identifier: Apache-2.0
"""Cancellation and time-outs at every place where a call of AsyncProducer is suspended; loops that end meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pyarrow as pa
import pytest
from aio.support import BATCH, FILLS, SOON, CancelAt, known, pool_of, until
from fix_patience import wait_until
from producer.fakes_sender import LoopbackBroker
from watchable import WatchablePool, watchable_parts

from penstock import AsyncProducer
from penstock._locks import new_lock
from penstock.errors import BufferExhaustedError, KafkaTimeoutError, ProducerClosedError

Calls = Callable[[AsyncProducer], Coroutine[Any, Any, Any]]


async def _full(producer: AsyncProducer, broker: LoopbackBroker) -> None:
    """Let all memory be in requests without an answer."""
    await known(producer)
    broker.hold = True
    for _ in range(2):
        await producer.send("t", FILLS)


_TABLE = pa.table({"value": [b"mine" + FILLS] * 3})


async def _tables() -> AsyncIterator[Any]:
    """A source that lets others run before each table, and before its end."""
    for _ in range(2):
        await asyncio.sleep(0)
        yield _TABLE
    await asyncio.sleep(0)


# Name: what is called, and whether the topic is known and the memory used up before.
SUSPENDED: dict[str, tuple[Calls, bool]] = {
    "metadata": (lambda producer: producer.send("t", b"mine"), False),
    "memory": (lambda producer: producer.send("t", b"mine" + FILLS), True),
    "memory and outcome": (lambda producer: producer.send_and_wait("t", b"mine" + FILLS), True),
    "many": (lambda producer: producer.send_many("t", [b"mine" + FILLS] * 3), True),
    "arrow": (lambda producer: producer.send_arrow("t", _TABLE), True),
    "arrow, gathered": (lambda producer: producer.send_arrow("t", _tables()), True),
    "arrow, one by one": (lambda producer: producer.send_arrow("t", _tables(), on_error="skip"), True),
    "partitions": (lambda producer: producer.partitions_for("t"), False),
    "flush": (lambda producer: producer.flush(), True),
}


_BULKS = ("many", "arrow", "arrow, gathered", "arrow, one by one")


@pytest.mark.parametrize("name", SUSPENDED)
def test_a_call_can_be_cancelled_wherever_it_is_suspended(made, broker, name) -> None:
    """Each place in turn, until the call ends without having come to another one."""
    call, full = SUSPENDED[name]
    places = 0

    async def walk(number: int) -> bool:
        producer = made.tight()
        pool = pool_of(producer)
        if full:
            await _full(producer, broker)
        else:
            broker.telling.clear()  # the answer must not come before it waits
        begun = CancelAt(call(producer), number)
        waiting = asyncio.ensure_future(_await(begun))
        await until(lambda: begun.suspensions or waiting.done())
        broker.telling.set()
        broker.release()  # where it was suspended once, it goes on, to the next place
        error: BaseException | None = None
        try:
            await waiting
        except asyncio.CancelledError as cancelled:
            error = cancelled
        assert (error is not None) == begun.was_cancelled
        before = broker.values().count(b"mine" + FILLS)
        await producer.flush(SOON)
        assert (pool.available(), pool.waiting()) == (2 * BATCH, 0)
        if error is not None and name in ("metadata", "memory"):
            assert not any(value is not None and value.startswith(b"mine") for value in broker.values())
        bulk = getattr(error, "bulk_delivery", None)
        if bulk is not None:
            assert (await bulk).records == bulk.accepted == broker.values().count(b"mine" + FILLS)
        elif error is not None and name in _BULKS:
            assert name == "arrow, gathered"  # no row was accepted so far
            assert before == 0
        assert before <= broker.values().count(b"mine" + FILLS)
        assert (await producer.send_and_wait("t", b"after")).offset >= 0
        await producer.aclose(SOON)
        broker.log.clear()
        return begun.was_cancelled

    number = 1
    while asyncio.run(walk(number), debug=True):
        places += 1
        number += 1
    assert places >= 1


async def _await(begun: CancelAt) -> Any:
    return await begun


@pytest.mark.parametrize(("seconds", "places"), [(None, 2), (0, 1)], ids=["patient", "at once"])
def test_aclose_can_be_cancelled_wherever_it_is_suspended(made, broker, seconds, places) -> None:
    """It waits for a record that was put aside, then for the I/O thread; at once, for the end of that alone."""

    async def walk(number: int) -> bool:
        producer = made.tight(on_delivery_in="io_thread")
        waits = threading.Event()  # what it waits for must not come before
        await _full(producer, broker)
        with new_lock():  # as in a finalizer
            put_aside = producer.try_send("t", FILLS, on_delivery=lambda *_: waits.wait(SOON))

        def on_suspended() -> None:
            if begun.suspensions > 1 or seconds == 0:
                waits.set()
            elif number > 1:
                broker.release()

        begun = CancelAt(producer.aclose(seconds), number, on_suspended)
        try:
            await begun
        except asyncio.CancelledError:
            assert begun.was_cancelled
        else:
            assert not begun.was_cancelled
        await until(lambda: producer._core.ended.done)
        assert put_aside.done()
        given_up = isinstance(put_aside.exception(), ProducerClosedError)
        if number != 2:  # there its answer may have come before
            assert given_up == (seconds == 0 or number == 1)
        assert (pool_of(producer).available(), pool_of(producer).waiting()) == (2 * BATCH, 0)
        with pytest.raises(ProducerClosedError):
            await producer.send("t", b"after")
        await producer.aclose()  # twice is harmless
        broker.release()
        return begun.was_cancelled

    for number in range(1, places + 1):
        assert asyncio.run(walk(number))
    assert not asyncio.run(walk(places + 1))


def test_memory_that_was_granted_to_a_cancelled_task_goes_to_the_next(made, broker) -> None:
    """The cancellation comes after the memory was granted, and before the task runs."""
    producer = made.tight()

    async def main() -> None:
        await _full(producer, broker)
        first = asyncio.ensure_future(producer.send("t", b"first" + FILLS))
        second = asyncio.ensure_future(producer.send("t", b"second" + FILLS))
        await until(lambda: pool_of(producer).waiting() == 2)
        broker.release()
        while pool_of(producer).waiting():
            time.sleep(0.001)  # noqa: ASYNC251 - no task may run
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await (await second)
        await producer.flush()
        assert pool_of(producer).available() == 2 * BATCH

    asyncio.run(main(), debug=True)
    assert b"first" + FILLS not in broker.values()


def test_tasks_and_threads_get_memory_in_the_order_of_their_coming(made, broker) -> None:
    # Memory for one batch: the next is granted it when the one before was answered, so the log has the order of grants.
    producer = made(buffer_memory=BATCH, batch_size=BATCH, max_request_size=BATCH)
    pool = pool_of(producer)

    async def one(number: int) -> None:
        await producer.send("t", b"%04d" % number + FILLS)

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        await producer.send("t", FILLS)
        waiting: list[Any] = []
        for number in range(20):
            if number % 5 == 4:
                waiting.append(asyncio.to_thread(asyncio.run, one(number)))
                waiting[-1] = asyncio.ensure_future(waiting[-1])
            else:
                waiting.append(asyncio.ensure_future(one(number)))
            await until(lambda number=number: pool.waiting() == number + 1)
        broker.release()
        await asyncio.gather(*waiting)
        await producer.flush(SOON)

    asyncio.run(main(), debug=True)
    assert [int(value[:4]) for value in broker.values()[1:] if value is not None] == list(range(20))


def test_a_thousand_tasks_against_a_full_buffer(made, broker) -> None:
    producer = made.tight(max_block_ms=600_000)
    pool = pool_of(producer)
    order: list[int] = []
    low: list[int] = []

    async def one(number: int) -> None:
        delivery = await producer.send("t", FILLS)
        order.append(number)
        low.append(pool.available())
        await delivery

    async def main() -> None:
        await _full(producer, broker)
        tasks = [asyncio.ensure_future(one(number)) for number in range(1000)]
        await until(lambda: pool.waiting() == 1000)
        broker.release()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == list(range(1000))
    assert min(low) >= 0
    assert pool.available() == 2 * BATCH
    assert len(broker.values()) == 1002


def test_a_thousand_tasks_and_eight_threads_at_a_full_pool(made, broker) -> None:
    """Whatever they send: memory is granted in the order in which it was asked for, and everybody gets some."""
    with watchable_parts(smallest_chunk=64):
        producer = made(
            buffer_memory=2 * BATCH, batch_size=BATCH, max_request_size=BATCH, max_block_ms=600_000
        )
    pool = pool_of(producer)
    one_at_a_time = threading.RLock()  # or the order in which threads look would not be that of the pool
    asked: list[Any] = []
    granted: list[Any] = []

    def in_turn(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            with one_at_a_time:
                method(*args)

        return call

    def take_for(ticket: Any, size: int) -> None:
        WatchablePool.take_for(pool, ticket, size)
        if not ticket.done:
            asked.append(ticket)
            ticket.on_done(granted.append)

    pool.take_for = in_turn(take_for)
    pool.give_back = in_turn(pool.give_back)
    sizes = (10, 100, 300, 900)

    async def some(first: int, count: int) -> None:
        for number in range(first, first + count):
            await producer.send("t", b"x" * sizes[number % 4], partition=0)

    async def main() -> None:
        await _full(producer, broker)
        own = ThreadPoolExecutor(8)
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(own, asyncio.run, some(each, 25)) for each in range(8)]
        tasks = [asyncio.ensure_future(some(number, 1)) for number in range(1000)]
        await until(lambda: pool.waiting() == 1008)
        broker.release()
        await asyncio.gather(*threads, *tasks)
        own.shutdown()
        await producer.flush(SOON)

    asyncio.run(main())
    assert len(granted) >= 1008
    assert granted == asked
    assert (pool.available(), pool.waiting()) == (2 * BATCH, 0)
    assert len(broker.values()) == 2 + 8 * 25 + 1000


def test_time_outs(run, made, broker) -> None:
    producer = made.tight()

    async def main() -> None:
        await _full(producer, broker)
        producer._core.max_block = 0.05
        with pytest.raises(BufferExhaustedError):
            await producer.send("t", FILLS)
        with pytest.raises(KafkaTimeoutError, match="flush"):
            await producer.flush(0.05)
        delivery = producer._parts.accumulator
        with anyio.move_on_after(0.02) as scope:
            await producer.flush()
        assert scope.cancelled_caught
        assert delivery.incomplete_records() == 2

    run(main)


def test_an_abandoned_await_takes_its_follower_back(run, made, broker) -> None:
    producer = made()

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        delivery = await producer.send("t", b"v")
        result = delivery._answered_by()
        async with anyio.create_task_group() as others:
            others.start_soon(_wait, delivery)
            await until(lambda: len(result.followers.entries) == 1)
            for _ in range(50):
                with anyio.move_on_after(0.001):
                    await delivery
            assert len(result.followers.entries) == 1
            others.cancel_scope.cancel()
        assert result.followers.entries == []
        broker.release()
        assert (await delivery).offset == 0  # it is as good as before

    run(main)


async def _wait(delivery: Any) -> None:
    await delivery


def test_an_abandoned_await_of_a_bulk_leaves_nothing_behind(made, broker) -> None:
    producer = made()

    async def main() -> None:
        await producer.partitions_for("t")
        broker.hold = True
        bulk = await producer.send_many("t", [b"v"] * 10)
        result = bulk._pending[0][1][0] if bulk._pending else bulk._parts[0][0]
        for _ in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_await_bulk(bulk), 0.002)
        assert result.followers.entries == []
        broker.release()
        assert (await bulk).records == 10

    asyncio.run(main(), debug=True)


async def _await_bulk(bulk: Any) -> Any:
    return await bulk


# ---- loops that end


def test_an_outcome_for_a_loop_that_has_ended_is_dropped(made, broker, caplog) -> None:
    producer = made()

    async def main() -> Any:
        await producer.partitions_for("t")
        broker.hold = True
        delivery = await producer.send("t", b"v")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await_bulk(delivery), 0.01)
        return delivery

    delivery = asyncio.run(main())
    caplog.set_level(logging.DEBUG, "penstock")
    broker.release()
    assert delivery.result(SOON).offset == 0
    # The debug mode tells of slow turns; how busy the machine is, is not the question.
    told = [each for each in caplog.records if each.name != "asyncio"]
    assert not [each for each in told if each.levelno > logging.INFO]


def test_a_loop_that_is_closed_under_its_tasks_loses_no_memory(made, broker, caplog) -> None:
    """Nobody cancels its tasks: the memory that they get goes back all the same, and others get it."""
    producer = made.tight()
    pool = pool_of(producer)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_full(producer, broker))
    abandoned = [loop.create_task(producer.send("t", FILLS)) for _ in range(3)]
    delivery = loop.run_until_complete(_two_turns(loop, producer))
    assert pool.waiting() == 3
    loop.close()
    assert delivery is None
    broker.release()
    asyncio.run(producer.flush(SOON))
    wait_until(lambda: (pool.available(), pool.waiting()) == (2 * BATCH, 0))
    assert asyncio.run(producer.send_and_wait("t", b"after")).offset >= 0
    assert [each for each in caplog.records if each.name.startswith("penstock")] == []
    for task in abandoned:
        task._log_destroy_pending = False  # that it is pending is what the test is about
        task.get_coro().close()
    del abandoned
    gc.collect()


async def _two_turns(loop: Any, producer: AsyncProducer) -> None:
    await until(lambda: pool_of(producer).waiting() == 3)


def test_ctrl_c_ends_a_program_in_the_middle(broker) -> None:
    program = textwrap.dedent("""
        import asyncio, os, sys
        from penstock import AsyncProducer

        async def main():
            asyncio.get_running_loop().slow_callback_duration = 3600  # how busy the machine is, is not told
            async with AsyncProducer(bootstrap_servers=sys.argv[1], linger_ms=0, enable_idempotence=False) as producer:
                await producer.send_and_wait("t", b"first")
                deliveries = [await producer.send("t", b"v") for _ in range(100)]
                print("ready", flush=True)
                while True:
                    await producer.send_and_wait("t", b"more")

        try:
            asyncio.run(main(), debug=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    assert _interrupted(program, broker.address, "ready\n") == ("interrupted\n", "", 0)
    assert len(broker.values()) >= 101


def test_a_second_ctrl_c_ends_the_wait_for_the_records(broker) -> None:
    program = textwrap.dedent("""
        import asyncio, logging, sys, threading, time
        from penstock import AsyncProducer
        from penstock.aio import producer as module

        logging.basicConfig(format="LOG %(levelname)s %(message)s")
        module._AFTER_ERROR_SECONDS = 3600.0  # nothing but the second Ctrl-C ends the wait

        def tick(loop):  # a signal that comes just before a loop falls asleep is seen when it wakes up
            loop.call_later(0.01, tick, loop)

        def tell(loop, producer):  # on another thread, which Ctrl-C does not interrupt
            while not producer._core.closed:
                time.sleep(0.001)
            waits = threading.Event()
            loop.call_soon_threadsafe(waits.set)
            waits.wait()
            print("closing", flush=True)

        async def main():
            asyncio.get_running_loop().slow_callback_duration = 3600  # how busy the machine is, is not told
            async with AsyncProducer(bootstrap_servers=sys.argv[1], linger_ms=0, enable_idempotence=False) as producer:
                await producer.partitions_for("t")
                await producer.send("t", b"v")
                threading.Thread(target=tell, args=(asyncio.get_running_loop(), producer)).start()
                tick(asyncio.get_running_loop())
                print("ready", flush=True)
                await asyncio.sleep(3600)

        asyncio.run(main())
    """)
    broker.hold = True  # it never has an answer
    out, err, returncode = _interrupted(program, broker.address, "ready\n", "closing\n")
    assert (out, returncode) == ("", -signal.SIGINT)
    told = [line for line in err.splitlines() if line.startswith("LOG")]
    assert len(told) == 1, err
    assert told[0].startswith("LOG WARNING the producer was closed and gave up 1 record for topic 't':")
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def _interrupted(program: str, address: str, *lines: str) -> tuple[str, str, int]:
    """Run a program that is interrupted after each of these lines; what else it prints, and how it ends."""
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", program, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in lines:
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON)
    finally:
        process.kill()
        process.communicate()
    return out, err, process.returncode


# ---- memory

_COUNT = 100_000
_MEMORY = """
import asyncio, gc, sys
from penstock import AsyncProducer

LONG = {"linger_ms": 600_000, "request_timeout_ms": 600_000}

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

async def plain(future):
    await future

async def main(address, kind, count):
    producer = AsyncProducer(bootstrap_servers=address, enable_idempotence=False, **LONG)
    await producer.partitions_for("t")
    loop = asyncio.get_running_loop()
    gc.collect()
    before = resident()
    if kind == "plain":
        tasks = [asyncio.create_task(plain(loop.create_future())) for _ in range(count)]
    else:
        tasks = [asyncio.create_task(producer.send_and_wait("t", b"v" * 20)) for _ in range(count)]
    await asyncio.sleep(0.01)
    print(resident() - before, flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await producer.aclose(0)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.slow
def test_a_hundred_thousand_tasks_that_wait_take_little_more_than_asyncio_itself(broker) -> None:
    broker.hold = True

    def taken(kind: str) -> int:
        command = [sys.executable, "-c", _MEMORY, broker.address, kind, str(_COUNT)]
        # The debug mode keeps the stack of each task.
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
        return int(done.stdout)

    assert taken("ours") - taken("plain") < (32 + 40) * 1024 * 1024
