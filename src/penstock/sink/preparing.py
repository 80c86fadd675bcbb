# SPDX-License-Identifier: Apache-2.0
"""Before a batch: become the owner, finish what was decided, clean up, and make the plan. No I/O.

Rules:
1. A JVM that was replaced touches nothing. One that another has overtaken while it was starting gives way.
2. Every InitProducerId of the coordinator's id is followed by a reading of the log, and only an identity after which
   the log still named us as the owner may decide. A driver that was quicker is seen then, with all that it decided.
3. The sink's name is in the log before its coordinator's id is first used. So an id that brokers know, without a name
   in the log, means that the log is lost, however often a first start died half-way.
4. What was decided is finished before anything else is done, whichever query decided it.
5. The planner processes of one JVM are one owner. None of them counts executions: (generation, epoch of the
   coordinator's id) is given once and grows, whichever process plans. When the id gets another producer id, because its
   epochs are used up or brokers have forgotten it, a generation begins.
6. Cleaning up is only for readers, who wait for open transactions: what goes wrong there stops nothing.
7. Where an abort does not keep a task from writing on, which would never end (brokers before 3.6), a generation begins
   before what is open is ended: then no run uses its ids any more, and taking them over fences the task.
8. Drivers that take over at the same time fence each other: each waits longer after every time, and not as long as the
   other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from penstock._identity import TransactionalIdentity
from penstock.error_codes import ErrorCode
from penstock.errors import (
    BrokerError,
    ConfigError,
    KafkaError,
    RunIdReusedError,
    SinkError,
    SinkLogLostError,
    SinkSupersededError,
)
from penstock.protocol.releases import UNKNOWN
from penstock.sink.cleaning import abort_shuts_out, clean_up, end_dead_runs, find_own
from penstock.sink.decision import (
    COORDINATOR_TIMEOUT_MS,
    finish_what_lives,
    init_producer,
    is_ours,
    write_in_transaction,
)
from penstock.sink.effects import (
    AppendFacts,
    Describe,
    Effects,
    EndTransaction,
    EnsureLogTopic,
    FindOldBroker,
    Note,
    Pause,
    Reached,
    ReadLog,
)
from penstock.sink.hooks import Step
from penstock.sink.identity import DriverIdentity, TaskId, coordinator_id, explain_refusal, probe_id
from penstock.sink.log.records import Claim, Decision, Owner, claim_record, first_owner, owner_record
from penstock.sink.log.view import SinkView
from penstock.sink.messages import BatchPlan, Execution, ExecutionStamp, Repair
from penstock.sink.replaying import plan_repair
from penstock.sink.settings import SinkSettings, topic_in_words

CLEAN_UP_SECONDS = 60.0

# Drivers that take over from each other again and again are a mistake that must show.
_MAX_TAKEOVERS = 20
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 3.0


@dataclass
class PlannerMemory:
    """What one planner process remembers of one sink; what it forgets is found out anew.

    Attributes:
        cleaned_at: when it last cleaned up, monotonic seconds.
        timeout_ms: the tasks' transaction time-out that brokers have accepted; 0 while it is not known.
        log_checked: the log's topic was looked at.
    """

    cleaned_at: float = -CLEAN_UP_SECONDS
    timeout_ms: int = 0
    log_checked: bool = False


def prepare_steps(
    settings: SinkSettings, driver: DriverIdentity, memory: PlannerMemory, now: float
) -> Effects[BatchPlan]:
    """Make a plan for one execution of a batch.

    Args:
        settings: the sink.
        driver: who wants to write.
        memory: that of this process for this sink.
        now: monotonic seconds.

    Raises:
        SinkSupersededError: another driver has the sink.
        SinkError: see docs/errors.md.
        KafkaError: brokers do not answer.
    """
    key = settings.sink_key
    if not memory.log_checked:
        yield from _check_release()
        yield EnsureLogTopic(settings.topic)
        memory.log_checked = True
    began_with = yield from _claim(settings, driver)
    coordinator, view, took_over = yield from _become_owner(settings, driver, began_with)
    repair = yield from _finish_undone(settings, view)
    _check_topic(settings, view)
    if not memory.timeout_ms:
        memory.timeout_ms = yield from _find_timeout(settings)
    failed = not _follows(_execution(view, coordinator), view.decision, coordinator)
    cleans = took_over or failed or now - memory.cleaned_at >= CLEAN_UP_SECONDS
    if cleans and (yield from _needs_generation(key, view, coordinator)):
        coordinator, view, _ = yield from _become_owner(settings, driver, began_with, _generation(view) + 1)
        repair = yield from _finish_undone(settings, view)
    execution = _execution(view, coordinator)
    if cleans:
        memory.cleaned_at = now
        yield from clean_up(key, execution.generation, coordinator)
    if took_over:
        yield from end_dead_runs(settings.sink_id, key)
    yield Reached(Step.PREPARED, {"execution": execution})
    return BatchPlan(
        stamp=ExecutionStamp(key, execution, coordinator),
        last_decided={} if view.decision is None else dict(view.decision.last_decided),
        transaction_timeout_ms=memory.timeout_ms,
        on_restored_checkpoint=settings.on_restored_checkpoint,
        topic=settings.topic,
        cluster=settings.cluster,
        repair=repair,
        compared=frozenset() if view.decision is None else frozenset(view.decision.contents),
        forgotten=0 if view.decision is None else view.decision.forgotten,
        topics={} if view.decision is None else dict(view.decision.topics),
    )


def _check_release() -> Effects[None]:
    """Refuse a cluster that cannot tell the states of transactions, before anything is written to it.

    A decision is made only about transactions that are known to be open, and what failed tasks leave behind is looked
    for: both need answers that brokers before Kafka 3.0 do not give.
    """
    release: str | None = yield FindOldBroker()
    if release is not None:
        what = "of an unknown release" if release == UNKNOWN else f"Kafka {release}"
        raise SinkError(
            "delivery=exactly-once needs Kafka 3.0 or later: older brokers do not tell the states of transactions "
            f"(DescribeTransactions, ListTransactions), and a broker of this cluster is {what}. Nothing was written: "
            "use newer brokers, or set delivery to at-least-once"
        )


def _finish_undone(settings: SinkSettings, view: SinkView) -> Effects[Repair | None]:
    """Finish what was decided and is not done; what is to be written again of it, where some is lost."""
    if view.undone is None:
        return None
    may_be_lost = settings.on_lost == "repair"
    lost = yield from finish_what_lives(settings.sink_key, view.undone, may_be_lost=may_be_lost)
    return plan_repair(view.undone, lost) if lost else None


def _needs_generation(key: str, view: SinkView, coordinator: TransactionalIdentity) -> Effects[bool]:
    """Whether tasks have something open that can only be ended in a new generation (rule 7)."""
    if (yield from abort_shuts_out(coordinator)) or not (yield from find_own(key, _generation(view))):
        return False
    # If another planner process of this driver has taken the id since, what is open may be of its batch.
    described = yield Describe((coordinator.transactional_id,))
    return is_ours(described[coordinator.transactional_id], coordinator)


def _execution(view: SinkView, coordinator: TransactionalIdentity) -> Execution:
    return Execution(_generation(view), coordinator.epoch)


def _follows(execution: Execution, decision: Decision | None, coordinator: TransactionalIdentity) -> bool:
    """Whether the execution before this one was decided; if not it has failed, and has left transactions open."""
    if decision is None or decision.execution.generation != execution.generation:
        return False
    # Taking the id raises its epoch; in the newer protocol the end of a transaction does so, too.
    return execution.number - decision.execution.number <= (2 if coordinator.joins_by_writing else 1)


def _claim(settings: SinkSettings, driver: DriverIdentity) -> Effects[int]:
    """Check that this driver may own the sink, and write the name of a new sink to the log; the generation found."""
    key = settings.sink_key
    view: SinkView = yield ReadLog(key)
    _refuse_if_replaced(settings, view, driver)
    if view.claim is not None:
        return _generation(view)
    known = yield from _describe_own(key)
    if known:
        # Another driver may have given the name, and used the id, since the log was read.
        view = yield ReadLog(key)
        if view.claim is None:
            raise _log_lost(settings)
        _refuse_if_replaced(settings, view, driver)
        return _generation(view)
    yield AppendFacts(key, (claim_record(key, Claim(settings.sink_id, settings.run_id, settings.one_off)),))
    return _generation(view)


def _generation(view: SinkView) -> int:
    return 0 if view.owner is None else view.owner.generation


def _describe_own(sink_key: str) -> Effects[bool]:
    """Whether brokers know the coordinator's id."""
    name = coordinator_id(sink_key)
    try:
        described = yield Describe((name,))
    except BrokerError as error:
        raise explain_refusal(error, f"look at the transactional id {name!r}") from error
    return described[name] is not None


def _become_owner(
    settings: SinkSettings, driver: DriverIdentity, began_with: int, least: int = 0
) -> Effects[tuple[TransactionalIdentity, SinkView, bool]]:
    """Take the coordinator's id until the log, read after it, names us; identity, log, and whether that is new.

    Args:
        settings: the sink.
        driver: who wants to own it.
        began_with: the generation that it found when it came.
        least: the generation that it needs, if not just its own one.
    """
    key = settings.sink_key
    took_over = False
    for attempt in range(_MAX_TAKEOVERS):
        if attempt > 1:  # the first one is followed by another look, not by another try
            yield Pause(_pause_seconds(driver, attempt - 2))
        coordinator = yield from init_producer(coordinator_id(key), COORDINATOR_TIMEOUT_MS)
        view: SinkView = yield ReadLog(key)
        _refuse_if_replaced(settings, view, driver)
        if view.claim is None:
            raise _log_lost(settings)
        if (
            view.owner is not None
            and view.owner.covers(driver, coordinator.producer_id)
            and view.owner.generation >= least
        ):
            return coordinator, view, took_over
        if _generation(view) > began_with and view.owner is not None and view.owner.jvm != driver.jvm:
            # It started after us. We may have slept in between for long, before we ever were an owner.
            raise _superseded(settings, view.owner)
        yield from _check_permissions(settings, coordinator, view.owner)
        producer_id = coordinator.producer_id
        owner = (
            first_owner(driver, producer_id)
            if view.owner is None
            else view.owner.successor(driver, producer_id)
        )
        took_over = True
        try:
            yield from write_in_transaction(coordinator, key, [owner_record(key, owner)])
            yield EndTransaction(coordinator, commit=True)
        except KafkaError as error:
            # Whether it counts, and whether another driver came in between, is seen when the log is read again.
            yield Note(f"the owner record of {settings.name} had no plain yes for an answer: {error}")
            if not _may_try_again(error):
                raise
    raise SinkSupersededError(
        f"{_MAX_TAKEOVERS} times another driver took over {settings.name} while this one did. Nothing was written: are "
        "several jobs running with the same sinkId or checkpoint? Stop all but one"
    )


def _pause_seconds(driver: DriverIdentity, pauses: int) -> float:
    """How long to leave others alone: longer each time, and something else for each driver."""
    digest = hashlib.sha256(f"{driver.token} {pauses}".encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    return share * min(_FIRST_PAUSE_SECONDS * 2.0**pauses, _LONGEST_PAUSE_SECONDS)


# Another driver has taken the id since.
_FENCED_CODES = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
)


def _may_try_again(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.code in _FENCED_CODES


def _check_permissions(
    settings: SinkSettings, coordinator: TransactionalIdentity, owner: Owner | None
) -> Effects[None]:
    """Make sure that brokers show us our ids: what is not shown could be neither finished nor cleaned up."""
    generation = 1 if owner is None else owner.generation + 1
    task = str(TaskId(settings.sink_key, generation, "probe", 0))
    name = coordinator.transactional_id
    try:
        described = yield Describe((name, task))
    except BrokerError as error:
        raise explain_refusal(error, f"look at the transactional ids {name!r} and {task!r}") from error
    if described[name] is None:
        raise SinkError(
            f"the coordinator of {name!r} has just given this id out and says that it does not know it. Nothing was "
            "written: are there brokers older than Kafka 3.0, or an ACL that hides the id?"
        )


def _find_timeout(settings: SinkSettings) -> Effects[int]:
    """The tasks' transaction time-out: as wanted, or as much less as the brokers' limit asks for.

    Raises:
        ConfigError: the limit leaves too little for a driver's restart.
    """
    timeout_ms = settings.transaction_timeout_ms
    while True:
        try:
            yield from init_producer(probe_id(settings.sink_key), timeout_ms)
        except BrokerError as error:
            if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            if timeout_ms <= settings.shortest_timeout_ms:
                raise ConfigError(
                    f"the brokers do not allow a transaction time-out of {timeout_ms} ms, and less than "
                    f"{settings.shortest_timeout_ms} ms leaves no time to finish a batch after a crash. Raise the "
                    "brokers' transaction.max.timeout.ms; or lower recoveryTime, and set transactionTimeout to what "
                    "the brokers allow. Nothing was written"
                ) from error
            timeout_ms = max(timeout_ms // 2, settings.shortest_timeout_ms)
        else:
            if timeout_ms < settings.transaction_timeout_ms:
                yield Note(
                    f"the brokers do not allow transactionTimeout={settings.transaction_timeout_ms}ms, so that it is "
                    f"{timeout_ms} ms. If batches need longer, set it to the brokers' transaction.max.timeout.ms"
                )
            return timeout_ms


def _refuse_if_replaced(settings: SinkSettings, view: SinkView, driver: DriverIdentity) -> None:
    if view.owner is not None and driver.jvm in view.owner.previous:
        raise _superseded(settings, view.owner)


def _superseded(settings: SinkSettings, owner: Owner) -> SinkSupersededError:
    return SinkSupersededError(
        f"{settings.name} belongs to another driver now ({owner.jvm}, generation {owner.generation}), which has taken "
        "over from this one. Nothing was written: stop this job. If it is this one that should go on, stop the other "
        "and start this Spark application anew. Two jobs that are meant to run side by side need a sinkId each"
    )


def _log_lost(settings: SinkSettings) -> SinkLogLostError:
    return SinkLogLostError(
        f"{settings.name} has been used before, but the topic {settings.log_topic!r} does not know it: the log was "
        "deleted, or this is not the topic that was used. What is in the target topics cannot be told, so nothing was "
        "written. Restore the log; or find out what was written, and go on with another sinkId (and, when streaming, "
        "a new checkpoint)"
    )


def _check_topic(settings: SinkSettings, view: SinkView) -> None:
    if not settings.is_batch_job or view.decision is None or view.decision.topic == settings.topic:
        return
    raise RunIdReusedError(
        f"{settings.name} has written to {topic_in_words(view.decision.topic)} before, and is to write to "
        f"{topic_in_words(settings.topic)} now. Nothing was written: a run id stands for one write, use another one"
    )
