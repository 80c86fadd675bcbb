# SPDX-License-Identifier: Apache-2.0
"""What `penstock recover` asks and does: the state of sinks, and finishing what anyone has decided.

Looking and finishing take no transactional id over, so that a running job is not disturbed: a decision that is
committed may be finished by anyone, as often as it takes. Ending what is left over does, but only of drivers that do
not run, or of which the caller says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.control.client import ControlClient, ControlSource, control_client
from penstock.control.complete import Completion
from penstock.control.topics import topic_shape
from penstock.control.transactions import TransactionListing, describe_transactions, list_transactions
from penstock.errors import (
    DecisionInDoubtError,
    SinkError,
    SinkLogLostError,
    TransactionAbortedError,
    TransactionUnknownError,
)
from penstock.sink.cleaning import end_run, fence, tasks_of
from penstock.sink.cluster import Cluster
from penstock.sink.committing import CommitReport
from penstock.sink.decision import complain_of, counted, forget, lost_error, lost_handles
from penstock.sink.effects import AppendFacts, CheckDrivers, Effects, EndAll, ListOngoing, ReadLog
from penstock.sink.identity import Jvm, Life, life_of, parse_task_id, task_id_pattern
from penstock.sink.log.records import Decision, done_records
from penstock.sink.log.topic import LogReader
from penstock.sink.log.view import LogContents, SinkView
from penstock.sink.messages import Execution, TaskHandle
from penstock.sink.settings import DEFAULT_LOG_TOPIC
from penstock.sink.settings import sink_key as key_of
from penstock.types import TopicPartition

_ONGOING = "Ongoing"
# Only after these is a transaction lost. After anything else (a missing permission, say) it may well be committed.
_FOR_GOOD = (TransactionAbortedError, TransactionUnknownError)


class HandleState(NamedTuple):
    """A task's transaction of a decided batch, as its coordinator knows it.

    Attributes:
        state: open, ended, or gone; in words.
        is_open: it still waits for its end.
    """

    handle: TaskHandle
    state: str
    is_open: bool


class DecisionState(NamedTuple):
    """The last decision of a sink.

    Attributes:
        done: the log says that all of it is visible.
        handles: how each stands; empty when done.
        rows: rows in it.
    """

    execution: Execution
    query_id: str
    batch_id: int
    topic: str | None
    rows: int
    done: bool
    handles: tuple[HandleState, ...] = ()


class OpenTransaction(NamedTuple):
    """A task's transaction that is open, and in no decision.

    Attributes:
        started_ms: when its first record was written, by its coordinator's clock; -1 when that is not known.
        timeout_ms: how long after that it is aborted by itself.
        partitions: where readers of committed records wait for it.
    """

    transactional_id: str
    generation: int
    producer_id: int
    state: str
    started_ms: int = -1
    timeout_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()


class SinkState(NamedTuple):
    """A sink as its log and the brokers know it.

    Attributes:
        sink_id: its name, and run_id that of the run; None when the log does not tell.
        owner: the JVM that owns it, or None; planner_pid is that of its planner process.
        generation: how often it was taken over.
        last_decided: the last decided batch of the latest queries.
        decision: the last one.
        deciding: a decision is being written at this moment, or its driver died while it wrote it.
        left_over: transactions that wait for the next start or their time-out.
        unreadable: why the log does not tell how it stands; None when it does.
        life: whether the owner runs, as far as it can be told here.
    """

    sink_key: str
    sink_id: str | None
    run_id: str | None
    owner: Jvm | None
    planner_pid: int
    generation: int
    last_decided: Mapping[str, int] = MappingProxyType({})
    decision: DecisionState | None = None
    deciding: bool = False
    left_over: tuple[OpenTransaction, ...] = ()
    unreadable: str | None = None
    life: Life = Life.UNKNOWN

    @property
    def needs_roll_forward(self) -> bool:
        """Whether a decided batch may not be visible as a whole."""
        return self.decision is not None and not self.decision.done


class StrayRecord(NamedTuple):
    """A record in the decision topic that does not count: Penstock has not written it, or not like this.

    Attributes:
        partition: where it is, and offset.
        sink_key: the sink that its key names; None when it names none.
        reason: why it does not count.
    """

    partition: int
    offset: int
    sink_key: str | None
    reason: str


class LogState(NamedTuple):
    """The whole decision topic.

    Attributes:
        sinks: how each stands.
        strays: records that do not count, the first ones of each partition.
        stray_count: how many of them there are.
    """

    sinks: list[SinkState]
    strays: tuple[StrayRecord, ...] = ()
    stray_count: int = 0


def inspect_sinks(
    config: ControlSource, sink_key: str | None = None, *, log_topic: str = DEFAULT_LOG_TOPIC
) -> list[SinkState]:
    """How a sink stands, or all that the log knows; changes nothing.

    Args:
        config: options of a client, or an open one.
        sink_key: the only one that is of interest; see `sink_key` for how a name becomes a key.
        log_topic: where decisions are written.

    Raises:
        KafkaError: the brokers do not answer.
    """
    return inspect_log(config, sink_key, log_topic=log_topic).sinks


def inspect_log(
    config: ControlSource, sink_key: str | None = None, *, log_topic: str = DEFAULT_LOG_TOPIC
) -> LogState:
    """The same, and what else is in the decision topic; changes nothing.

    Args:
        config: options of a client, or an open one.
        sink_key: the only one that is of interest.
        log_topic: where decisions are written.

    Raises:
        KafkaError: the brokers do not answer.
    """
    with control_client(config) as client:
        topic = topic_shape(client, log_topic)
        if topic is None:
            return LogState([])
        views: list[SinkView | SinkState] = []
        strays: list[StrayRecord] = []
        stray_count = 0
        for partition in range(topic.partitions):
            contents = LogReader(log_topic, partition).read(client)
            views += _views(contents, sink_key)
            of_interest = [stray for stray in contents.strays if sink_key in (None, stray.sink_key)]
            strays += [StrayRecord(partition, *stray) for stray in of_interest]
            stray_count += contents.stray_count if sink_key is None else len(of_interest)
        ongoing = list_transactions(client, pattern=task_id_pattern(), states=[_ONGOING])
        known = {view.sink_key for view in views}
        # Of a decision topic with another name, or of tasks that still run, though the log has forgotten their run.
        others = {
            parts.sink_key for each in ongoing if (parts := parse_task_id(each.transactional_id))
        } - known
        views += [SinkView(key) for key in sorted(others) if sink_key in (None, key)]
        sinks = [view if isinstance(view, SinkState) else _state(client, view, ongoing) for view in views]
        return LogState(sinks, tuple(sorted(strays, key=_place)), stray_count)


def _place(stray: StrayRecord) -> tuple[int, int]:
    return stray.partition, stray.offset


def _views(contents: LogContents, only: str | None) -> list[SinkView | SinkState]:
    """The sinks of a partition; one whose records cannot be read does not hide the others."""
    views: list[SinkView | SinkState] = []
    for key in contents.sink_keys():
        if only not in (None, key):
            continue
        try:
            views.append(contents.view(key))
        except SinkLogLostError as error:
            views.append(SinkState(key, None, None, None, -1, 0, {}, unreadable=str(error)))
    return views


def _state(client: ControlClient, view: SinkView, ongoing: list[TransactionListing]) -> SinkState:
    claim, owner, decision = view.claim, view.owner, view.decision
    if claim is not None and key_of(claim.sink_id, claim.run_id) != view.sink_key:
        claim = None  # the key is made of the name: this one is somebody else's
    handles = () if view.undone is None else _handle_states(client, view.undone)
    decided = {state.handle.transaction.transactional_id for state in handles}
    names = [name for name in tasks_of(view.sink_key, _ids(ongoing)) if name not in decided]
    return SinkState(
        sink_key=view.sink_key,
        sink_id=None if claim is None else claim.sink_id,
        run_id=None if claim is None else claim.run_id,
        owner=None if owner is None else owner.jvm,
        planner_pid=-1 if owner is None else owner.planner_pid,
        generation=0 if owner is None else owner.generation,
        last_decided={} if decision is None else dict(decision.last_decided),
        decision=None if decision is None else _decision_state(decision, view.done, handles),
        deciding=view.deciding,
        left_over=_open_transactions(client, names) if names else (),
        life=Life.UNKNOWN if owner is None else life_of(owner.jvm, owner.place),
    )


def _ids(listings: list[TransactionListing]) -> list[str]:
    return [listing.transactional_id for listing in listings]


def _open_transactions(client: ControlClient, names: list[str]) -> tuple[OpenTransaction, ...]:
    found = []
    for name, described in describe_transactions(names, client).items():
        parts = parse_task_id(name)
        if parts is None or described is None or described.state != _ONGOING:
            continue  # it has ended since
        found.append(
            OpenTransaction(
                name,
                parts.generation,
                described.producer_id,
                described.state,
                described.start_time_ms,
                described.timeout_ms,
                tuple(sorted(described.partitions)),
            )
        )
    return tuple(found)


def _decision_state(decision: Decision, done: bool, handles: tuple[HandleState, ...]) -> DecisionState:
    return DecisionState(
        decision.execution,
        decision.query_id,
        decision.batch_id,
        decision.topic,
        decision.rows,
        done,
        handles,
    )


def _handle_states(client: ControlClient, decision: Decision) -> tuple[HandleState, ...]:
    names = [handle.transaction.transactional_id for handle in decision.handles]
    described = describe_transactions(names, client)
    states = []
    for handle, name in zip(decision.handles, names, strict=True):
        found = described[name]
        transaction = handle.transaction
        same_id = found is not None and found.producer_id == transaction.producer_id
        if found is None or not same_id:
            states.append(HandleState(handle, "its coordinator does not know it any more", is_open=False))
        elif found.state == _ONGOING and found.producer_epoch == transaction.producer_epoch:
            states.append(HandleState(handle, "open, waiting for its commit", is_open=True))
        else:
            states.append(HandleState(handle, f"ended ({found.state})", is_open=False))
    return tuple(states)


def roll_forward(
    config: ControlSource, sink_key: str, *, log_topic: str = DEFAULT_LOG_TOPIC, accept_loss: bool = False
) -> CommitReport:
    """Finish what any driver has decided.

    Args:
        config: options of a client, or an open one.
        sink_key: of the sink.
        log_topic: where decisions are written.
        accept_loss: take the decision for done although transactions of it are lost, or nobody can tell how they
            ended; for when their records were written by other means.

    Returns:
        What was committed; `decided` is False, as this call decides nothing. The counts leave out what is lost.

    Raises:
        DecidedDataLostError: some of it was aborted before.
        DecisionInDoubtError: how some of it ended is not known yet; call it again.
        SinkError: the log does not know the sink.
        KafkaError: the brokers do not answer.
    """
    with control_client(config) as client:
        cluster = Cluster(client, "", log_topic)
        return cluster.run(_roll_forward(sink_key, accept_loss=accept_loss))


def _roll_forward(sink_key: str, *, accept_loss: bool) -> Effects[CommitReport]:
    view: SinkView = yield ReadLog(sink_key)
    if view == SinkView(sink_key):
        raise SinkError(
            f"the log does not know a sink with the key {sink_key}: is it the right topic and cluster?"
        )
    decision = view.undone
    if decision is None:
        return CommitReport(decided=False)
    completions: list[Completion] = yield EndAll(
        tuple(handle.transaction for handle in decision.handles), commit=True
    )
    if not accept_loss:
        lost = lost_handles(decision, completions)
        if lost:
            raise lost_error(decision, lost)
        complain_of(decision, completions)
    committed, lost = _sorted_by_end(decision, completions)
    yield AppendFacts(sink_key, tuple(done_records(sink_key, decision, lost)))
    if view.is_one_off:
        yield from forget(sink_key, decision.execution)
    rows = sum(handle.rows for handle in committed)
    return CommitReport(False, False, len(committed), rows, counted(committed))


def end_left_over(
    config: ControlSource, sink_key: str, *, log_topic: str = DEFAULT_LOG_TOPIC, elsewhere: bool = False
) -> list[str]:
    """Abort open transactions of drivers that were replaced or have ended; what is decided is finished before.

    Args:
        config: options of a client, or an open one.
        sink_key: of the sink.
        log_topic: where decisions are written.
        elsewhere: also of a driver of which cannot be told from here whether it runs: the caller knows that it does
            not. If it does, its batch fails, and nothing of it becomes visible.

    Returns:
        The transactional ids of what is not open any more.

    Raises:
        KafkaError: the brokers do not answer, or what was decided cannot be finished.
    """
    with control_client(config) as client:
        return Cluster(client, "", log_topic).run(_end_left_over(sink_key, elsewhere=elsewhere))


def _end_left_over(sink_key: str, *, elsewhere: bool) -> Effects[list[str]]:
    view: SinkView = yield ReadLog(sink_key)
    if view.owner is None:
        return []
    newest = view.owner.generation
    before = tasks_of(sink_key, (yield ListOngoing(sink_key)))
    decided = (
        set() if view.undone is None else {each.transaction.transactional_id for each in view.undone.handles}
    )
    replaced, own = [], []
    for name in before:
        parts = parse_task_id(name)
        if parts is not None and parts.generation < newest and name not in decided:
            replaced.append(name)
        elif parts is not None and parts.generation == newest:
            own.append(name)
    yield from fence(replaced)
    lives: list[Life] = yield CheckDrivers((view.owner,))
    if own and (lives == [Life.ENDED] or (elsewhere and lives == [Life.UNKNOWN])):
        yield from end_run(view, own)
    after = set(tasks_of(sink_key, (yield ListOngoing(sink_key))))
    return [name for name in before if name not in after]


def _sorted_by_end(
    decision: Decision, completions: list[Completion]
) -> tuple[list[TaskHandle], list[TaskHandle]]:
    """What is committed, and what is lost or nobody can tell any more.

    Raises:
        DecisionInDoubtError: it can be found out, but was not: not yet, or not by us.
    """
    committed: list[TaskHandle] = []
    lost: list[TaskHandle] = []
    for handle, completion in zip(decision.handles, completions, strict=True):
        if completion.error is not None and not isinstance(completion.error, _FOR_GOOD):
            raise DecisionInDoubtError(
                f"how the transaction of task {handle.task} ended is not known: {completion.error}. Nothing was "
                "taken down: try again when the cause is gone"
            ) from completion.error
        (committed if completion.error is None else lost).append(handle)
    return committed, lost
