# SPDX-License-Identifier: Apache-2.0
"""What the driver's calls tell: how a batch was committed, and how a sink stands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.sink.driver_identity import Jvm, Life
from penstock.sink.messages import PartitionCount, TaskHandle
from penstock.sink.plan import Execution
from penstock.types import TopicPartition


class CommitReport(NamedTuple):
    """What became of a batch.

    Attributes:
        decided: whether this very call decided it; not where there was nothing to decide, or it had been done before.
        skipped: the batch had been decided before, and its tasks wrote nothing.
        handles: transactions that were committed.
        rows: rows in them.
        counts: records by partition, sorted.
    """

    decided: bool
    skipped: bool = False
    handles: int = 0
    rows: int = 0
    counts: tuple[PartitionCount, ...] = ()


class HandleState(NamedTuple):
    """A task's transaction of a decided batch, as its coordinator knows it.

    Attributes:
        state: open, ended, or gone; in words.
        is_open: it still waits for its end.
    """

    handle: TaskHandle
    state: str
    is_open: bool


class DecisionState(NamedTuple):
    """The last decision of a sink.

    Attributes:
        done: the log says that all of it is visible.
        handles: how each stands; empty when done.
        rows: rows in it.
    """

    execution: Execution
    query_id: str
    batch_id: int
    topic: str | None
    rows: int
    done: bool
    handles: tuple[HandleState, ...] = ()


class OpenTransaction(NamedTuple):
    """A task's transaction that is open, and in no decision.

    Attributes:
        started_ms: when its first record was written, by its coordinator's clock; -1 when that is not known.
        timeout_ms: how long after that it is aborted by itself.
        partitions: where readers of committed records wait for it.
    """

    transactional_id: str
    generation: int
    producer_id: int
    state: str
    started_ms: int = -1
    timeout_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()


class SinkState(NamedTuple):
    """A sink as its log and the brokers know it.

    Attributes:
        sink_id: its name, and run_id that of the run; None when the log does not tell.
        owner: the JVM that owns it, or None; planner_pid is that of its planner process.
        generation: how often it was taken over.
        last_decided: the last decided batch of the latest queries.
        decision: the last one.
        deciding: a decision is being written at this moment, or its driver died over it.
        left_over: transactions that wait for the next start or their time-out.
        unreadable: why the log does not tell how it stands; None when it does.
        life: whether the owner runs, as far as it can be told here.
    """

    sink_key: str
    sink_id: str | None
    run_id: str | None
    owner: Jvm | None
    planner_pid: int
    generation: int
    last_decided: Mapping[str, int] = MappingProxyType({})
    decision: DecisionState | None = None
    deciding: bool = False
    left_over: tuple[OpenTransaction, ...] = ()
    unreadable: str | None = None
    life: Life = Life.UNKNOWN

    @property
    def needs_roll_forward(self) -> bool:
        """Whether a decided batch may not be visible as a whole."""
        return self.decision is not None and not self.decision.done


class StrayRecord(NamedTuple):
    """A record in the decision topic that does not count: Penstock has not written it, or not like this.

    Attributes:
        partition: where it is, and offset.
        sink_key: the sink that its key names; None when it names none.
        reason: why it does not count.
    """

    partition: int
    offset: int
    sink_key: str | None
    reason: str


class LogState(NamedTuple):
    """The whole decision topic.

    Attributes:
        sinks: how each stands.
        strays: records that do not count, the first ones of each partition.
        stray_count: how many of them there are.
    """

    sinks: list[SinkState]
    strays: tuple[StrayRecord, ...] = ()
    stray_count: int = 0
