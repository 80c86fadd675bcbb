# SPDX-License-Identifier: Apache-2.0
"""What the driver's calls share: take the coordinator's id, write to the log under it, finish a decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock._identity import TransactionalIdentity
from penstock.control.complete import Completion
from penstock.control.partition_log import KeyValue
from penstock.control.transactions import TransactionDescription
from penstock.errors import (
    BrokerError,
    DecidedDataLostError,
    DecisionInDoubtError,
    KafkaError,
    TransactionAbortedError,
    TransactionUnknownError,
)
from penstock.sink.effects import (
    AppendFacts,
    AppendInTransaction,
    Effects,
    EndAll,
    InitProducer,
    JoinLog,
    Note,
    Reached,
)
from penstock.sink.hooks import Step
from penstock.sink.identity import explain_refusal
from penstock.sink.log.records import Decision, done_records, forget_records
from penstock.sink.messages import Execution, PartitionCount, TaskHandle

# Of the coordinator's transactions. A driver that stalls between its last look and its decision loses it to this.
COORDINATOR_TIMEOUT_MS = 30_000

_MAX_NAMED = 20


def init_producer(transactional_id: str, timeout_ms: int) -> Effects[TransactionalIdentity]:
    """Take over an id of ours.

    Raises:
        SinkAuthorizationError: this client may not.
    """
    try:
        identity: TransactionalIdentity = yield InitProducer(transactional_id, timeout_ms)
    except BrokerError as error:
        raise explain_refusal(error, f"use the transactional id {transactional_id!r}") from error
    return identity


def is_ours(found: TransactionDescription | None, identity: TransactionalIdentity) -> bool:
    """Whether the coordinator still has the id as it gave it to us."""
    return found is not None and (found.producer_id, found.producer_epoch) == (
        identity.producer_id,
        identity.epoch,
    )


def write_in_transaction(
    identity: TransactionalIdentity, sink_key: str, records: Iterable[KeyValue]
) -> Effects[None]:
    """Write records to the log in the coordinator's transaction, each in a batch of its own, and leave it open."""
    if not identity.joins_by_writing:
        yield JoinLog(identity, sink_key)
    for sequence, record in enumerate(records):
        yield AppendInTransaction(identity, sink_key, sequence, (record,))


def finish(sink_key: str, decision: Decision) -> Effects[None]:
    """Make a decided batch visible, and record in the log that it is done. Any driver may have decided it.

    Raises:
        DecidedDataLostError: some of it was aborted before.
        DecisionInDoubtError: how some of it ended is not known, or not yet.
    """
    yield from finish_what_lives(sink_key, decision, may_be_lost=False)


def finish_what_lives(sink_key: str, decision: Decision, *, may_be_lost: bool) -> Effects[list[TaskHandle]]:
    """The same. With `may_be_lost`, aborted handles are returned, and the batch is not recorded as done."""
    handles = tuple(handle.transaction for handle in decision.handles)
    completions: list[Completion] = yield EndAll(handles, commit=True)
    lost = lost_handles(decision, completions)
    if lost and not may_be_lost:
        raise lost_error(decision, lost)
    complain_of(decision, completions)
    if not lost:
        yield from _record_done(sink_key, decision)
    return lost


def _record_done(sink_key: str, decision: Decision) -> Effects[None]:
    yield Reached(Step.AFTER_ALL_ENDS, {"batch_id": decision.batch_id})
    yield AppendFacts(sink_key, tuple(done_records(sink_key, decision)))
    yield Reached(Step.AFTER_DONE, {"batch_id": decision.batch_id})


def forget(sink_key: str, execution: Execution | None = None) -> Effects[None]:
    """Let the log forget a run that nobody will ask for again; `execution` is the one that was decided, if any."""
    try:
        yield AppendFacts(sink_key, tuple(forget_records(sink_key, execution)))
    except KafkaError as error:
        yield Note(f"the log keeps the records of a run that nobody will ask for again: {error}")


def lost_error(decision: Decision, lost: Sequence[TaskHandle]) -> DecidedDataLostError:
    """What is said of a decided batch of which some is lost."""
    gone = counted(lost)
    return DecidedDataLostError(
        f"batch {decision.batch_id} of query {decision.query_id!r} was decided, but {len(lost)} of its "
        f"{_transactions(decision)} {'was' if len(lost) == 1 else 'were'} aborted before the commit: lost are "
        f"{_listed(gone)}. "
        "Nothing else is written until this is settled. Write the lost records again from the source, then run "
        "`penstock recover --accept-loss` for this sink; or set onLost=repair and start the job again: if the batch is "
        "replayed with the same rows, what is lost is written again",
        gone,
    )


def complain_of(decision: Decision, completions: Sequence[Completion]) -> None:
    """Raise unless all of a decision's transactions are committed, or known to be aborted."""
    name = f"batch {decision.batch_id} of query {decision.query_id!r}"
    completions = [each for each in completions if not isinstance(each.error, TransactionAbortedError)]
    open_ends = [completion for completion in completions if completion.error is not None]
    unknown = [end for end in open_ends if isinstance(end.error, TransactionUnknownError)]
    if unknown:
        raise DecisionInDoubtError(
            f"{name} was decided, but nobody can tell any more how {len(unknown)} of its "
            f"{_transactions(decision)} ended: {unknown[0].error}. Nothing else is written until this is settled: look "
            "into the topics, write again what is missing, then run `penstock recover --accept-loss` for this sink"
        ) from unknown[0].error
    if open_ends:
        error = open_ends[0].error
        raise DecisionInDoubtError(
            f"{name} is decided, but how {len(open_ends)} of its {_transactions(decision)} ended is not "
            f"known: {error}. Nothing is lost by trying again: the next start, or `penstock recover`, goes on where "
            "this one stopped"
        ) from error


def _transactions(decision: Decision) -> str:
    count = len(decision.handles)
    return "1 transaction" if count == 1 else f"{count:,} transactions"


def lost_handles(decision: Decision, completions: Sequence[Completion]) -> list[TaskHandle]:
    """The handles that turned out to be aborted."""
    return [
        handle
        for handle, completion in zip(decision.handles, completions, strict=True)
        if isinstance(completion.error, TransactionAbortedError)
    ]


def counted(handles: Iterable[TaskHandle]) -> tuple[PartitionCount, ...]:
    """How many records the handles have in each partition, sorted."""
    totals: dict[tuple[str, int], int] = {}
    for handle in handles:
        places = handle.counts or _counts_by_handle(handle)
        for topic, partition, records in places:
            totals[topic, partition] = totals.get((topic, partition), 0) + records
    return tuple(PartitionCount(*place, records) for place, records in sorted(totals.items()))


def _counts_by_handle(handle: TaskHandle) -> tuple[PartitionCount, ...]:
    transaction = handle.transaction
    if transaction.topic is None:
        return ()
    return (PartitionCount(transaction.topic, transaction.partition, transaction.record_count),)


def _listed(counts: Sequence[PartitionCount]) -> str:
    named = ", ".join(str(count) for count in counts[:_MAX_NAMED])
    return f"{named} and {len(counts) - _MAX_NAMED} more" if len(counts) > _MAX_NAMED else named
