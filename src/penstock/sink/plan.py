# SPDX-License-Identifier: Apache-2.0
"""What a driver finds out before a batch, and hands to its tasks: frozen, small, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock._identity import TransactionalIdentity
from penstock.sink.content import Content
from penstock.sink.settings import OnRestoredCheckpoint


class Execution(NamedTuple):
    """One run of one batch; later ones are greater, and none has the number of another.

    Attributes:
        generation: how often the sink had been taken over.
        number: the epoch of the coordinator's id, under the producer id that the generation began with. Coordinators
            give each out once, and greater ones later, whichever process asks.
    """

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"


@dataclass(frozen=True, slots=True)
class ExecutionStamp:
    """What travels back from the tasks to the driver's commit, which runs in another process than its planning.

    Attributes:
        coordinator: the identity with which this execution, and no other, may decide.
    """

    sink_key: str
    execution: Execution
    coordinator: TransactionalIdentity


@dataclass(frozen=True, slots=True)
class Repair:
    """Of a decided batch the tasks whose transactions are lost, to be written again with the same content."""

    query_id: str
    batch_id: int
    tasks: Mapping[int, Content]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One execution, as its tasks need to know it.

    Attributes:
        last_decided: the last batch that was decided, for each of the latest query ids.
        compared: the query ids for which the log tells the rows of that batch.
        forgotten: how many query ids the log had to forget.
        transaction_timeout_ms: what the tasks' producers use as transaction.timeout.ms; the brokers allow it.
        topic: as in the settings.
        repair: a batch that is to be repaired before anything else is written.
        cluster: which one, as a process may write to two under the same name.
    """

    stamp: ExecutionStamp
    last_decided: Mapping[str, int]
    transaction_timeout_ms: int
    on_restored_checkpoint: OnRestoredCheckpoint
    topic: str | None
    cluster: str = ""
    repair: Repair | None = None
    compared: frozenset[str] = frozenset()
    forgotten: int = 0

    @property
    def sink_key(self) -> str:
        """The sink's key."""
        return self.stamp.sink_key

    @property
    def execution(self) -> Execution:
        """Which run of a batch this is."""
        return self.stamp.execution
