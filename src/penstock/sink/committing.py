# SPDX-License-Identifier: Apache-2.0
"""After a batch: decide it, make it visible, and record in the log that it is done. No I/O.

Rules:
1. The identity with which a batch is decided carries one transaction. A call that finds it used reads the log, and
   finishes the decision if it is there.
2. The decision is written first, then the handles are described, then it is committed: if the driver stalls in between,
   the coordinator's short time-out takes the decision away, so that it cannot come late.
3. No decision unless every handle will live long enough for a new driver to finish it. Brokers' times only.
4. Only a plain yes to the commit of the decision goes on. After anything else nothing is known, and nothing is touched.
5. The topics are asked for after all else: what happens to them before the decision is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock._identity import TransactionalIdentity
from penstock.control.transactions import TransactionDescription
from penstock.errors import (
    DecisionInDoubtError,
    DecisionRefusedError,
    KafkaError,
    SinkError,
    SinkSupersededError,
)
from penstock.sink.cleaning import abort_left_over, clean_up, find_left_over
from penstock.sink.decision import (
    COORDINATOR_TIMEOUT_MS,
    counted,
    finish,
    forget,
    is_ours,
    write_in_transaction,
)
from penstock.sink.effects import (
    Describe,
    Effects,
    EndAll,
    EndTransaction,
    FindTopicIds,
    Note,
    Reached,
    ReadLog,
)
from penstock.sink.hooks import Step
from penstock.sink.log.records import (
    Decision,
    chunk_tombstones,
    decide,
    decision_records,
)
from penstock.sink.log.view import SinkView
from penstock.sink.messages import (
    NO_CHECKSUM,
    BatchMessages,
    Content,
    ExecutionStamp,
    Message,
    PartitionCount,
    TaskHandle,
    sort_out,
)
from penstock.sink.replaced import TopicIds, why_incomplete
from penstock.sink.replaying import check_repair, check_skipped, is_repair, is_written_again
from penstock.sink.settings import SinkSettings
from penstock.transaction_handle import TransactionHandle

# Coordinators look for transactions that are too old every so often.
EXPIRY_CHECK_MS = 10_000

_EMPTY, _ONGOING = "Empty", "Ongoing"

Described = Mapping[str, TransactionDescription | None]


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


def commit_steps(
    settings: SinkSettings,
    messages: Iterable[Message | None],
    batch_id: int,
    topic_ids: TopicIds | None = None,
) -> Effects[CommitReport]:
    """Decide a batch and make it visible, or find out that it was decided.

    Raises:
        DecisionRefusedError: it was not decided, and will not be.
        DecisionInDoubtError: whether it was decided, or is all visible, is not known.
        DecidedDataLostError: it is decided, but some of it is lost.
        SinkSupersededError: another driver, or a later execution, has taken over.
        RestoredCheckpointError: it was decided before with other rows.
        RunIdReusedError: likewise, of a run.
        SinkError: a message is none of ours.
    """
    batch = _sort_out_all(messages, settings.sink_key, batch_id)
    if batch.stamp is None or not (batch.handles or batch.skipped):
        return (yield from _commit_nothing(settings, batch))
    view: SinkView = yield ReadLog(settings.sink_key)
    if batch.skipped and not batch.handles:
        yield from _finish_undone(settings.sink_key, view)
        yield from check_skipped(settings, batch, view)
        return CommitReport(decided=False, skipped=True)
    if (yield from _is_decided(batch.stamp, batch, view)):
        yield from _finish_undone(settings.sink_key, view)
        return _report(batch, decided=False)
    repairs = view.undone if is_repair(settings, batch, view.undone) else None
    if repairs is not None:
        yield from check_repair(settings, batch, repairs)
    elif batch.skipped or view.undone is not None:
        raise SinkError(
            f"some tasks of {_name(batch)} wrote although it was decided before, or another batch is not finished. "
            "Nothing was decided: run the batch again"
        )
    elif not (yield from is_written_again(settings, batch, view)):
        return CommitReport(decided=False, skipped=True)
    decision, left_over = yield from _decide(settings, batch.stamp, batch, view, topic_ids or {})
    yield Reached(Step.AFTER_DECISION, {"batch_id": batch_id})
    yield from finish(settings.sink_key, decision)
    yield from abort_left_over(left_over)
    if settings.is_batch_job:
        # There is no next batch that would clean up behind attempts that lost a race, and readers wait for them.
        generation = batch.stamp.execution.generation
        yield from clean_up(settings.sink_key, generation, batch.stamp.coordinator, is_over=True)
    if settings.one_off:
        yield from forget(settings.sink_key, decision.execution)
    return _report(batch, decided=True)


def _sort_out_all(messages: Iterable[Message | None], sink_key: str, batch_id: int) -> BatchMessages:
    """The messages of all tasks, without transactions in which nothing is.

    Raises:
        SinkError: they do not belong together, or a task has none: nobody knows what it wrote.
    """
    given = list(messages)
    if any(message is None for message in given):
        raise SinkError(
            f"{given.count(None)} of the {len(given)} tasks of batch {batch_id} have no message for the driver, so "
            "that what they wrote would be lost: do the executors have the version of the driver? Nothing was decided"
        )
    batch = sort_out(given, sink_key, batch_id)
    return batch._replace(handles=tuple(each for each in batch.handles if not each.transaction.empty))


def _commit_nothing(settings: SinkSettings, batch: BatchMessages) -> Effects[CommitReport]:
    """No task had a row to write."""
    if settings.on_lost == "repair":
        # The replay of a batch that is lost as a whole may be cut short: without rows it would pass for done.
        yield from _finish_undone(settings.sink_key, (yield ReadLog(settings.sink_key)))
    if settings.on_restored_checkpoint == "rewrite":
        yield from is_written_again(settings, batch, (yield ReadLog(settings.sink_key)))
    if settings.one_off:
        yield from forget(settings.sink_key)
    return CommitReport(decided=False)


def _finish_undone(sink_key: str, view: SinkView) -> Effects[None]:
    if view.undone is not None:
        yield from finish(sink_key, view.undone)


def _is_decided(stamp: ExecutionStamp, batch: BatchMessages, view: SinkView) -> Effects[bool]:
    """Whether an earlier call has decided this very execution; False when this call may.

    Raises:
        SinkError: neither.
    """
    name = _name(batch)
    if view.decision is not None and view.decision.execution == stamp.execution:
        if not _is_same(view.decision, batch, done=view.done):
            raise SinkError(
                f"{name} was not decided: under its execution, {stamp.execution}, the log has a decision of other "
                f"transactions (batch {view.decision.batch_id} of query {view.decision.query_id!r}). Nothing of it is "
                "visible or will be: run the batch again"
            )
        return True
    if view.owner is None or view.owner.generation != stamp.execution.generation:
        raise _superseded(name, "another driver has taken the sink over")
    identity = stamp.coordinator
    described: Described = yield Describe((identity.transactional_id,))
    found = described[identity.transactional_id]
    if not is_ours(found, identity):
        raise _superseded(name, "its right to decide was taken away by a later batch or another driver")
    if found is not None and found.state != _EMPTY:
        raise DecisionInDoubtError(
            f"{name} was to be decided before, and that attempt has not ended yet (the coordinator says "
            f"{found.state}). Nothing was touched: run the batch again, the next start finds out what became of it"
        )
    return False


def _is_same(decision: Decision, batch: BatchMessages, *, done: bool) -> bool:
    """Whether a decision of the same execution is that of this batch; once it is done its handles are forgotten."""
    if (decision.query_id, decision.batch_id) != (batch.query_id, batch.batch_id):
        return False
    if decision.rows != sum(handle.rows for handle in batch.handles):
        return False
    return done or _ids(decision.handles) == _ids(batch.handles)


def _ids(handles: Iterable[TaskHandle]) -> set[tuple[str, int, int]]:
    transactions = [handle.transaction for handle in handles]
    return {(each.transactional_id, each.producer_id, each.producer_epoch) for each in transactions}


def _decide(
    settings: SinkSettings,
    stamp: ExecutionStamp,
    batch: BatchMessages,
    view: SinkView,
    topic_ids: TopicIds,
) -> Effects[tuple[Decision, tuple[TransactionHandle, ...]]]:
    """Write the decision, look at all handles and topics, and commit it; also what other attempts have left open."""
    key, identity, name = settings.sink_key, stamp.coordinator, _name(batch)
    before = view.decision
    decision = decide(
        stamp.execution,
        (batch.query_id, batch.batch_id),
        settings.topic,
        batch.handles,
        before,
        _whole_content(batch, view),
    )
    yield from _tell_of_forgotten(before, decision)
    decision, records = decision_records(key, decision, None if before is None else before.execution)
    if view.undone is not None:
        records = [*chunk_tombstones(key, view.undone), *records]
    # From its first record on the decision has little time: what can be done before is.
    left_over = yield from _find_left_over(settings, stamp, batch)
    try:
        yield from write_in_transaction(identity, key, records)
        ids = (identity.transactional_id, *(handle.transaction.transactional_id for handle in batch.handles))
        described: Described = yield Describe(ids)
        found = (yield FindTopicIds(tuple(sorted(topic_ids)))) if topic_ids else {}
    except KafkaError as error:
        # Without a commit of the decision nothing is decided. What is open is left to abort(), or the next start.
        raise DecisionRefusedError(
            f"{name} was not decided: its decision could not be written, or its transactions and topics not be looked "
            f"at: {error}. Nothing of it is visible or will be: run the batch again"
        ) from error
    trouble = _trouble(settings, identity, batch.handles, described) or why_incomplete(topic_ids, found)
    if trouble is not None:
        yield from _give_up(identity, batch.handles)
        raise DecisionRefusedError(
            f"{name} was not decided: {trouble}. Nothing of it is visible or will be: run the batch again"
        )
    yield Reached(Step.BEFORE_DECISION, {"batch_id": batch.batch_id})
    try:
        yield EndTransaction(identity, commit=True)
    except KafkaError as error:
        raise DecisionInDoubtError(
            f"whether {name} was decided is not known: {error}. Nothing was touched since: run the batch again, and "
            "the next start either finishes it or writes it anew"
        ) from error
    return decision, left_over


def _whole_content(batch: BatchMessages, view: SinkView) -> Content:
    """What the batch is compared with when it comes again; of a repair, the whole batch and not only what was lost."""
    undone = view.undone
    before = None if undone is None else undone.contents.get(batch.query_id)
    # What the first release wrote down of a repair was not the whole; the tasks of this one have counted all rows.
    return before if before is not None and before.method != NO_CHECKSUM else batch.content


def _tell_of_forgotten(before: Decision | None, decision: Decision) -> Effects[None]:
    for query_id, batch_id in ({} if before is None else before.last_decided).items():
        if query_id not in decision.last_decided:
            yield Note(
                f"the log of the sink remembers {len(decision.last_decided)} query ids and forgets the oldest one: "
                f"{query_id!r}, whose last batch was {batch_id}. If that query comes back, nobody can tell whether its "
                "next batch was written, and it will be refused: give each query a sinkId of its own"
            )


def _find_left_over(
    settings: SinkSettings, stamp: ExecutionStamp, batch: BatchMessages
) -> Effects[tuple[TransactionHandle, ...]]:
    """What attempts that failed or lost a race hold open: readers wait for it, and there may be no next batch."""
    # In the older protocol an abort does not fence an attempt that lost and still runs, and brokers before 3.6 would
    # take what it writes then, open for ever. That is left to the next batch; the driver has ended by then.
    if settings.is_batch_job or not stamp.coordinator.joins_by_writing:
        return ()
    decided = frozenset(handle.transaction.transactional_id for handle in batch.handles)
    generation, version = stamp.execution.generation, stamp.coordinator.end_txn_version
    return (yield from find_left_over(settings.sink_key, generation, version, decided))


def _trouble(
    settings: SinkSettings,
    identity: TransactionalIdentity,
    handles: Iterable[TaskHandle],
    described: Described,
) -> str | None:
    """Why the batch must not be decided; None when it may be."""
    own = described[identity.transactional_id]
    if own is None or not is_ours(own, identity) or own.state != _ONGOING:
        return (
            "the decision's own transaction was aborted, by another driver or because this one was too slow"
        )
    needed_ms = COORDINATOR_TIMEOUT_MS + EXPIRY_CHECK_MS + settings.recovery_time_ms
    for handle in handles:
        transaction = handle.transaction
        found = described[transaction.transactional_id]
        if found is None or (found.producer_id, found.producer_epoch, found.state) != (
            transaction.producer_id,
            transaction.producer_epoch,
            _ONGOING,
        ):
            state = "not known" if found is None else f"{found.state}, epoch {found.producer_epoch}"
            return (
                f"the transaction of task {handle.task} ({transaction.transactional_id}, epoch "
                f"{transaction.producer_epoch}) is not open any more ({state}): it took longer than its time-out of "
                f"{transaction.timeout_ms} ms, or was aborted by somebody"
            )
        left_ms = found.timeout_ms - (own.start_time_ms - found.start_time_ms)
        if left_ms < needed_ms:
            return (
                f"the transaction of task {handle.task} will be aborted {left_ms} ms after the decision, and "
                f"{needed_ms} ms are needed to be safe (recoveryTime is {settings.recovery_time_ms} ms). Make batches "
                "smaller, or tasks quicker; or lower recoveryTime; or raise transactionTimeout and the brokers' "
                "transaction.max.timeout.ms"
            )
    return None


def _give_up(identity: TransactionalIdentity, handles: Iterable[TaskHandle]) -> Effects[None]:
    """Abort a decision that was not to be; the tasks' transactions only when it is certain that it is aborted."""
    try:
        yield EndTransaction(identity, commit=False)
    except KafkaError as error:
        yield Note(f"the decision that was given up is left to its time-out: {error}")
        return
    yield EndAll(tuple(handle.transaction for handle in handles), commit=False)


def _report(batch: BatchMessages, *, decided: bool) -> CommitReport:
    rows = sum(handle.rows for handle in batch.handles)
    return CommitReport(decided, False, len(batch.handles), rows, counted(batch.handles))


def _name(batch: BatchMessages) -> str:
    return f"batch {batch.batch_id} of query {batch.query_id!r}"


def _superseded(name: str, why: str) -> SinkSupersededError:
    return SinkSupersededError(
        f"{name} was not decided: {why}. Nothing of it is visible or will be. If another job uses the same sinkId or "
        "checkpoint, stop one of the two"
    )
