# SPDX-License-Identifier: Apache-2.0
"""`asynccontextmanager` for the block of a transaction: who writes `with` in place of `async with` is told so."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable

# Its name is private, but a block of its own kind can be made of nothing else that is also a decorator.
from contextlib import _AsyncGeneratorContextManager
from typing import ParamSpec

from penstock._other_clients import ONLY_ASYNC_WITH, names_of_other_clients

P = ParamSpec("P")


@names_of_other_clients(ONLY_ASYNC_WITH, whose="")
class AsyncTransactionBlock(_AsyncGeneratorContextManager[None]):
    """A block that `async with` enters."""


def async_block(function: Callable[P, AsyncGenerator[None, None]]) -> Callable[P, AsyncTransactionBlock]:
    """Decorates a generator as `contextlib.asynccontextmanager` does."""

    @functools.wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> AsyncTransactionBlock:
        return AsyncTransactionBlock(function, args, kwargs)

    return block
