# SPDX-License-Identifier: Apache-2.0
"""What a task tells the driver: the handle of its open transaction, or that there is none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import SinkError
from penstock.sink.content import IN_ORDER, NO_CHECKSUM, NO_ROWS, Content, added_up
from penstock.sink.fields import Fields, as_list, as_number, as_text
from penstock.sink.names import parse_task_id
from penstock.sink.plan import ExecutionStamp
from penstock.transaction_handle import TransactionHandle

_LARGEST_CHECKSUM = 2**256 - 1


class PartitionCount(NamedTuple):
    """How many records a task has written to one partition."""

    topic: str
    partition: int
    records: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.records} records"


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
