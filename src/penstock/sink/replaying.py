# SPDX-License-Identifier: Apache-2.0
"""A batch that was decided comes again: compares its rows with those of the decision. No I/O.

After a crash Spark replays the last batch with the same rows, and they are in the topic already. But where the
checkpoint is older than the log (a copy was restored, or its last files were lost), Spark plans a batch with the same
number anew, and its rows may be others. To skip these would be to lose them.

Rules:
1. Another number of rows is never skipped.
2. As many rows with another checksum are skipped only if the user said so, and never in silence.
3. With onRestoredCheckpoint=rewrite the tasks write, because they cannot know what the rows of all of them add up to.
   The driver then decides the batch once more, or aborts what was written if it is the same.
4. What a decision does not tell cannot be compared: the batch is skipped, with a warning.
"""

from __future__ import annotations

from penstock.control.complete import Completion
from penstock.errors import RestoredCheckpointError, RunIdReusedError, SinkSupersededError
from penstock.sink.content import Comparison, Content, compared
from penstock.sink.effects import Effects, EndAll, Note
from penstock.sink.log.records import Decision
from penstock.sink.log.view import SinkView
from penstock.sink.messages import BatchMessages
from penstock.sink.settings import SinkSettings

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
    before = decision.contents.get(batch.query_id)
    if before is None:
        yield Note(
            f"{_name(batch)} was written before, and is skipped. Its decision was made by an earlier release and does "
            "not tell its rows, so that nobody can say whether these are the same"
        )
        return
    comparison = compared(before, batch.content)
    if comparison in _SAME:
        return
    if comparison is Comparison.OTHER_ROWS and settings.on_changed_rows == "skip":
        yield Note(_skipped(batch))
        return
    raise changed_error(settings, batch, before, comparison)


def is_written_again(settings: SinkSettings, batch: BatchMessages, view: SinkView) -> Effects[bool]:
    """Whether a batch that was written is to be decided; if that was done before, what its tasks wrote is aborted.

    Raises:
        RestoredCheckpointError: it was, with other rows, and is not to be rewritten.
        RunIdReusedError: likewise, of a run.
    """
    decision = _try_decision(batch, view)
    if decision is None:
        return True  # it comes for the first time
    before = decision.contents.get(batch.query_id, batch.content)
    comparison = compared(before, batch.content)
    is_skipped = comparison is Comparison.OTHER_ROWS and settings.on_changed_rows == "skip"
    if comparison not in _SAME and not is_skipped:
        if settings.on_restored_checkpoint != "rewrite":
            yield from _abort(batch)
            raise changed_error(settings, batch, before, comparison)
        now = f"other rows ({batch.content.rows}): these are written as well" if batch.handles else "no rows"
        yield Note(
            f"{_name(batch)} was written before ({_rows(before.rows)}) and comes again with {now}, as "
            "onRestoredCheckpoint=rewrite asks for"
        )
        return bool(batch.handles)
    if is_skipped:
        yield Note(_skipped(batch))
    yield from _abort(batch)
    return False


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


def _skipped(batch: BatchMessages) -> str:
    return (
        f"{_name(batch)} was written before and comes again with as many rows ({batch.content.rows}) but others: it is "
        "skipped, as onChangedRows=skip asks for. What was written the first time stays"
    )


def _name(batch: BatchMessages) -> str:
    return f"batch {batch.batch_id} of query {batch.query_id!r}"


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
