# SPDX-License-Identifier: Apache-2.0
"""Ends what a run that is dead has left open: readers would wait for it until its time-out. No I/O.

A run of a batch job has a key of its own, so no takeover comes by and cleans up behind it. The next run of the same
sink id does, whatever its own run id is.

Rules:
1. A run is dead only where that is known: its driver was in our place, and its process is not there any more. Anything
   else is left to its time-out: of two runs that live, none ends what the other has open.
2. First the right to decide is taken from it: a process of its driver may have outlived the Java process, and decide.
   Before and after that the log is read: only if the owner is still the same one, nobody has taken the run up since.
3. What it decided is finished. Only the rest is aborted, by taking its ids over, which also shuts out tasks that still
   write.
4. All of this is for the readers' sake: what goes wrong here stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock._identity import ProducerIdentity, TransactionalIdentity
from penstock.control.transactions import TransactionDescription
from penstock.errors import KafkaError
from penstock.sink.cleaning import fence
from penstock.sink.committing import forget
from penstock.sink.driver_identity import Life
from penstock.sink.effects import (
    Describe,
    Effects,
    EndTransaction,
    EndTxnVersion,
    InitProducer,
    ListOngoing,
    LookAtDrivers,
    Note,
    ReadLog,
    ReadRuns,
)
from penstock.sink.log.view import SinkView
from penstock.sink.messages import TaskHandle
from penstock.sink.names import coordinator_id, parse_task_id
from penstock.sink.writing import COORDINATOR_TIMEOUT_MS, finish_what_lives

_ONGOING = "Ongoing"


def end_dead_runs(sink_id: str, own_key: str) -> Effects[None]:
    """End what dead runs of a sink id have left, as far as it can be done now; `own_key` is that of our own run."""
    try:
        runs: list[SinkView] = yield ReadRuns(sink_id)
        suspects = [view for view in runs if view.sink_key != own_key and _may_have_left(view)]
        if not suspects:
            return
        owners = tuple(view.owner for view in suspects if view.owner is not None)
        lives: list[Life] = yield LookAtDrivers(owners)
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
