# SPDX-License-Identifier: Apache-2.0
"""Loops of every kind, and a broker that can hold its answers back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from aio.support import LOOPS, SOON, Made
from producer.fakes_sender import LoopbackBroker


@pytest.fixture(scope="module", autouse=True)
def debug_mode() -> Iterator[None]:
    """Every loop is in asyncio's debug mode, no matter which code makes it, and so are those of programs that a test
    starts.

    It finds calls from the wrong thread. For a module, so that fixtures of modules are made and ended in it, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONASYNCIODEBUG", "1")
        yield


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a coroutine function in a loop of its own, with asyncio's debug mode."""
    backend, options = LOOPS[request.param]

    def run_in_loop(main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return anyio.run(main, *args, backend=backend, backend_options=options)

    return run_in_loop


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    with LoopbackBroker(t=1, three=3) as running:
        yield running


@pytest.fixture
def made(broker: LoopbackBroker) -> Iterator[Made]:
    """Makes producers; those that a test has not closed are closed in a loop of their own."""
    making = Made(broker.address)
    yield making
    broker.release()
    making.close(SOON)
