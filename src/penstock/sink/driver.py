# SPDX-License-Identifier: Apache-2.0
"""The blocking calls of a driver: prepare a batch, commit it, abort it. Each may be repeated."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from penstock.control.client import ControlClient, IdleClients
from penstock.control.topics import topic_shape
from penstock.errors import KafkaError
from penstock.sink.aborting import abort_steps
from penstock.sink.cluster import Cluster, LogReaders
from penstock.sink.committing import CommitReport, commit_steps
from penstock.sink.effects import ReadLog
from penstock.sink.identity import DriverIdentity
from penstock.sink.log.view import SinkView
from penstock.sink.messages import BatchPlan, Message
from penstock.sink.preparing import PlannerMemory, prepare_steps
from penstock.sink.replaced import TopicIds
from penstock.sink.settings import SinkSettings

# Of this process; a child made by a fork starts anew.
_clients = IdleClients()
_readers = LogReaders()
# Last used last. What is forgotten is found out again at the brokers.
_memories: dict[tuple[int, str, str, str], PlannerMemory] = {}
_MAX_MEMORIES = 256  # a process that writes one batch job after the other meets a new sink each time


def prepare(
    settings: SinkSettings, driver: DriverIdentity | None = None, *, client: ControlClient | None = None
) -> BatchPlan:
    """Take the sink over if need be, finish what was decided, and make a plan for one execution of a batch.

    Each call is an execution of its own and takes from the last one the right to decide: call it once per execution,
    and keep the plan.

    Args:
        settings: the sink.
        driver: who wants to write; this process, unless given.
        client: an open client; one of its own, unless given.

    Raises:
        SinkSupersededError: another driver has taken over.
        DecidedDataLostError: something that was decided is lost.
        SinkError: see docs/errors.md; nothing was written.
        KafkaError: the brokers do not answer.
    """
    driver = driver or DriverIdentity.current()
    memory = _memory(settings, driver)
    with _cluster(settings, client) as cluster:
        return cluster.run(prepare_steps(settings, driver, memory, time.monotonic()))


def commit(
    settings: SinkSettings,
    messages: Iterable[Message | None],
    batch_id: int = 0,
    *,
    topic_ids: TopicIds | None = None,
    client: ControlClient | None = None,
) -> CommitReport:
    """Decide a batch, and make it visible.

    Args:
        settings: the sink.
        messages: one from each task.
        batch_id: of the streaming query; 0 for a batch job.
        topic_ids: the ids under which the tasks have known the topics that they wrote to, as far as brokers tell.
        client: an open client; one of its own, unless given.

    Raises:
        DecisionRefusedError: the batch was not decided: run it again.
        DecisionInDoubtError: whether it was decided, or is visible as a whole, is not known: the next start finds out.
        DecidedDataLostError: it was decided, but a transaction died before it could be committed.
        SinkSupersededError: another driver has taken over.
        KafkaError: the brokers do not answer.
    """
    with _cluster(settings, client) as cluster:
        return cluster.run(commit_steps(settings, messages, batch_id, topic_ids))


def abort(
    settings: SinkSettings,
    messages: Iterable[Message | None],
    batch_id: int = 0,
    plan: BatchPlan | None = None,
    *,
    driver: DriverIdentity | None = None,
    client: ControlClient | None = None,
) -> bool:
    """Give a batch up, unless it is decided, or may be: then it is left to the next start.

    Args:
        settings: the sink.
        messages: of the tasks that have ended well; None for each of the others.
        batch_id: of the streaming query; 0 for a batch job.
        plan: that of the execution, where it is at hand: perhaps no task has a message.
        driver: who gives the batch up; this process's, unless given.
        client: an open client; one of its own, unless given.

    Returns:
        Whether its transactions were aborted.
    """
    with _cluster(settings, client) as cluster:
        return cluster.run(
            abort_steps(settings, messages, batch_id, plan, driver or DriverIdentity.current())
        )


def driver_client(settings: SinkSettings) -> AbstractContextManager[ControlClient]:
    """The client that the next of these calls will use, for what else a driver asks: so it connects once."""
    return _clients.borrow(settings.config)


def was_used(settings: SinkSettings, timeout: float) -> bool:
    """Whether the log says that this sink has had an owner; False when it does not tell within the time."""
    try:
        with _clients.borrow(settings.config) as opened:
            cluster = Cluster(opened, settings.cluster, settings.log_topic, _readers, timeout=timeout)
            view: SinkView = cluster.perform(ReadLog(settings.sink_key))
    except KafkaError:
        return False  # the caller goes on to say what is wrong
    return view.owner is not None


def was_decided(settings: SinkSettings) -> bool:
    """Whether the log has a decision of this sink about its topic, or one that is just being written.

    Raises:
        KafkaError: the log does not tell.
    """
    with _clients.borrow(settings.config) as opened:
        if topic_shape(opened, settings.log_topic) is None:
            return False
        cluster = Cluster(opened, settings.cluster, settings.log_topic, _readers)
        view: SinkView = cluster.perform(ReadLog(settings.sink_key))
    return view.deciding or (view.decision is not None and view.decision.topic == settings.topic)


def forget_clusters() -> None:
    """Close the idle connections, and forget what was found out: another cluster may get the same address."""
    _clients.close()
    _readers.clear()
    _memories.clear()


@contextmanager
def _cluster(settings: SinkSettings, client: ControlClient | None) -> Iterator[Cluster]:
    with nullcontext(client) if client is not None else _clients.borrow(settings.config) as opened:
        yield Cluster(opened, settings.cluster, settings.log_topic, _readers)


def _memory(settings: SinkSettings, driver: DriverIdentity) -> PlannerMemory:
    pid = os.getpid()
    place = (pid, driver.token, settings.cluster, settings.sink_key)
    memory = _memories.pop(place, None)
    if memory is None:
        for stale in [each for each in _memories if each[0] != pid]:
            del _memories[stale]
        memory = PlannerMemory()
    _memories[place] = memory
    while len(_memories) > _MAX_MEMORIES:
        del _memories[next(iter(_memories))]
    return memory
