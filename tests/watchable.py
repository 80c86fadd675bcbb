# SPDX-License-Identifier: Apache-2.0
"""Parts of a producer whose methods can be replaced, one object at a time, also where they are compiled.

A compiled object has no attributes but its fields. One of a class that is derived in Python has, and compiled code
looks there first. What it calls without a look (`@cython.cfunc`) cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from penstock.producer import assembly
from penstock.producer.batch._accumulator_cy import RecordAccumulator
from penstock.producer.batch._buffer_pool_cy import SMALLEST_CHUNK, BufferPool
from penstock.producer.io import _sender_cy
from penstock.producer.io._outcomes_cy import Outcomes
from penstock.producer.io._sender_cy import Sender


class WatchableAccumulator(RecordAccumulator):
    """A RecordAccumulator whose methods can be replaced."""


class WatchablePool(BufferPool):
    """A BufferPool whose methods can be replaced."""


class WatchableOutcomes(Outcomes):
    """An Outcomes whose methods can be replaced."""


class WatchableSender(Sender):
    """A Sender whose methods can be replaced."""


@contextmanager
def watchable_parts(smallest_chunk: int = SMALLEST_CHUNK) -> Iterator[None]:
    """Let a producer that is put together in this block have such parts."""
    with (
        mock.patch.object(assembly, "BufferPool", partial(WatchablePool, smallest=smallest_chunk)),
        mock.patch.object(assembly, "RecordAccumulator", WatchableAccumulator),
        mock.patch.object(assembly, "Sender", WatchableSender),
        mock.patch.object(_sender_cy, "Outcomes", WatchableOutcomes),
    ):
        yield
