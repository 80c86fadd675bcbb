# SPDX-License-Identifier: Apache-2.0
"""Transactions of an AsyncProducer, and what becomes of them when a call is cancelled at any place where it waits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import anyio
import pytest
from aio.support import SOON, CancelAt, cancel_here
from fix_patience import silent

from penstock import AsyncProducer, TopicPartition
from penstock.error_codes import ErrorCode
from penstock.errors import IllegalStateError, KafkaError, ProducerFencedError
from penstock.protocol.messages import INIT_PRODUCER_ID
from penstock.testing import FakeKafka, Fault
from penstock.testing.telemetry import FakeTelemetry


async def _transactional(kafka: FakeKafka) -> AsyncProducer:
    producer = AsyncProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="x", linger_ms=0)
    await producer.init_transactions()
    return producer


async def _fail_in_the_middle(producer: AsyncProducer) -> None:
    async with producer.transaction():
        await producer.send("t", b"aborted")
        raise ValueError("of the block")


def test_an_initialization_whose_first_answer_was_lost_is_in_doubt(run, kafka) -> None:
    async def main() -> None:
        kafka.add_fault(Fault(api=INIT_PRODUCER_ID, cut="after"))
        async with await _transactional(kafka) as producer:
            assert producer.initialization_in_doubt
            await producer.begin_transaction()
            await producer.detach_transaction()
            await producer.init_transactions("y")
            assert not producer.initialization_in_doubt

    run(main)


@pytest.mark.kafka(topics={"t": 1})
def test_transactions_commit_and_abort(run, kafka) -> None:
    async def main() -> None:
        async with await _transactional(kafka) as producer:
            async with producer.transaction():
                await producer.send("t", b"committed")
            with pytest.raises(ValueError, match="of the block"):
                await _fail_in_the_middle(producer)
            await producer.begin_transaction()
            await producer.send("t", b"dropped")
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send("t", b"with offsets")
            await producer.send_offsets_to_transaction({}, "g")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await producer.send("t", b"detached")
            handle = await producer.detach_transaction()
            assert handle.record_count == 1

    run(main)
    values = [record.value for record in kafka.records("t")]
    assert values == [b"committed", b"with offsets"]


@pytest.mark.kafka(topics={"t": 1})
def test_a_block_that_is_cancelled_is_aborted_first(run, kafka) -> None:
    async def main() -> None:
        async with await _transactional(kafka) as producer:
            with anyio.CancelScope() as scope:
                async with producer.transaction():
                    await producer.send("t", b"aborted")
                    await cancel_here(scope)
            assert scope.cancelled_caught
            async with producer.transaction():  # it goes on at once
                await producer.send("t", b"committed")

    run(main)
    assert [record.value for record in kafka.records("t")] == [b"committed"]


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.kafka(topics={"t": 1})
def test_a_cancellation_during_the_abort_after_an_error_is_raised_whatever_becomes_of_the_abort(
    kafka, fenced
) -> None:
    async def main() -> None:
        async with await _transactional(kafka) as producer:
            block = producer.transaction()
            await block.__aenter__()
            await producer.send_and_wait("t", b"aborted")
            if fenced:
                kafka.add_fault(Fault(api="EndTxn", error=ErrorCode.PRODUCER_FENCED))
            error = KafkaError("of the block")
            with silent(kafka) as answer:  # the answer must not come before it waits
                begun = CancelAt(block.__aexit__(KafkaError, error, None), 1, answer)
                with pytest.raises(asyncio.CancelledError) as caught:
                    await begun
            assert begun.was_cancelled
            cause = caught.value.__cause__
            if fenced:
                assert isinstance(cause, ProducerFencedError)
                cause = cause.__cause__
            assert cause is error

    asyncio.run(main(), debug=True)


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
@pytest.mark.kafka(topics={"t": 1})
def test_a_cancelled_end_of_a_transaction_raises_the_cancellation_also_if_it_fails(kafka, call) -> None:
    async def main() -> None:
        async with await _transactional(kafka) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"v")
            kafka.add_fault(Fault(api="EndTxn", error=ErrorCode.PRODUCER_FENCED))
            with silent(kafka) as answer, pytest.raises(asyncio.CancelledError):
                await CancelAt(getattr(producer, call)(), 1, answer)
            with pytest.raises(ProducerFencedError):  # the same call tells the outcome
                await getattr(producer, call)()

    asyncio.run(main(), debug=True)


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
@pytest.mark.kafka(topics={"t": 1})
def test_the_end_of_a_transaction_is_shielded(kafka, call) -> None:
    """A cancellation is raised when the outcome is known; the same call tells the outcome."""

    async def main() -> None:
        async with await _transactional(kafka) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"v")
            number = 1
            while True:
                try:
                    with silent(kafka) as answer:  # the answer must not come before it waits
                        begun = CancelAt(getattr(producer, call)(), number, answer)
                        await begun
                except asyncio.CancelledError:
                    manager = producer._parts.transactions
                    assert manager is not None
                    assert not manager.busy  # it has ended
                    await getattr(producer, call)()
                    number += 1
                    await producer.begin_transaction()
                    await producer.send_and_wait("t", b"v")
                else:
                    assert not begun.was_cancelled
                    break
            assert number > 1

    asyncio.run(main(), debug=True)


@pytest.mark.kafka(topics={"t": 1})
def test_a_send_that_was_cancelled_in_a_transaction_is_remembered(kafka) -> None:
    async def main() -> None:
        async with await _transactional(kafka) as producer:
            await producer.begin_transaction()
            begun = CancelAt(producer.send("unknown", b"v"), 1)
            with pytest.raises(asyncio.CancelledError):
                await begun
            with pytest.raises(Exception, match="refused"):
                await producer.commit_transaction()
            await producer.abort_transaction()

    asyncio.run(main(), debug=True)


# ---- calls that end with the cancellation


class _Suspended(NamedTuple):
    """A call, what is done before it, and what must hold after it was cancelled."""

    before: Callable[[AsyncProducer], Awaitable[object]]
    call: Callable[[AsyncProducer], Awaitable[object]]
    after: Callable[[AsyncProducer], Awaitable[object]]


_POSITIONS = {TopicPartition("t", 0): 7}
_AGAIN = "make that call again first"


async def _nothing(producer: AsyncProducer) -> None:
    """The producer is as it was made."""


async def _begun(producer: AsyncProducer) -> None:
    await producer.init_transactions()
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"first")


async def _send_and_detach(producer: AsyncProducer) -> None:
    await producer.send("t", b"second")
    await producer.detach_transaction()


async def _initialize_again(producer: AsyncProducer) -> None:
    with pytest.raises(IllegalStateError, match=_AGAIN):
        await producer.begin_transaction()
    await _begun(producer)
    await producer.commit_transaction()


async def _send_positions_again(producer: AsyncProducer) -> None:
    await producer.send_and_wait("t", b"second")
    with pytest.raises(IllegalStateError, match=_AGAIN):
        await producer.commit_transaction()
    with pytest.raises(IllegalStateError, match=_AGAIN):
        await producer.send_offsets_to_transaction({TopicPartition("t", 0): 8}, "g")
    await producer.send_offsets_to_transaction(_POSITIONS, "g")
    await producer.commit_transaction()


async def _abort_and_go_on(producer: AsyncProducer) -> None:
    await producer.abort_transaction()
    await producer.begin_transaction()
    await producer.commit_transaction()


async def _detach_again(producer: AsyncProducer) -> None:
    assert (await producer.detach_transaction()).record_count == 2


async def _ask_again(producer: AsyncProducer) -> None:
    assert isinstance(await producer.client_instance_id(SOON), uuid.UUID)


def _send_positions(producer: AsyncProducer) -> Awaitable[object]:
    return producer.send_offsets_to_transaction(_POSITIONS, "g")


SUSPENDED = {
    "init_transactions": _Suspended(
        _nothing, lambda producer: producer.init_transactions(), _initialize_again
    ),
    "send_offsets_to_transaction": _Suspended(_begun, _send_positions, _send_positions_again),
    "send_offsets_to_transaction, then abort": _Suspended(_begun, _send_positions, _abort_and_go_on),
    "detach_transaction": _Suspended(_begun, _send_and_detach, _detach_again),
    "detach_transaction, then commit": _Suspended(
        _begun, _send_and_detach, lambda producer: producer.commit_transaction()
    ),
    "detach_transaction, then abort": _Suspended(_begun, _send_and_detach, _abort_and_go_on),
    "client_instance_id": _Suspended(
        _nothing, lambda producer: producer.client_instance_id(SOON), _ask_again
    ),
}
# What a reader finds after the call was cancelled at one place, and the position of the group.
COMMITTED: dict[str, tuple[list[bytes], int | None]] = {
    "init_transactions": ([b"first"], None),
    "send_offsets_to_transaction": ([b"first", b"second"], 7),
    "detach_transaction, then commit": ([b"first", b"second"], None),
}


@pytest.mark.parametrize("name", SUSPENDED)
def test_a_call_can_be_cancelled_wherever_it_is_suspended(name) -> None:
    """Each place in turn, until the call ends without having come to another one."""
    before, call, after = SUSPENDED[name]

    async def walk(number: int) -> bool:
        with FakeKafka(topics={"t": 1}) as kafka:
            with kafka.locked() as cluster:
                cluster.telemetry = FakeTelemetry()
            options: dict[str, Any] = {"transactional_id": "x", "linger_ms": 0}
            server = kafka.bootstrap_servers
            async with AsyncExitStack() as stack:
                # The answer must not come before the call waits. A producer asks for its instance id by itself.
                if before is _nothing:
                    answer = stack.enter_context(silent(kafka))
                made = AsyncProducer(bootstrap_servers=server, **options)
                producer = await stack.enter_async_context(made)
                if before is not _nothing:
                    await before(producer)
                    answer = stack.enter_context(silent(kafka))
                begun = CancelAt(call(producer), number, answer)
                try:
                    await begun
                except asyncio.CancelledError:
                    assert begun.was_cancelled
                finally:
                    answer()
                if begun.was_cancelled:
                    await after(producer)
            values = [record.value for record in kafka.records("t")]
            with kafka.locked() as cluster:
                position = cluster.groups.offsets("g").get(TopicPartition("t", 0))
            if begun.was_cancelled:
                found = (values, None if position is None else position.offset)
                assert found == COMMITTED.get(name, ([], None))
            return begun.was_cancelled

    number = 1
    while asyncio.run(walk(number)):
        number += 1
    assert number > 1
