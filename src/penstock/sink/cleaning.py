# SPDX-License-Identifier: Apache-2.0
"""Ends what nobody will end: open transactions of tasks that failed, lost a race, or belong to a former driver.

Rules:
1. Only after all that was decided is finished: nothing that is open then will ever be committed.
2. Ids of older generations are nobody's any more: they are taken over, which fences whoever still writes.
3. Ids of our own generation belong to living workers, who alone may initialise them: their transactions are ended with
   exactly the producer id and epoch that they have now. They are looked at first, and then whether we still have the
   coordinator's id: if another planner process of this driver has taken it since, they may be those of its batch.
   Where that would not shut out a task that still writes, nothing is ended: the driver begins a generation first.
4. Ids of a newer generation are left alone: then we are the former driver.
5. What a commit cleans up it has looked for before its decision was committed. So it is of this execution or an earlier
   one, and not decided: a driver that stalls afterwards, and aborts late, hits nothing that the next batch has begun.
6. When a generation is over, because its only batch is done, nobody will use its ids again: they are like older ones.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock._identity import TransactionalIdentity
from penstock.control.complete import Completion
from penstock.control.transactions import TransactionDescription
from penstock.errors import KafkaError
from penstock.sink.effects import Describe, Effects, EndAll, FenceAll, ListOngoing, Note, VerifiesTransactions
from penstock.sink.names import parse_task_id
from penstock.sink.writing import is_ours
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
    """Take over ids that nobody will use again, which also shuts out whoever still writes."""
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
