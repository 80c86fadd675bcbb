# SPDX-License-Identifier: Apache-2.0
"""How a mistake is planted: a part of the producer is found by its name, and one of its methods is replaced.

A bug says what it changes by a short name. `PLACES` says where that part is: the one line to edit when a class moves.
Compiled classes cannot be changed: a bug in one of them needs a process that runs the Python sources (PENSTOCK_PURE).

A bug must fail by what it does to the producer. One that fails because its own code no longer fits, for example after a
field was renamed, would pass for found; it raises `Misfit` instead.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

from penstock import _compiled

# Where each part is that bugs change, or look at.
PLACES = {
    # event loops
    "AsyncProducer's module": "penstock.aio.producer",
    "LoopCallback": "penstock.aio.callbacks.LoopCallback",
    "loops' module": "penstock._loops",
    # network
    "connection's module": "penstock.network._connection_cy",
    "ConnectionPool": "penstock.network._pool_cy.ConnectionPool",
    "pool's module": "penstock.network._pool_cy",
    "ConnectionStates": "penstock.network.states.ConnectionStates",
    "InFlightRequests": "penstock.network._connection_cy.InFlightRequests",
    "MetadataFetcher": "penstock.network.metadata_fetch.MetadataFetcher",
    "NetworkClient": "penstock.network._client_cy.NetworkClient",
    "Wakeup": "penstock.network._sockets_cy.Wakeup",
    # protocol, records
    "BatchWriter": "penstock.records._batch_cy.BatchWriter",
    "NodeApiVersions": "penstock.protocol.requests.NodeApiVersions",
    "ProduceRequest": "penstock.protocol._produce_cy.ProduceRequest",
    # producer
    "ANONYMOUS": "penstock.producer.batch._batch_cy.ANONYMOUS",
    "Action": "penstock.producer.guarantee.response_policy.Action",
    "Appender": "penstock.producer.batch._appending_cy.Appender",
    "Batch": "penstock.producer.batch._batch_cy.Batch",
    "BatchState": "penstock.producer.batch._batch_cy.BatchState",
    "BatchResult": "penstock.producer.batch._delivery_cy.BatchResult",
    "BufferPool": "penstock.producer.batch._buffer_pool_cy.BufferPool",
    "Drainer": "penstock.producer.io._drain_cy.Drainer",
    "FastPath": "penstock.producer.send._send_cy.FastPath",
    "Followers": "penstock.producer.batch._followers_cy.Followers",
    "IdempotentGate": "penstock.producer.guarantee.idempotent.IdempotentGate",
    "Numbering": "penstock.producer.guarantee._sequences_cy.Numbering",
    "OpenGate": "penstock.producer.guarantee.gate.OpenGate",
    "Operation": "penstock.producer.guarantee.transactions.operation.Operation",
    "Outcomes": "penstock.producer.io._outcomes_cy.Outcomes",
    "PartitionQueue": "penstock.producer.batch._queue_cy.PartitionQueue",
    "Placement": "penstock.producer.batch._partitioner_cy.Placement",
    "Producer": "penstock.producer.producer.Producer",
    "ProducerMetadata": "penstock.producer.metadata.metadata.ProducerMetadata",
    "RecordAccumulator": "penstock.producer.batch._accumulator_cy.RecordAccumulator",
    "RequestQueue": "penstock.producer.guarantee.transactions.request_queue.RequestQueue",
    "RefreshSchedule": "penstock.producer.metadata.schedule.RefreshSchedule",
    "Retries": "penstock.producer.io._outcomes_cy.Retries",
    "Sealer": "penstock.producer.batch._sealing_cy.Sealer",
    "Sender": "penstock.producer.io._sender_cy.Sender",
    "SequenceBook": "penstock.producer.guarantee._sequences_cy.SequenceBook",
    "metadata's module": "penstock.producer.metadata.metadata",
    "sealer's module": "penstock.producer.batch._sealing_cy",
}

# What Python raises where a bug's own code does not fit any more.
_MISFITS = (AttributeError, ImportError, NameError, TypeError)


class Misfit(Exception):
    """A bug cannot be planted as it is written: what it changes, or looks at, is not what it was."""


def find(place: str) -> Any:
    """What the short name stands for.

    Raises:
        Misfit: it is not where PLACES says.
    """
    try:
        return pkgutil.resolve_name(PLACES[place])
    except (ImportError, AttributeError) as error:
        raise Misfit(
            f"planted bugs change {place}, which is not at {PLACES[place]}: {error}. Say in PLACES "
            f"({__file__}) where it is now."
        ) from error


class Change(NamedTuple):
    """One method or function that a bug replaces; `replacement` is called with the original one first."""

    place: str
    name: str
    replacement: Callable[..., Any]

    def original(self) -> Any:
        """What it replaces.

        Raises:
            Misfit: it is not there.
        """
        owner = find(self.place)
        try:
            return getattr(owner, self.name)
        except AttributeError as error:
            raise Misfit(
                f"planted bugs change {self.name} of {self.place} ({PLACES[self.place]}), which has none: let the bugs "
                "follow it to where it is now"
            ) from error

    @property
    def is_compiled(self) -> bool:
        """Whether what it changes is compiled in this process: then it cannot be changed, or nobody would notice."""
        owner = find(self.place)
        if isinstance(owner, ModuleType):
            return _runs_compiled(owner.__name__)
        for cls in owner.__mro__:
            if self.name in vars(cls):
                return _runs_compiled(cls.__module__)
        return any(
            _runs_compiled(cls.__module__) for cls in owner.__mro__
        )  # functions of C are not to be seen

    def planted(self, misfits: list[BaseException]) -> Any:
        """Replaces it for as long as the context lasts; notes where the replacement did not fit."""
        original, replacement = self.original(), self.replacement

        @functools.wraps(original)
        def changed(*args: Any, **options: Any) -> Any:
            try:
                return replacement(original, *args, **options)
            except _MISFITS as error:
                if _raised_by_bug(error, replacement):
                    misfits.append(error)
                raise

        return mock.patch.object(find(self.place), self.name, changed)


def _runs_compiled(module: str) -> bool:
    return _compiled.is_hot(module) and _compiled.is_compiled(module)


def _raised_by_bug(error: BaseException, replacement: Callable[..., Any]) -> bool:
    """Whether an error comes from the bug's own lines, not from the producer that fails because of them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    own = (__name__, replacement.__module__)
    return trace is not None and trace.tb_frame.f_globals.get("__name__") in own


Changes = tuple[Change, ...]


def around(place: str, name: str, replacement: Callable[..., Any]) -> Changes:
    """Replace a method, or a function of a module, by one that gets the original first."""
    return (Change(place, name, replacement),)


class Bug(NamedTuple):
    """A mistake; the function that makes its changes is named like it."""

    plant: Callable[[], Changes]
    awaited: bool = False  # only tasks in event loops come across it

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", "-")

    @property
    def needs_sources(self) -> bool:
        """Whether this process cannot plant it, because it runs compiled what the Python sources must run."""
        return any(change.is_compiled for change in self.plant())

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the block with it.

        Raises:
            Misfit: it does not fit the producer as that is now.
        """
        misfits: list[BaseException] = []
        with ExitStack() as stack:
            for change in self.plant():
                stack.enter_context(change.planted(misfits))
            yield
        if misfits:
            raise Misfit(f"the planted bug {self.name} does not fit any more: {misfits[0]!r}") from misfits[0]
