# SPDX-License-Identifier: Apache-2.0
"""What several tests of the producer for event loops need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio

from penstock import AsyncProducer
from penstock.errors import KafkaTimeoutError

SOON = 60.0  # seconds that a test that passes never needs, also on a machine that has no time for it
BATCH = 1024
# anyio's name of the backend, and its options.
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"debug": True}),
    "uvloop": ("asyncio", {"debug": True, "use_uvloop": True}),
    "trio": ("trio", {}),
}


class Made:
    """Producers of one test."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._producers: list[AsyncProducer] = []

    def __call__(self, **options: Any) -> AsyncProducer:
        options = {
            "bootstrap_servers": self._address,
            "linger_ms": 0,
            "max_block_ms": 60_000,
            "enable_idempotence": False,
        } | options
        self._producers.append(AsyncProducer(**options))
        return self._producers[-1]

    def tight(self, **options: Any) -> AsyncProducer:
        """A producer with memory for two batches, each of which a record of `FILLS` bytes fills."""
        return self(buffer_memory=2 * BATCH, batch_size=BATCH, max_request_size=BATCH, **options)

    def close(self, seconds: float) -> None:
        loop = asyncio.new_event_loop()
        for producer in self._producers:
            loop.run_until_complete(producer.aclose(seconds))
        loop.close()


FILLS = b"x" * 900


def pool_of(producer: AsyncProducer) -> Any:
    return producer._parts.accumulator.pool


async def cancel_here(scope: anyio.CancelScope) -> None:
    """The running task is cancelled now, and not when some time is over, which may be before it came so far."""
    scope.cancel()
    await anyio.sleep(SOON)


async def until(condition: Callable[[], object]) -> None:
    """Wait, in any loop, until something holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await anyio.sleep(0.001)


async def known(producer: AsyncProducer, topic: str = "t") -> None:
    """Let a topic be known, however short max.block.ms is and however busy the machine."""
    while True:
        try:
            await producer.partitions_for(topic)
        except KafkaTimeoutError:
            continue
        return


class CancelAt:
    """Awaits a coroutine and cancels it where it is suspended, at the suspension with the given number.

    Args:
        coroutine: what is awaited.
        number: where it is cancelled.
        on_suspended: called each time it is suspended.

    Attributes:
        suspensions: how often it was suspended.
        was_cancelled: whether it came so far.
    """

    def __init__(
        self, coroutine: Awaitable[Any], number: int, on_suspended: Callable[[], object] = lambda: None
    ) -> None:
        self._steps = coroutine.__await__()
        self._number = number
        self._on_suspended = on_suspended
        self.suspensions = 0
        self.was_cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            waits_for = next(self._steps)
            while True:
                self.suspensions += 1
                self._on_suspended()
                if self.suspensions == self._number:
                    self.was_cancelled = True
                    # As a task does it: the future is cancelled, and the coroutine told.
                    if waits_for is not None:
                        waits_for.cancel()
                    waits_for = self._steps.throw(asyncio.CancelledError())  # type: ignore[attr-defined]
                    continue
                yield waits_for
                waits_for = next(self._steps)
        except StopIteration as stop:
            return stop.value
