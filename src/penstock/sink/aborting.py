# SPDX-License-Identifier: Apache-2.0
"""When a batch has failed: abort its transactions, if it is certain that it is not decided and never will be. No I/O.

Spark calls abort() also after a commit() that raised, with all handles: whether the batch is decided is not known then.
So the coordinator is asked. Only while it has the very identity that could have decided, unused, or agrees to abort
what was begun with it, the identity is made void: nobody can decide with it any more, and a task that comes to its end
later sees that it is not wanted (`task`). Then the log is read, because what the coordinator aborted need not be the
decision: in the older protocol, a request of commit() that was delayed in the network may begin another transaction
with the same identity after the decision. Only if the log has no decision, the batch will never be decided.
Otherwise everything is left to the next start.

Tasks that failed or were cancelled give no handle, and readers wait for what they hold open. It is looked for, and
then whether the coordinator's id is still as we have left it: if so, no later execution had begun, and none of its
transactions can be hit. Spark cancels tasks while abort() runs already, and some of them begin or go on for a moment:
so it is looked for as long as Spark lets them live, and longer as long as something is found.

Messages that do not belong together, or are none of ours, were refused by commit(). They do not tell which execution it
is, either, and what tasks have open is found without them.

In a streaming query Spark calls abort() on a writer that knows nothing of the execution. If no task has ended, nobody
else tells, either. Then it is the one that the coordinator has now, provided that this driver owns the sink: Spark
plans the next one only after abort() has returned, and kills the process of one that it does not wait for any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock._identity import ProducerIdentity, TransactionalIdentity
from penstock.control.transactions import TransactionDescription
from penstock.errors import KafkaError, SinkError
from penstock.sink.cleaning import abort_left_over, fence_left_over, find_left_over
from penstock.sink.decision import COORDINATOR_TIMEOUT_MS, forget, is_ours
from penstock.sink.effects import (
    Describe,
    Effects,
    EndAll,
    EndTransaction,
    EndTxnVersion,
    InitProducer,
    Note,
    Pause,
    Reached,
    ReadLog,
)
from penstock.sink.hooks import Step
from penstock.sink.identity import DriverIdentity, coordinator_id, parse_task_id
from penstock.sink.log.view import SinkView
from penstock.sink.messages import BatchPlan, Execution, ExecutionStamp, Message, Written, sort_out
from penstock.sink.settings import SinkSettings
from penstock.transaction_handle import TransactionHandle

# Spark waits 2 s for a task that it cancels, then kills its process.
_LOOK_AGAIN_SECONDS = 0.25
_LEAST_LOOKS, _MOST_LOOKS = 10, 20

_EMPTY, _ONGOING = "Empty", "Ongoing"
_ABORTED = ("PrepareAbort", "CompleteAbort")

Described = Mapping[str, TransactionDescription | None]


def abort_steps(
    settings: SinkSettings,
    messages: Iterable[Message | None],
    batch_id: int,
    plan: BatchPlan | None = None,
    driver: DriverIdentity | None = None,
) -> Effects[bool]:
    """Give a batch up; whether its transactions were aborted, and not left to the next start.

    Args:
        settings: the sink.
        messages: of the tasks that have ended well; None for each of the others.
        batch_id: of the batch.
        plan: that of the execution, where it is at hand: perhaps no task has a message.
        driver: who gives the batch up: where there is neither a message nor a plan, the execution is the one that this
            driver has planned last.
    """
    given = list(messages)
    told: ExecutionStamp | None = None
    try:
        told = sort_out(given, settings.sink_key, batch_id).stamp
    except SinkError as error:
        yield Note(f"batch {batch_id} is given up although what its tasks have told is not right: {error}")
    stamp = told if told is not None or plan is None else plan.stamp
    if stamp is None and driver is not None:
        stamp = yield from _present_execution(settings.sink_key, driver)
    if stamp is None:
        return False
    handles = _handles_of(stamp, given)
    try:
        void = yield from _make_void(stamp.coordinator)
        undecided = void is not None and not (yield from _is_decided(stamp))
    except KafkaError as error:
        yield Note(
            f"batch {batch_id} may be decided, so its transactions are left to the next start: {error}"
        )
        return False
    if void is None:
        yield Note(f"batch {batch_id} may be decided, so its transactions are left to the next start")
        return False
    if not undecided:
        yield Note(
            f"batch {batch_id} is decided; what is left of its transactions is committed by the next start"
        )
        return False
    if handles:
        yield EndAll(handles, commit=False)
    yield from _end_left_over(stamp, void, handles, look_again=None in given or not given)
    if settings.one_off:
        yield from forget(settings.sink_key)
    yield Reached(Step.ABORTED, {"batch_id": batch_id})
    return True


def _handles_of(stamp: ExecutionStamp, messages: Iterable[Message | None]) -> tuple[TransactionHandle, ...]:
    """The transactions that the tasks of an execution have handed over; those of another one may be decided."""
    written = [
        each.handle.transaction for each in messages if isinstance(each, Written) and each.stamp == stamp
    ]
    return tuple(each for each in written if not each.empty and _is_of(stamp.sink_key, each))


def _is_of(sink_key: str, transaction: TransactionHandle) -> bool:
    """Whether it is one of the sink's own: what a message names besides is as little ours to abort as to commit."""
    parts = parse_task_id(transaction.transactional_id)
    return parts is not None and parts.sink_key == sink_key


def _make_void(identity: TransactionalIdentity) -> Effects[TransactionalIdentity | None]:
    """See to it that nothing is ever decided with an identity: the next one of its id; None when something may be."""
    name = identity.transactional_id
    described: Described = yield Describe((name,))
    found = described[name]
    if found is None or found.producer_id != identity.producer_id:
        return None
    # In the newer protocol the end of a transaction raises the epoch.
    epoch_after_end = identity.epoch + identity.joins_by_writing
    expected = identity.epoch
    if is_ours(found, identity) and found.state == _ONGOING:
        yield EndTransaction(identity, commit=False)
        expected = epoch_after_end
    elif found.state in _ABORTED and found.producer_epoch == epoch_after_end:
        expected = epoch_after_end  # commit() has given its decision up
    elif not is_ours(found, identity) or found.state != _EMPTY:
        return None
    # Expected, or it would be taken from another driver that has come in since we looked.
    void: TransactionalIdentity = yield InitProducer(
        name, COORDINATOR_TIMEOUT_MS, ProducerIdentity(identity.producer_id, expected)
    )
    return void


def _is_decided(stamp: ExecutionStamp) -> Effects[bool]:
    """Whether the log has the decision; asked when the identity is void, so that all that was committed is there."""
    view: SinkView = yield ReadLog(stamp.sink_key)
    return view.decision is not None and view.decision.execution == stamp.execution


def _present_execution(sink_key: str, driver: DriverIdentity) -> Effects[ExecutionStamp | None]:
    """The execution that the driver has planned last; None when the sink is not its own."""
    name = coordinator_id(sink_key)
    described: Described = yield Describe((name,))
    found = described[name]
    if found is None:
        return None
    view: SinkView = yield ReadLog(sink_key)
    if view.owner is None or not view.owner.covers(driver, found.producer_id):
        return None
    version: int = yield EndTxnVersion()
    identity = TransactionalIdentity(name, found.producer_id, found.producer_epoch, version)
    return ExecutionStamp(sink_key, Execution(view.owner.generation, found.producer_epoch), identity)


def _end(stamp: ExecutionStamp, left_over: tuple[TransactionHandle, ...]) -> Effects[None]:
    if stamp.coordinator.joins_by_writing:
        yield from abort_left_over(left_over)
    else:
        # In the older protocol an abort does not shut out a task that still writes, and brokers before 3.6 would take
        # what it writes then, for ever open. The worker of a task that did not end well never uses its id again.
        yield from fence_left_over(left_over)


def _end_left_over(
    stamp: ExecutionStamp,
    void: TransactionalIdentity,
    handles: tuple[TransactionHandle, ...],
    *,
    look_again: bool,
) -> Effects[None]:
    """End what tasks without a handle have open, as far as it can be done now; also what begins while tasks end."""
    name = void.transactional_id
    known = frozenset(handle.transactional_id for handle in handles)
    generation, version = stamp.execution.generation, stamp.coordinator.end_txn_version
    try:
        for look in range(_MOST_LOOKS):
            left_over = yield from find_left_over(stamp.sink_key, generation, version, known)
            if left_over:
                described: Described = yield Describe((name,))
                if not is_ours(described[name], void):
                    return  # somebody has begun another execution, and it may be of that one
                yield from _end(stamp, left_over)
            if not look_again or (look >= _LEAST_LOOKS - 1 and not left_over):
                return
            yield Pause(_LOOK_AGAIN_SECONDS)
    except KafkaError as error:
        yield Note(f"what tasks that were cancelled have open could not be ended now: {error}")
