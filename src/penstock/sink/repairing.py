# SPDX-License-Identifier: Apache-2.0
"""Writes again what is lost of a decided batch, and nothing else. No I/O.

When a driver stays away longer than the tasks' transactions live, a decided batch loses those that were not committed
yet. If the batch is replayed, its other tasks skip it, and those concerned write again.

Rules:
1. Only the tasks whose transactions are known to be aborted, and only what they had written: rows and checksum must be
   those of the first time. A replay that is cut into tasks in another way is refused.
2. The new decision replaces the old one, in one transaction of the log: there is never a moment without either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.control.complete import Completion
from penstock.errors import DecisionRefusedError
from penstock.sink.content import Comparison, Content, compared
from penstock.sink.effects import Effects, EndAll, Note
from penstock.sink.log.records import Decision
from penstock.sink.messages import BatchMessages, TaskHandle
from penstock.sink.plan import Repair
from penstock.sink.replaying import changed_error
from penstock.sink.settings import SinkSettings
from penstock.sink.writing import complain_of, lost_error, lost_handles


def plan_repair(decision: Decision, lost: Sequence[TaskHandle]) -> Repair:
    """What is to be written again.

    Raises:
        DecidedDataLostError: the tasks cannot be told apart.
    """
    tasks = _by_task(lost)
    if len(tasks) != len(lost) or min(tasks) < 0:
        raise lost_error(decision, lost)
    return Repair(decision.query_id, decision.batch_id, tasks)


def is_repair(settings: SinkSettings, batch: BatchMessages, undone: Decision | None) -> bool:
    """Whether a batch that was written repairs the one that is not done."""
    if undone is None or settings.on_lost != "repair":
        return False
    return (undone.query_id, undone.batch_id) == (batch.query_id, batch.batch_id)


def check_repair(settings: SinkSettings, batch: BatchMessages, undone: Decision) -> Effects[None]:
    """Make sure that what was written is what is lost, and that the other tasks have the rows of the first time.

    Raises:
        DecisionRefusedError: it is something else.
        RestoredCheckpointError: the whole batch has other rows.
        RunIdReusedError: likewise, of a run.
        DecisionInDoubtError: what is lost is not known.
    """
    handles = tuple(handle.transaction for handle in undone.handles)
    completions: list[Completion] = yield EndAll(handles, commit=True)
    complain_of(undone, completions)
    lost, written = _by_task(lost_handles(undone, completions)), _by_task(batch.handles)
    if lost != written:
        raise DecisionRefusedError(
            f"batch {batch.batch_id} of query {batch.query_id!r} cannot be repaired: what was written now is not what "
            f"is lost. {_difference(lost, written)} Nothing of it is visible or will be. Was the source changed, or "
            "the number of partitions? Write the lost records by other means, then run `penstock recover "
            "--accept-loss` for this sink"
        )
    before = undone.contents.get(batch.query_id)
    if before is None:
        return  # what the first release wrote down of a repair was not the whole
    comparison = compared(before, batch.content)
    if comparison is Comparison.OTHER_ROWS and settings.on_changed_rows == "skip":
        yield Note(
            f"the tasks of batch {batch.batch_id} of query {batch.query_id!r} that lost nothing come again with other "
            "rows: they are skipped, as onChangedRows=skip asks for"
        )
    elif comparison in (Comparison.OTHER_ROWS, Comparison.OTHER_NUMBER):
        raise changed_error(settings, batch, before, comparison)


def _by_task(handles: Iterable[TaskHandle]) -> dict[int, Content]:
    return {handle.task: handle.content for handle in handles}


def _difference(lost: dict[int, Content], written: dict[int, Content]) -> str:
    for task in sorted(lost.keys() | written.keys()):
        before, now = lost.get(task), written.get(task)
        if before is None:
            return f"Task {task} lost nothing and has written."
        if now is None:
            return f"Task {task} lost {before.rows} rows and has written none."
        if before != now:
            same = "as many with another checksum" if before.rows == now.rows else f"{now.rows}"
            return f"Task {task} lost {before.rows} rows and has written {same}."
    return ""
