# SPDX-License-Identifier: Apache-2.0
"""Ends open transactions that nobody else will end: those of failed attempts, former drivers and dead runs. No I/O.

Readers of committed records wait for them. What goes wrong here stops nothing: the transactions are left to their
time-out.

Rules for the sink's own tasks:
1. Only after all that was decided is finished: nothing that is open then will ever be committed.
2. No task uses the ids of older generations any more: they are taken over, which fences a task that still writes.
3. Ids of our own generation belong to running workers, who alone may initialise them: their transactions are ended with
   exactly the producer id and epoch that they have now. They are looked at first, and then whether we still have the
   coordinator's id: if another planner process of this driver has taken it since, they may be those of its batch.
   Where that would not shut out a task that still writes, nothing is ended: the driver begins a generation first.
4. Ids of a newer generation are left alone: then we are the former driver.
5. What a commit cleans up it has looked for before its decision was committed. So it is of this execution or an earlier
   one, and not decided: a driver that stalls afterwards, and aborts late, hits nothing that the next batch has begun.
6. When a generation is over, because its only batch is done, nobody will use its ids again: they are like older ones.

A run of a batch job has a key of its own, so no takeover cleans up behind it. The next run of the same sink id does,
whatever its own run id is.

Rules for dead runs:
1. A run is dead only where that is known: its driver was in our place, and its process is not there any more. Anything
   else is left to its time-out: of two runs that live, none ends what the other has open.
2. First the right to decide is taken from it: a process of its driver may still run without the Java process, and
   decide. Before and after that the log is read: only if the owner is still the same one, nobody has taken the run up
   since.
3. What it decided is finished. Only the rest is aborted, by taking its ids over, which also shuts out tasks that still
   write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock._identity import ProducerIdentity, TransactionalIdentity
from penstock.control.complete import Completion
from penstock.control.transactions import TransactionDescription
from penstock.errors import KafkaError
from penstock.sink.decision import COORDINATOR_TIMEOUT_MS, finish_what_lives, forget, is_ours
from penstock.sink.effects import (
    CheckDrivers,
    Describe,
    Effects,
    EndAll,
    EndTransaction,
    EndTxnVersion,
    FenceAll,
    InitProducer,
    ListOngoing,
    Note,
    ReadLog,
    ReadRuns,
    VerifiesTransactions,
)
from penstock.sink.identity import Life, coordinator_id, parse_task_id
from penstock.sink.log.view import SinkView
from penstock.sink.messages import TaskHandle
from penstock.transaction_handle import TransactionHandle

FENCE_TIMEOUT_MS = 60_000
_ONGOING = "Ongoing"


def clean_up(
    sink_key: str, generation: int, coordinator: TransactionalIdentity, *, is_over: bool = False
) -> Effects[None]:
    """Abort what was left over, as far as it can be done now.

    Args:
        sink_key: whose.
        generation: our own.
        coordinator: the identity of our execution.
        is_over: nothing more will be written in our generation.
    """
    try:
        yield from _clean_up(sink_key, generation, coordinator, is_over=is_over)
    except KafkaError as error:
        yield Note(f"open transactions of earlier attempts could not be cleaned up now: {error}")


def _clean_up(
    sink_key: str, generation: int, coordinator: TransactionalIdentity, *, is_over: bool
) -> Effects[None]:
    ongoing: list[str] = yield ListOngoing(sink_key)
    older, own = [], []
    for name in ongoing:
        parts = parse_task_id(name)
        if parts is None or parts.sink_key != sink_key:
            continue
        if parts.generation < generation or (is_over and parts.generation == generation):
            older.append(name)
        elif parts.generation == generation:
            own.append(name)
    yield from fence(older)
    if own and (yield from abort_shuts_out(coordinator)):
        yield from _end_own(own, coordinator)


def abort_shuts_out(coordinator: TransactionalIdentity) -> Effects[bool]:
    """Whether a task whose transaction somebody else has aborted cannot write to its partitions any more."""
    verified: bool = coordinator.joins_by_writing or (yield VerifiesTransactions())
    return verified


def find_own(sink_key: str, generation: int) -> Effects[list[str]]:
    """The ids of a generation with an open transaction; none when it cannot be told now."""
    try:
        ongoing: list[str] = yield ListOngoing(sink_key)
    except KafkaError as error:
        yield Note(f"open transactions of earlier attempts could not be looked for now: {error}")
        return []
    return [
        name
        for name in ongoing
        if (parts := parse_task_id(name)) is not None
        and (parts.sink_key, parts.generation) == (sink_key, generation)
    ]


def fence(names: list[str]) -> Effects[None]:
    """Take over ids that nobody will use again, which also shuts out tasks that still write."""
    if not names:
        return
    failures: list[KafkaError | None] = yield FenceAll(tuple(names), FENCE_TIMEOUT_MS)
    for name, failure in zip(names, failures, strict=True):
        if failure is not None:
            yield Note(f"the open transaction of {name} could not be aborted now: {failure}")


def fence_left_over(handles: tuple[TransactionHandle, ...]) -> Effects[None]:
    """The same for what was found."""
    yield from fence([handle.transactional_id for handle in handles])


def find_left_over(
    sink_key: str, generation: int, end_txn_version: int, decided: Collection[str]
) -> Effects[tuple[TransactionHandle, ...]]:
    """Open transactions of our generation that are not among those to be decided; none when it cannot be told now."""
    try:
        own = yield from find_own(sink_key, generation)
        names = [name for name in own if name not in decided]
        return (yield from _open_handles(names, end_txn_version)) if names else ()
    except KafkaError as error:
        yield Note(f"open transactions of other attempts could not be looked for now: {error}")
        return ()


def _end_own(names: list[str], coordinator: TransactionalIdentity) -> Effects[None]:
    handles = yield from _open_handles(names, coordinator.end_txn_version)
    described: dict[str, TransactionDescription | None] = yield Describe((coordinator.transactional_id,))
    if is_ours(described[coordinator.transactional_id], coordinator):
        yield from abort_left_over(handles)


def _open_handles(names: list[str], end_txn_version: int) -> Effects[tuple[TransactionHandle, ...]]:
    described: dict[str, TransactionDescription | None] = yield Describe(tuple(names))
    return tuple(
        _handle_of(found, end_txn_version)
        for found in described.values()
        if found is not None and found.state == _ONGOING
    )


def abort_left_over(handles: tuple[TransactionHandle, ...]) -> Effects[None]:
    """Abort what was found, as far as it can be done now."""
    if not handles:
        return
    completions: list[Completion] = yield EndAll(handles, commit=False)
    for completion in completions:
        if completion.error is not None:
            name = completion.handle.transactional_id
            yield Note(f"the open transaction of {name} could not be aborted now: {completion.error}")


def _handle_of(found: TransactionDescription, end_txn_version: int) -> TransactionHandle:
    """A handle with which a transaction of which we know no more can be aborted."""
    return TransactionHandle(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        end_txn_version=end_txn_version,
        timeout_ms=max(found.timeout_ms, 1),
    )


def end_dead_runs(sink_id: str, own_key: str) -> Effects[None]:
    """End what dead runs of a sink id have left, as far as it can be done now; `own_key` is that of our own run."""
    try:
        runs: list[SinkView] = yield ReadRuns(sink_id)
        suspects = [view for view in runs if view.sink_key != own_key and _may_have_left(view)]
        if not suspects:
            return
        owners = tuple(view.owner for view in suspects if view.owner is not None)
        lives: list[Life] = yield CheckDrivers(owners)
        dead = {owner for owner, life in zip(owners, lives, strict=True) if life is Life.ENDED}
        suspects = [view for view in suspects if view.owner in dead]
        ongoing: list[str] = (yield ListOngoing(None)) if suspects else []
    except KafkaError as error:
        yield Note(
            f"what earlier runs of sink {sink_id!r} may have left open could not be looked for now: {error}"
        )
        return
    for view in suspects:
        names = tasks_of(view.sink_key, ongoing)
        if names or view.undone is not None or view.is_one_off:
            yield from end_run(view, names)


def _may_have_left(view: SinkView) -> bool:
    """Whether a run has not come to its end; one that has cleans up behind itself."""
    return view.owner is not None and (view.undone is not None or view.decision is None or view.is_one_off)


def tasks_of(sink_key: str, names: Iterable[str]) -> list[str]:
    """Of transactional ids those of a sink's tasks."""
    return [
        name for name in names if (parts := parse_task_id(name)) is not None and parts.sink_key == sink_key
    ]


def end_run(view: SinkView, names: list[str]) -> Effects[bool]:
    """Take a run's right to decide, finish what it decided and abort the rest; whether that was done.

    Args:
        view: the run, as the log had it when it was found to be dead.
        names: its open transactions.
    """
    try:
        return (yield from _end_run(view, names))
    except KafkaError as error:
        yield Note(f"what the run {_name(view)} has left open could not be ended now: {error}")
        return False


def _end_run(view: SinkView, names: list[str]) -> Effects[bool]:
    key = view.sink_key
    described: Mapping[str, TransactionDescription | None] = yield Describe((coordinator_id(key),))
    again: SinkView = yield ReadLog(key)
    if again.owner != view.owner:
        return False
    yield from _take_right_to_decide(described[coordinator_id(key)])
    again = yield ReadLog(key)
    if again.owner != view.owner or again.owner is None:
        return False
    decided: set[str] = set()
    lost: list[TaskHandle] = []
    if again.undone is not None:
        decided = {handle.transaction.transactional_id for handle in again.undone.handles}
        lost = yield from finish_what_lives(key, again.undone, may_be_lost=True)
        if lost:
            yield Note(
                f"the run {_name(view)} was decided and {len(lost)} of its transactions were aborted before its driver "
                "could commit them: `penstock recover` tells what is lost"
            )
    newest = again.owner.generation
    yield from fence(
        [
            name
            for name in names
            if name not in decided
            and (parts := parse_task_id(name)) is not None
            and parts.generation <= newest
        ]
    )
    if again.is_one_off and not lost:
        yield from forget(key, None if again.decision is None else again.decision.execution)
    return True


def _take_right_to_decide(found: TransactionDescription | None) -> Effects[None]:
    """Take a coordinator's id, if it is still as it was when the log named the dead driver."""
    if found is None:
        return
    version: int = yield EndTxnVersion()
    identity = TransactionalIdentity(found.transactional_id, found.producer_id, found.producer_epoch, version)
    expected = found.producer_epoch
    if found.state == _ONGOING:
        yield EndTransaction(identity, commit=False)
        expected += identity.joins_by_writing
    wanted = ProducerIdentity(found.producer_id, expected)
    yield InitProducer(found.transactional_id, COORDINATOR_TIMEOUT_MS, wanted)


def _name(view: SinkView) -> str:
    if view.claim is None:
        return f"with the key {view.sink_key}"
    run = "" if view.claim.run_id is None or view.claim.one_off else f", run {view.claim.run_id!r}"
    return f"{view.claim.sink_id!r}{run} of {'nobody' if view.owner is None else view.owner.jvm}"
