# SPDX-License-Identifier: Apache-2.0
"""When a batch has failed: abort its transactions, if it is certain that it is not decided and never will be. No I/O.

Spark calls abort() also after a commit() that raised, with all handles: whether the batch is decided is not known then.
So the coordinator is asked. Only while it has the very identity that could have decided, unused, or agrees to abort
what was begun with it, the batch is undecided for good. Otherwise everything is left to the next start.

Tasks that failed or were cancelled hand over no handle, and readers wait for what they hold open. It is looked for
before the coordinator is asked: as no later execution has begun by then, none of its transactions can be hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.control.transactions import TransactionDescription
from penstock.errors import KafkaError
from penstock.sink.cleaning import abort_left_over, fence_left_over, find_left_over
from penstock.sink.committing import forget
from penstock.sink.effects import Describe, Effects, EndAll, EndTransaction, Note, Reached
from penstock.sink.messages import Message, sort_out
from penstock.sink.plan import BatchPlan, ExecutionStamp
from penstock.sink.seam import Step
from penstock.sink.settings import SinkSettings
from penstock.sink.writing import is_ours
from penstock.transaction_handle import TransactionHandle

_EMPTY, _ONGOING = "Empty", "Ongoing"


def abort_steps(
    settings: SinkSettings,
    messages: Iterable[Message | None],
    batch_id: int,
    plan: BatchPlan | None = None,
) -> Effects[bool]:
    """Give a batch up; whether its transactions were aborted, and not left to the next start.

    Args:
        settings: the sink.
        messages: of the tasks that have ended well.
        batch_id: of the batch.
        plan: that of the execution, where it is at hand: perhaps no task has a message.
    """
    batch = sort_out(messages, settings.sink_key, batch_id)
    handles = tuple(each.transaction for each in batch.handles if not each.transaction.empty)
    stamp = batch.stamp if batch.stamp is not None or plan is None else plan.stamp
    if stamp is None:
        return True
    identity = stamp.coordinator
    left_over = yield from _find_left_over(settings, stamp, handles)
    described: Mapping[str, TransactionDescription | None] = yield Describe((identity.transactional_id,))
    found = described[identity.transactional_id]
    if found is None or not is_ours(found, identity) or found.state not in (_EMPTY, _ONGOING):
        yield Note(f"batch {batch_id} may be decided, so its transactions are left to the next start")
        return False
    if found.state == _ONGOING:
        try:
            yield EndTransaction(identity, commit=False)
        except KafkaError as error:
            yield Note(
                f"batch {batch_id} may be decided, so its transactions are left to the next start: {error}"
            )
            return False
    if handles:
        yield EndAll(handles, commit=False)
    if identity.joins_by_writing:
        yield from abort_left_over(left_over)
    else:
        yield from fence_left_over(left_over)
    if settings.one_off:
        yield from forget(settings.sink_key)
    yield Reached(Step.ABORTED, {"batch_id": batch_id})
    return True


def _find_left_over(
    settings: SinkSettings, stamp: ExecutionStamp, handles: tuple[TransactionHandle, ...]
) -> Effects[tuple[TransactionHandle, ...]]:
    # In the older protocol an abort shuts nobody out who still writes, and in a streaming query the ids are used again.
    if not settings.is_batch_job and not stamp.coordinator.joins_by_writing:
        return ()
    known = frozenset(handle.transactional_id for handle in handles)
    generation, version = stamp.execution.generation, stamp.coordinator.end_txn_version
    return (yield from find_left_over(settings.sink_key, generation, version, known))
