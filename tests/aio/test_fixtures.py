# SPDX-License-Identifier: Apache-2.0
"""The fixture `async_producer` in loops of every scope, and a producer of a whole module in the loop of each test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import uvloop

from penstock import AsyncProducer
from penstock.testing import FakeKafka

pytestmark = pytest.mark.kafka(topics={"t": 1})


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[FakeKafka, AsyncProducer]]:
    with FakeKafka(topics={"t": 1}) as kafka:
        producer = AsyncProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=0)
        yield kafka, producer
        loop = asyncio.new_event_loop()
        loop.run_until_complete(producer.aclose())
        loop.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(2))
async def test_in_the_loop_of_a_function(number, kafka, async_producer, lasting) -> None:
    assert asyncio.get_running_loop().get_debug()
    assert (await async_producer.send_and_wait("t", b"v")).offset == 0
    await lasting[1].send_and_wait("t", b"v")
    assert len(kafka.records("t")) == 1


@pytest.mark.asyncio(loop_scope="class")
@pytest.mark.parametrize("number", range(2))
class TestInTheLoopOfAClass:
    async def test_one(self, number, async_producer, lasting) -> None:
        assert (await async_producer.send_and_wait("t", b"v")).offset == 0
        await lasting[1].send_and_wait("t", b"v")

    async def test_another(self, number, async_producer, lasting) -> None:
        assert (await async_producer.send_and_wait("t", b"v")).offset == 0
        await lasting[1].send_and_wait("t", b"v")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(2))
async def test_in_the_loop_of_a_module(number, async_producer, lasting) -> None:
    assert (await async_producer.send_and_wait("t", b"v")).offset == 0
    await lasting[1].send_and_wait("t", b"v")


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("number", range(2))
async def test_in_the_loop_of_the_session(number, async_producer, lasting) -> None:
    assert (await async_producer.send_and_wait("t", b"v")).offset == 0
    await lasting[1].send_and_wait("t", b"v")


@pytest.mark.asyncio
@pytest.mark.kafka(security="SASL_SSL")
async def test_with_a_secured_cluster(kafka, async_producer) -> None:
    assert (await async_producer.send_and_wait("t", b"v")).offset == 0
    assert [record.value for record in kafka.records("t")] == [b"v"]


@pytest.mark.parametrize("run_in", [asyncio.run, uvloop.run])
def test_every_loop_of_these_tests_is_in_debug_mode(run_in) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert run_in(main())


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.anyio
async def test_with_the_plugin_of_anyio(async_producer, lasting) -> None:
    assert (await async_producer.send_and_wait("t", b"v")).offset == 0
    await lasting[1].send_and_wait("t", b"v")
