# SPDX-License-Identifier: Apache-2.0
"""What a task does besides writing: ask whether it may write, open a transaction, and ask before it hands it over.

Rules:
1. One (id, producer id, epoch) carries at most one transaction: each begins with an InitProducerId of its own.
2. An InitProducerId whose answer was lost may arrive late and abort whatever the id has open then, so the id is never
   used again.
3. A slot is used again only by a later execution: by then whatever it carried has its end.
4. An execution that is older than one this process has seen must not write.
5. Before a task hands its transaction over it asks whether its batch is still wanted. Spark does not wait for a task
   that it has cancelled, or thinks lost, and its process may go on: its transaction would stay open, and readers would
   wait for its time-out. While tasks run, the coordinator's id is as the plan names it, and unused. When the batch was
   decided, given up or planned again, it is not.
"""

from __future__ import annotations

import enum
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock._events import Event, tell
from penstock._locks import new_lock
from penstock.errors import (
    DecidedDataLostError,
    KafkaError,
    RestoredCheckpointError,
    SinkError,
    SinkSupersededError,
)
from penstock.sink.identity import TaskId
from penstock.sink.messages import BatchPlan, Execution, Repair
from penstock.sink.settings import topic_in_words
from penstock.transaction_handle import TransactionHandle

if TYPE_CHECKING:
    from penstock.control.client import ControlClient

log = logging.getLogger("penstock.sink")

# Ids whose InitProducerId had no answer, before a task gives up.
_MAX_LOST_IDS = 10
# Sinks that a worker remembers: one that runs one batch job after the other meets a new one each time.
_MAX_SINKS = 256
# For the question whether a batch is still wanted.
_ASK_SECONDS: Final = 10.0
_EMPTY: Final = "Empty"


class Admission(enum.Enum):
    """What a task is to do with its rows."""

    WRITE = "write"
    SKIP = "skip; the driver compares the rows with those that were decided"
    COMPARE = "write, although the batch was decided; it is decided again only if the driver finds other rows"
    REPAIR = "write again what is lost of a decided batch; the driver compares rows and checksum before it is decided"


class TransactionalProducer(Protocol):
    """What is needed of a producer here."""

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Do what `Producer.init_transactions` does."""

    def begin_transaction(self) -> None:
        """Do what `Producer.begin_transaction` does."""

    def detach_transaction(self) -> TransactionHandle:
        """Do what `Producer.detach_transaction` does."""

    @property
    def initialization_in_doubt(self) -> bool:
        """Whether an answer to the last InitProducerId was lost, so that the request may arrive again."""


def admit(
    plan: BatchPlan, query_id: str, batch_id: int, slots: Slots | None = None, *, task: int | None = None
) -> Admission:
    """Decide what a task does with its batch.

    Args:
        plan: as the driver made it.
        query_id: of the streaming query; settings.BATCH_QUERY_ID in a batch job.
        batch_id: 0 in a batch job.
        slots: those of this process, unless given.
        task: the index of the Spark partition; only a repair asks for it.

    Raises:
        SinkSupersededError: a newer execution has been here.
        DecidedDataLostError: another batch is to be repaired first.
        RestoredCheckpointError: a later batch of the query was decided already, or this one with another topic, or the
            log does not know any more.
    """
    (slots or process_slots()).note(plan)
    last = plan.last_decided.get(query_id)
    rewrites = plan.on_restored_checkpoint == "rewrite"
    went_elsewhere = last == batch_id and goes_elsewhere(plan.topics, query_id, plan.topic)
    if went_elsewhere and (plan.repair is not None or not rewrites):  # a repair would write a part elsewhere
        raise elsewhere_error(query_id, batch_id, plan.topics[query_id], plan.topic)
    if plan.repair is not None:
        return _admit_to_repair(plan.repair, query_id, batch_id, task)
    if last is None and plan.forgotten and batch_id > 0 and not rewrites:
        raise _forgotten(plan, query_id, batch_id)
    if last is None or last < batch_id:
        return Admission.WRITE
    if last == batch_id:
        is_compared = rewrites and (went_elsewhere or query_id in plan.compared)
        return Admission.COMPARE if is_compared else Admission.SKIP
    if rewrites:
        return Admission.WRITE
    where = topic_in_words(plan.topics[query_id]) if query_id in plan.topics else "the topic"
    raise RestoredCheckpointError(
        f"batch {batch_id} of query {query_id} is older than batch {last}, which is in {where} already: the "
        "checkpoint was set back. Nothing was written. Go on with the newer checkpoint; or set "
        "onRestoredCheckpoint=rewrite, and the batches from here on are written a second time"
    )


def goes_elsewhere(topics: Mapping[str, str | None], query_id: str, topic: str | None) -> bool:
    """Whether the last batch of a query was decided with another topic setting; where it is not known, it was not.

    The checksum of rows does not tell: it covers the column `topic`, and not the setting.
    """
    return topics.get(query_id, topic) != topic


def elsewhere_error(
    query_id: str, batch_id: int, before: str | None, now: str | None
) -> RestoredCheckpointError:
    """What is said of a batch that comes again with another topic setting."""
    return RestoredCheckpointError(
        f"batch {batch_id} of query {query_id} was written to {topic_in_words(before)}, and comes again for "
        f"{topic_in_words(now)}: the option topic was changed, or a copy of the checkpoint was used under the same "
        "sink name; nothing was written. Start once with the topic of before, until this batch is over; or set "
        "onRestoredCheckpoint=rewrite for one start, and it is written a second time (after a copy: give that one a "
        "sinkId of its own first)"
    )


def _forgotten(plan: BatchPlan, query_id: str, batch_id: int) -> RestoredCheckpointError:
    return RestoredCheckpointError(
        f"whether batch {batch_id} of query {query_id} was written is not known any more: since then the sink was used "
        f"by more query ids than its log remembers, and {plan.forgotten} were forgotten. Nothing was written. Look "
        "into the topic: if the batch is there, start with a checkpoint behind it; if not, set "
        "onRestoredCheckpoint=rewrite for one start. Give each query a sinkId of its own, and this cannot happen"
    )


def _admit_to_repair(repair: Repair, query_id: str, batch_id: int, task: int | None) -> Admission:
    if (repair.query_id, repair.batch_id) != (query_id, batch_id):
        raise DecidedDataLostError(
            f"batch {repair.batch_id} of query {repair.query_id!r} was decided, but {len(repair.tasks)} of its "
            f"transactions are lost, and it is not that batch which is replayed but batch {batch_id} of query "
            f"{query_id!r}. Nothing was written: write the lost records again from the source, then run "
            "`penstock recover --accept-loss` for this sink"
        )
    return Admission.REPAIR if task in repair.tasks else Admission.SKIP


@dataclass
class _SinkSlots:
    newest: Execution
    free: dict[Execution, list[int]] = field(
        default_factory=dict
    )  # given back, by the execution that used them


class Slots:
    """The transactional ids of one worker process. Safe for several threads.

    All fields are guarded by the lock; a child made by a fork starts anew with a name of its own.
    """

    def __init__(self) -> None:
        self._lock: Any = new_lock()
        self._pid = -1
        self._worker = ""
        # By cluster, as it was named, and sink; last used last. What is forgotten costs new ids, and no more: they are
        # counted for the whole process, so that none is given out twice however a cluster is named.
        self._sinks: dict[tuple[str, str], _SinkSlots] = {}
        self._made = 0

    def note(self, plan: BatchPlan) -> None:
        """Take notice of an execution.

        Raises:
            SinkSupersededError: a newer one has been here.
        """
        with self._lock:
            self._slots_of_locked(plan)

    def take(self, plan: BatchPlan) -> str:
        """An id that no transaction of this execution has, nor will have.

        Raises:
            SinkSupersededError: a newer execution has been here.
        """
        with self._lock:
            slots = self._slots_of_locked(plan)
            older = [execution for execution in slots.free if execution < plan.execution]
            if older:
                oldest = min(older)
                slot = slots.free[oldest].pop()
                if not slots.free[oldest]:
                    del slots.free[oldest]
            else:
                slot = self._made
                self._made += 1
            return str(TaskId(plan.sink_key, plan.execution.generation, self._worker, slot))

    def give_back(self, transactional_id: str, plan: BatchPlan) -> None:
        """A later execution may use the id again: its transaction was handed over, or aborted with an answer."""
        with self._lock:
            self._enter_process_locked()
            slots = self._sinks.get((plan.cluster, plan.sink_key))
            prefix = str(TaskId(plan.sink_key, plan.execution.generation, self._worker, 0))[:-1]
            if slots is None or not transactional_id.startswith(prefix):
                return  # made before a fork
            if slots.newest.generation == plan.execution.generation:
                slots.free.setdefault(plan.execution, []).append(int(transactional_id[len(prefix) :]))

    def forget(self) -> None:
        """Forget the executions. Ids are counted on: none is given out twice."""
        with self._lock:
            self._sinks.clear()

    def _slots_of_locked(self, plan: BatchPlan) -> _SinkSlots:
        self._enter_process_locked()
        place = (plan.cluster, plan.sink_key)
        slots = self._sinks.pop(place, None) or _SinkSlots(plan.execution)
        self._sinks[place] = slots
        while len(self._sinks) > _MAX_SINKS:
            del self._sinks[next(iter(self._sinks))]
        if plan.execution < slots.newest:
            raise SinkSupersededError(
                f"this task belongs to execution {plan.execution} of its batch, but execution {slots.newest} has begun "
                "meanwhile: nothing was written, and nothing needs to be done"
            )
        if plan.execution.generation > slots.newest.generation:
            slots.free.clear()  # ids of another generation are not ours to initialise any more
        slots.newest = plan.execution
        return slots

    def _enter_process_locked(self) -> None:
        """Give the process its name, lazily: a name made before a fork would be shared by all children."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._worker = secrets.token_hex(6)
            self._sinks = {}
            self._made = 0


_slots = Slots()


def process_slots() -> Slots:
    return _slots


def forget_clusters() -> None:
    """Forget which executions were here: another cluster may get the same address."""
    _slots.forget()


def open_transaction(producer: TransactionalProducer, plan: BatchPlan, slots: Slots | None = None) -> str:
    """Begin a transaction that nobody else knows of; its id, for `Slots.give_back`.

    The producer must be new, or have detached its last transaction, and use plan.transaction_timeout_ms as its
    transaction.timeout.ms.

    Raises:
        SinkSupersededError: a newer execution has been here.
        KafkaError: the coordinator does not answer, or refuses.
    """
    slots = slots or process_slots()
    for _ in range(_MAX_LOST_IDS):
        transactional_id = slots.take(plan)
        producer.init_transactions(
            transactional_id
        )  # an id for which this fails is not given back, nor used again
        producer.begin_transaction()
        if not producer.initialization_in_doubt:
            return transactional_id
        # A request without an answer may still be on its way, and would abort what is written under this id.
        # So the id is not given back.
        producer.detach_transaction()
    raise SinkError(
        f"the transaction coordinator did not answer {_MAX_LOST_IDS} times in a row; nothing was written: look at the "
        "brokers' health, the task can be run again"
    )


def check_wanted(plan: BatchPlan, client: ControlClient) -> None:
    """Make sure that the execution of a task can still be decided.

    Raises:
        SinkSupersededError: it cannot: what the task has written is to be aborted.
    """
    # Here and not above: a task waits for what it imports before its first row.
    from penstock.control.transactions import describe_transactions
    from penstock.sink.decision import is_ours

    identity = plan.stamp.coordinator
    name = identity.transactional_id
    try:
        found = describe_transactions([name], client, timeout=_ASK_SECONDS)[name]
    except KafkaError as error:
        # The driver's commit finds out; this is because readers wait.
        tell(
            log, logging.WARNING, Event.SINK_CHECK_FAILED,
            "whether this task's batch is still wanted could not be found out: %s", error,
            transactional_id=name, error=error,
        )  # fmt: skip
        return
    if found is None or not is_ours(found, identity) or found.state != _EMPTY:
        raise SinkSupersededError(
            f"execution {plan.execution} of this task's batch is over: it was stopped, or decided without this "
            "attempt, or has begun anew. What was written here is aborted, and nothing needs to be done"
        )
