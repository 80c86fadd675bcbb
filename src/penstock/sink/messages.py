# SPDX-License-Identifier: Apache-2.0
"""What a driver and its tasks send each other: the plan of a batch, and what each task tells of its rows.

All of it is frozen, small and can be pickled.

The content of a task, or of a whole batch, identifies its rows, so that a replay can be compared with what was written.
A checksum is only comparable with one that was made in the same way, so each carries the number of its method. Where
two were made in different ways, or there is none, only the numbers of rows can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock._counted import counted
from penstock._identity import TransactionalIdentity
from penstock._json_fields import Fields, as_list, as_number, as_text
from penstock.errors import SinkError
from penstock.sink.identity import parse_task_id
from penstock.sink.settings import OnRestoredCheckpoint
from penstock.transaction_handle import TransactionHandle

# The methods, as they are in the log: their numbers never get another meaning.
NO_CHECKSUM: Final = 0
IN_ORDER: Final = (
    1  # of a task's columns, in the order of the rows; what the log has where it names no method
)
SUMMED: Final = (
    2  # the hashes of the rows added up modulo 2**64: independent of order, and can be added over tasks
)

_CHECKSUM_MASK: Final = 2**64 - 1


class Content(NamedTuple):
    """The rows of a task or of a batch, as far as it takes to recognise the same ones."""

    rows: int
    checksum: int = 0
    method: int = NO_CHECKSUM


NO_ROWS: Final = Content(0, 0, SUMMED)


def added_up(contents: Iterable[Content]) -> Content:
    """The content of all; without a checksum where one of them has none that can be added."""
    total = NO_ROWS
    for content in contents:
        if content.rows == 0:
            continue
        rows = total.rows + content.rows
        if content.method == SUMMED == total.method:
            total = Content(rows, (total.checksum + content.checksum) & _CHECKSUM_MASK, SUMMED)
        else:
            total = Content(rows)
    return total


def content_from_json(values: Any) -> Content:
    """Read what a Content is in JSON: a list of its numbers; a later release may have added some.

    Raises:
        ValueError: it is something else.
    """
    rows, checksum, method = as_list(values, "contents")[: len(Content._fields)]
    return Content(
        as_number(rows, "contents", 0),
        as_number(checksum, "contents", 0, _CHECKSUM_MASK),
        as_number(method, "contents", 0),
    )


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
    """What the tasks send back to the driver's commit, which runs in another process than its planning.

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
        topics: the settings' topic with which that batch was decided, for each query id for which the log tells it.
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
    topics: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def sink_key(self) -> str:
        return self.stamp.sink_key

    @property
    def execution(self) -> Execution:
        """Which run of a batch this is."""
        return self.stamp.execution


_LARGEST_CHECKSUM = 2**256 - 1


class PartitionCount(NamedTuple):
    """How many records a task has written to one partition."""

    topic: str
    partition: int
    records: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {counted(self.records, 'record')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandle:
    """One task's open transaction, and what is in it.

    Attributes:
        transaction: enough to end it from anywhere.
        task: the index of the Spark partition that was written.
        rows: how many rows it took.
        checksum: of the rows, so that a replay can be compared.
        method: how the checksum was made, see `content`.
        counts: records by partition, named when the transaction turns out to be lost.
    """

    transaction: TransactionHandle
    task: int = -1
    rows: int = 0
    checksum: int = 0
    counts: tuple[PartitionCount, ...] = ()
    method: int = IN_ORDER

    @property
    def content(self) -> Content:
        """What a replay is compared with."""
        return Content(self.rows, self.checksum, self.method)

    def to_dict(self) -> dict[str, Any]:
        """The handle as values of JSON."""
        return {
            "transaction": json.loads(self.transaction.to_json()),
            "task": self.task,
            "rows": self.rows,
            "checksum": self.checksum,
            "method": self.method,
            "counts": [list(count) for count in self.counts],
        }

    @classmethod
    def from_dict(cls, values: Any) -> TaskHandle:
        """Read what `to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            fields = Fields(values)
            return cls(
                transaction=TransactionHandle.from_json(json.dumps(fields.value("transaction"))),
                task=fields.number("task"),
                rows=fields.number("rows", 0),
                checksum=fields.number("checksum", 0, _LARGEST_CHECKSUM),
                method=fields.number("method") if fields.has("method") else IN_ORDER,
                counts=tuple(map(_count, fields.array("counts"))),
            )
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a task's handle: {error}") from error


def _count(values: Any) -> PartitionCount:
    topic, partition, records = as_list(values, "counts", 3)
    return PartitionCount(
        as_text(topic, "counts"), as_number(partition, "counts", 0), as_number(records, "counts", 0)
    )


@dataclass(frozen=True, slots=True)
class Written:
    """The task wrote rows, and left its transaction open."""

    stamp: ExecutionStamp
    query_id: str
    batch_id: int
    handle: TaskHandle


@dataclass(frozen=True, slots=True)
class Skipped:
    """The batch was decided before: the task counted its rows and wrote none; `method` is that of the checksum."""

    stamp: ExecutionStamp
    query_id: str
    batch_id: int
    rows: int = 0
    checksum: int = 0
    method: int = NO_CHECKSUM

    @property
    def content(self) -> Content:
        """What is compared with the decision."""
        return Content(self.rows, self.checksum, self.method)


@dataclass(frozen=True, slots=True)
class Nothing:
    """The task had no row, so that there is no transaction."""

    stamp: ExecutionStamp
    query_id: str
    batch_id: int


Message = Written | Skipped | Nothing


class BatchMessages(NamedTuple):
    """The messages of one execution, sorted out.

    Attributes:
        stamp: None when no task had anything to say.
        skipped: how many tasks only counted their rows.
        content: of all rows, those that were only counted included.
    """

    stamp: ExecutionStamp | None
    query_id: str
    batch_id: int
    handles: tuple[TaskHandle, ...]
    skipped: int
    content: Content = NO_ROWS


def sort_out(messages: Iterable[Message | None], sink_key: str, batch_id: int) -> BatchMessages:
    """Check that messages belong together, and take out the handles; None stands for a task that failed.

    Raises:
        SinkError: they come from different sinks, executions, queries or batches, or are something else.
    """
    given: Sequence[Message] = [message for message in messages if message is not None]
    kinds = {type(message) for message in given} - {
        Written,
        Skipped,
        Nothing,
    }  # what was unpickled may be anything
    if kinds:
        raise SinkError(
            f"{kinds.pop().__name__} is no message of a task, or of another version of Penstock: do the executors "
            "have the version of the driver? Nothing was decided"
        )
    if not given:
        return BatchMessages(None, "", batch_id, (), 0)
    first = given[0]
    for message in given:
        if (message.stamp, message.query_id, message.batch_id) != (
            first.stamp,
            first.query_id,
            first.batch_id,
        ):
            raise SinkError(
                f"messages of different executions in one batch: {_origin(first)} and {_origin(message)}; nothing was "
                "decided"
            )
    if first.stamp.sink_key != sink_key or first.batch_id != batch_id:
        raise SinkError(
            f"the messages are those of {_origin(first)}, but batch {batch_id} of sink key {sink_key} is to be ended; "
            "nothing was decided"
        )
    handles = tuple(message.handle for message in given if isinstance(message, Written))
    for handle in handles:
        name = handle.transaction.transactional_id
        parts = parse_task_id(name)
        if (
            parts is None or parts.sink_key != sink_key
        ):  # the decision could not be read: it must name its own only
            raise SinkError(
                f"a task's message names the transaction of {name!r}, which is not one of this sink's own "
                f"({sink_key}); nothing was decided"
            )
    skipped = [message for message in given if isinstance(message, Skipped)]
    content = added_up([*(handle.content for handle in handles), *(message.content for message in skipped)])
    return BatchMessages(first.stamp, first.query_id, batch_id, handles, len(skipped), content)


def _origin(message: Message) -> str:
    return f"batch {message.batch_id} of query {message.query_id!r}, execution {message.stamp.execution}"
