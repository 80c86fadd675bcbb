# SPDX-License-Identifier: Apache-2.0
"""A batch that was decided comes again: it is skipped, refused, written once more, or repaired. No I/O.

After a crash Spark replays the last batch with the same rows, and they are in the topic already. But where the
checkpoint is older than the log (a copy was restored, or its last files were lost), Spark plans a batch with the same
number anew, and its rows may be others. To skip these would be to lose them.

Rules:
1. Another number of rows is never skipped.
2. As many rows with another checksum are skipped only if the user said so, and never in silence.
3. With onRestoredCheckpoint=rewrite the tasks write, because they cannot know what the rows of all of them add up to.
   The driver then decides the batch once more, or aborts what was written if it is the same.
4. What a decision does not tell cannot be compared: the batch is skipped.
5. A batch that was decided for another topic is not skipped either. The checksum is over the column `topic`, so it is
   what decides where the rows name their topics.
6. A batch of a streaming query that is skipped is told once, on the driver, with where it is.

A decided batch loses the transactions that are not committed when its driver stays away longer than they live. With
onLost=repair a replay of the batch writes them again, and nothing else.

Rules of a repair:
1. Only those tasks write whose transactions are known to be aborted, and only what they had written before: rows and
   checksum must be the same. A replay that is cut into tasks in another way is refused.
2. The new decision replaces the old one in one transaction of the log: there is never a moment without either.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock._counted import counted
from penstock.control.complete import Completion
from penstock.errors import (
    DecisionRefusedError,
    RestoredCheckpointError,
    RunIdReusedError,
    SinkSupersededError,
)
from penstock.sink.decision import complain_of, lost_error, lost_handles
from penstock.sink.effects import Effects, EndAll, Note
from penstock.sink.log.records import Decision
from penstock.sink.log.view import SinkView
from penstock.sink.messages import NO_CHECKSUM, BatchMessages, Content, Repair, TaskHandle
from penstock.sink.settings import SinkSettings, topic_in_words
from penstock.sink.task import elsewhere_error, goes_elsewhere

_LAST_MS: Final = 253_402_300_800_000  # the end of year 9999: a record may name any time


class Comparison(enum.Enum):
    """What a replay turns out to be."""

    SAME = "as many rows with the same checksum"
    SAME_NUMBER = "as many rows, and nothing else to compare"
    OTHER_ROWS = "as many rows with another checksum"
    OTHER_NUMBER = "another number of rows"
    OTHER_TOPIC = "written to another topic"


def compared(before: Content, now: Content) -> Comparison:
    """How the rows of a replay compare with those that were written."""
    if before.rows != now.rows:
        return Comparison.OTHER_NUMBER
    if before.method != now.method or before.method == NO_CHECKSUM:
        return Comparison.SAME_NUMBER
    return Comparison.SAME if before.checksum == now.checksum else Comparison.OTHER_ROWS


_SAME = (Comparison.SAME, Comparison.SAME_NUMBER)


def check_skipped(settings: SinkSettings, batch: BatchMessages, view: SinkView) -> Effects[None]:
    """Make sure that a batch whose tasks wrote nothing is one that needs not be written.

    Raises:
        RestoredCheckpointError: its rows are not those that were decided.
        RunIdReusedError: likewise, of a run.
        SinkSupersededError: others have been decided since.
    """
    decision = _try_decision(batch, view)
    if decision is None:
        raise SinkSupersededError(
            f"{_name(batch)} was skipped because it had been decided, and meanwhile another batch of the query has "
            "been: another driver works with the same sink. Nothing was written: stop one of the two"
        )
    comparison = _comparison(settings, batch, decision)
    if not _may_be_skipped(settings, comparison):
        raise _refusal(settings, batch, decision, comparison)
    yield from _tell_of_skipped(settings, batch, decision, comparison)


def is_written_again(settings: SinkSettings, batch: BatchMessages, view: SinkView) -> Effects[bool]:
    """Whether a batch that was written is to be decided; if that was done before, what its tasks wrote is aborted.

    Raises:
        RestoredCheckpointError: it was, with other rows, and is not to be rewritten.
        RunIdReusedError: likewise, of a run.
    """
    decision = _try_decision(batch, view)
    if decision is None:
        return True  # it comes for the first time
    comparison = _comparison(settings, batch, decision)
    if not _may_be_skipped(settings, comparison):
        if settings.on_restored_checkpoint != "rewrite":
            yield from _abort(batch)
            raise _refusal(settings, batch, decision, comparison)
        what = (
            f"rows for {topic_in_words(settings.topic)}"
            if comparison is Comparison.OTHER_TOPIC
            else "other rows"
        )
        now = f"{what} ({batch.content.rows}): these are written as well" if batch.handles else "no rows"
        yield Note(
            f"{_name(batch)} {_written(batch, decision)} and comes again with {now}, as onRestoredCheckpoint=rewrite "
            "asks for"
        )
        return bool(batch.handles)
    yield from _tell_of_skipped(settings, batch, decision, comparison)
    yield from _abort(batch)
    return False


def _comparison(settings: SinkSettings, batch: BatchMessages, decision: Decision) -> Comparison:
    if goes_elsewhere(decision.topics, batch.query_id, settings.topic):
        return Comparison.OTHER_TOPIC
    return compared(decision.contents.get(batch.query_id, batch.content), batch.content)


def _may_be_skipped(settings: SinkSettings, comparison: Comparison) -> bool:
    return comparison in _SAME or (comparison is Comparison.OTHER_ROWS and settings.on_changed_rows == "skip")


def _refusal(
    settings: SinkSettings, batch: BatchMessages, decision: Decision, comparison: Comparison
) -> RestoredCheckpointError | RunIdReusedError:
    if comparison is Comparison.OTHER_TOPIC:
        before = decision.topics[batch.query_id]
        return elsewhere_error(batch.query_id, batch.batch_id, before, settings.topic)
    return changed_error(settings, batch, decision.contents[batch.query_id], comparison)


def _tell_of_skipped(
    settings: SinkSettings, batch: BatchMessages, decision: Decision, comparison: Comparison
) -> Effects[None]:
    """Say once that a batch is skipped, and where it is; of a run that is the same its writer says so."""
    if batch.query_id not in decision.contents:
        why = (
            "is skipped. Its decision was made by an earlier release and does not tell its rows, so that nobody can "
            "say whether these are the same"
        )
    elif comparison is Comparison.OTHER_ROWS:
        why = (
            f"comes again with as many rows ({batch.content.rows}) but others: it is skipped, as onChangedRows=skip "
            "asks for. What was written the first time stays"
        )
    elif settings.is_batch_job:
        return
    else:
        why = "comes again with the same rows, as after a crash: it is skipped"
    yield Note(f"{_name(batch)} {_written(batch, decision)} and {why}")


def _written(batch: BatchMessages, decision: Decision) -> str:
    """What the log tells of a batch; who decided it, and when, only while no other query of the sink has decided."""
    facts = []
    if batch.query_id in decision.contents:
        facts.append(_rows(decision.contents[batch.query_id].rows))
    if batch.query_id in decision.topics:
        facts.append(f"to {topic_in_words(decision.topics[batch.query_id])}")
    if decision.query_id == batch.query_id:
        facts.append(f"by execution {decision.execution}")
        if 0 <= decision.written_ms < _LAST_MS:
            at = datetime.fromtimestamp(decision.written_ms / 1000, UTC)
            facts.append(f"at {at:%Y-%m-%d %H:%M:%S} UTC")
    return f"was written before ({', '.join(facts)})" if facts else "was written before"


def _abort(batch: BatchMessages) -> Effects[None]:
    if not batch.handles:
        return
    ended: list[Completion] = yield EndAll(tuple(each.transaction for each in batch.handles), commit=False)
    for completion in ended:
        if completion.error is not None:
            yield Note(f"a transaction of {_name(batch)} is left to the next start: {completion.error}")


def changed_error(
    settings: SinkSettings, batch: BatchMessages, before: Content, comparison: Comparison
) -> RestoredCheckpointError | RunIdReusedError:
    """What is said of a batch that comes again with other rows."""
    found, causes, way_out = _difference(before, batch.content, comparison)
    if settings.is_batch_job:
        causes.append("the source has changed since, or this is another job")
        return RunIdReusedError(
            f"{settings.name} {found}: {', or '.join(causes)}. Nothing was written: a run id stands for one write. "
            f"{way_out}If these rows are to be written as well, use another runId; jobs without a sinkId share their "
            "run ids"
        )
    causes.append(
        "the checkpoint is older than what is in the topic (a copy was restored, or its last files were lost), so that "
        "Spark has planned the batch anew"
    )
    return RestoredCheckpointError(
        f"{_name(batch)} {found}: {', or '.join(causes)}. Nothing was written. {way_out}To mend the checkpoint, go on "
        "with the newest one; or set onRestoredCheckpoint=rewrite, and the batch is written a second time, with the "
        "rows that it has now"
    )


def _difference(before: Content, now: Content, comparison: Comparison) -> tuple[str, list[str], str]:
    """What is different, why that may be so, and what else can be done about it."""
    if comparison is Comparison.OTHER_NUMBER:
        return f"was written before with {_rows(before.rows)}, and comes again with {_rows(now.rows)}", [], ""
    return (
        f"was written before, and comes again with as many rows ({now.rows}) but others, as their checksum differs",
        ["the query gives other values each time (rand(), uuid(), a function of your own)"],
        "If it is the query, set onChangedRows=skip, and what was written the first time stays. ",
    )


def _try_decision(batch: BatchMessages, view: SinkView) -> Decision | None:
    """The decision that has the batch as the last one of its query."""
    if view.decision is None or view.decision.last_decided.get(batch.query_id) != batch.batch_id:
        return None
    return view.decision


def _name(batch: BatchMessages) -> str:
    return f"batch {batch.batch_id} of query {batch.query_id!r}"


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


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
            f"is lost. {_unlike(lost, written)} Nothing of it is visible or will be. Was the source changed, or "
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


def _unlike(lost: dict[int, Content], written: dict[int, Content]) -> str:
    for task in sorted(lost.keys() | written.keys()):
        before, now = lost.get(task), written.get(task)
        if before is None:
            return f"Task {task} lost nothing and has written."
        if now is None:
            return f"Task {task} lost {counted(before.rows, 'row')} and has written none."
        if before != now:
            same = "as many with another checksum" if before.rows == now.rows else f"{now.rows}"
            return f"Task {task} lost {counted(before.rows, 'row')} and has written {same}."
    return ""
