# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted on purpose: what the sink would be without one of its rules. Switches here, none in the sources.

Most change what the protocol's generators ask for, or what they are told, on the way to and from the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.control import partition_log
from penstock.errors import KafkaError
from penstock.sink import Admission, Life, Written, cleaning, cluster, committing, replaying, task
from penstock.sink.effects import (
    AppendInTransaction,
    Describe,
    Effect,
    Effects,
    EndAll,
    EndTransaction,
    InitProducer,
    JoinLog,
    ReadLog,
)
from penstock.sink.log.view import LogContents
from simulation.sink import protocol
from simulation.sink.plan import Theme
from simulation.sink.protocol import Protocol
from simulation.sink.writing import TaskProducer

if TYPE_CHECKING:
    from simulation.sink.actors import Process
    from simulation.sink.driver import Application

Patch = AbstractContextManager[Any]


def _handles(messages: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(message.handle.transaction for message in messages if isinstance(message, Written))


class _Told:
    """Drives a generator of effects, so that a bug can change what it is told."""

    def __init__(self, steps: Effects[Any]) -> None:
        self.steps = steps
        self.result: Any = None

    def begin(self) -> Effect | None:
        return self._go(lambda: next(self.steps))

    def tell(self, outcome: Any) -> Effect | None:
        return self._go(lambda: self.steps.send(outcome))

    def fail(self, error: KafkaError) -> Effect | None:
        return self._go(lambda: self.steps.throw(error))

    def _go(self, move: Callable[[], Effect]) -> Effect | None:
        try:
            return move()
        except StopIteration as stop:
            self.result = stop.value
            return None


Change = Callable[[Effect], Effects[Any]]


def _changed(steps: Effects[Any], change: Change) -> Effects[Any]:
    """The same work, where `change` carries out each effect in its own way."""
    told = _Told(steps)
    effect = told.begin()
    while effect is not None:
        try:
            outcome = yield from change(effect)
        except KafkaError as error:
            effect = told.fail(error)
        else:
            effect = told.tell(outcome)
    return told.result


def _in(name: str, make_change: Callable[..., Change]) -> Patch:
    """Change the work of prepare_steps, commit_steps or abort_steps."""
    original = getattr(protocol, name)

    def changed(*args: Any) -> Effects[Any]:
        return _changed(original(*args), make_change(*args))

    return mock.patch.object(protocol, name, changed)


# ------------------------------------------------------------------------------------------------ the bugs


def decides_after_first_end() -> Patch:
    """The first transaction is committed before the decision is."""

    def make(settings: Any, messages: Any, batch_id: int) -> Change:
        def change(effect: Effect) -> Effects[Any]:
            if isinstance(effect, EndTransaction) and effect.commit:
                yield EndAll(_handles(messages)[:1], commit=True)
            return (yield effect)

        return change

    return _in("commit_steps", make)


def aborts_blindly() -> Patch:
    """abort() aborts all handles, whatever became of the decision."""

    def abort_steps(settings: Any, messages: Any, batch_id: int, *_: Any) -> Effects[None]:
        yield EndAll(_handles(messages), commit=False)

    return mock.patch.object(protocol, "abort_steps", abort_steps)


def skips_nothing() -> Patch:
    """A batch that was decided is written again, and decided again."""

    def is_written_again(*_: Any) -> Effects[bool]:
        return True
        yield  # a generator, like the one that it stands for

    stack = ExitStack()
    stack.enter_context(mock.patch.object(protocol, "admit", return_value=Admission.WRITE))
    stack.enter_context(mock.patch.object(committing, "is_written_again", is_written_again))
    return stack


def skips_by_number_alone() -> Patch:
    """A batch that was decided is skipped, whatever rows it has."""

    def check_skipped(*_: Any) -> Effects[None]:
        return
        yield

    return mock.patch.object(committing, "check_skipped", check_skipped)


def skips_for_another_topic() -> Patch:
    """A batch that was decided is skipped, wherever it was written."""
    stack = ExitStack()
    for module in (task, replaying):
        stack.enter_context(mock.patch.object(module, "goes_elsewhere", return_value=False))
    return stack


def looks_once() -> Patch:
    """Whether another driver has taken over is not looked at again after the coordinator's id was taken."""

    def make(*args: Any) -> Change:
        took = False

        def change(effect: Effect) -> Effects[Any]:
            nonlocal took
            outcome = yield effect
            took = took or isinstance(effect, InitProducer)
            if took and isinstance(effect, ReadLog) and outcome.owner is not None:
                return outcome._replace(owner=outcome.owner._replace(previous=()))
            return outcome

        return change

    return _in("prepare_steps", make)


def reads_committed() -> Patch:
    """The log is read as a consumer of committed records would: not beyond anybody's open decision."""
    return mock.patch.object(partition_log, "_READ_UNCOMMITTED", 1)


def counts_on_markers() -> Patch:
    """A decision whose marker is not in the log yet is taken for a deleted one once its `done` record is there."""
    return mock.patch.object(LogContents, "_awaits", return_value=False)


def puts_back_what_was_deleted() -> Patch:
    """A decision counts when its marker is in the log, whatever tombstones have come since."""
    return mock.patch.object(LogContents, "_delete_awaited")


def describes_first() -> Patch:
    """The handles are looked at, and their ages taken, before the decision is written."""
    original = Protocol.commit_steps

    def commit_steps(self: Protocol, app: Application, messages: list[Any], number: int) -> Effects[Any]:
        seen: dict[str, Any] = {}
        looked_at_ms = 0

        def change(effect: Effect) -> Effects[Any]:
            nonlocal looked_at_ms
            if isinstance(effect, JoinLog | AppendInTransaction) and not seen:
                seen.update((yield Describe(tuple(each.transactional_id for each in _handles(messages)))))
                looked_at_ms = self.sim.cluster.wall_ms()
            outcome = yield effect
            if isinstance(effect, Describe) and seen:
                own = effect.transactional_ids[0]
                return {own: outcome[own]._replace(start_time_ms=looked_at_ms), **seen}
            return outcome

        return _changed(original(self, app, messages, number), change)

    return mock.patch.object(Protocol, "commit_steps", commit_steps)


def keeps_identity() -> Patch:
    """A task uses an id again as it is, without an InitProducerId of its own (older protocol)."""
    return mock.patch.object(TaskProducer, "keeps_identity", True)


def cleans_by_prefix() -> Patch:
    """Open transactions of all sinks are taken for left-overs of this one."""

    class AnyKey(str):
        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = str.__hash__

    parse = cleaning.parse_task_id

    def parse_task_id(name: str) -> Any:
        parts = parse(name)
        return None if parts is None else parts._replace(sink_key=AnyKey(parts.sink_key))

    stack = ExitStack()
    stack.enter_context(
        mock.patch.object(cluster, "task_id_pattern", return_value=r"ps\.[0-9a-f]+\.[0-9]+\..*")
    )
    stack.enter_context(mock.patch.object(cleaning, "parse_task_id", parse_task_id))
    return stack


def prepares_twice() -> Patch:
    """Each of the two times that Spark pickles the writer prepares, and tasks get what the first one gave."""
    prepare = Protocol.prepare

    def twice(self: Protocol, process: Process, app: Application) -> Any:
        first = prepare(self, process, app)
        prepare(self, process, app)
        return first

    return mock.patch.object(Protocol, "prepare", twice)


def finishes_own_query_only() -> Patch:
    """A decision of another query, of before the checkpoint was deleted, is not finished."""
    original = Protocol.prepare_steps

    def prepare_steps(self: Protocol, process: Process, app: Application) -> Effects[Any]:
        own = self.query_id(app.sink, app.checkpoint.query_id)

        def change(effect: Effect) -> Effects[Any]:
            outcome = yield effect
            if isinstance(effect, ReadLog) and outcome.undone is not None and outcome.undone.query_id != own:
                return outcome._replace(done=True)
            return outcome

        return _changed(original(self, process, app), change)

    return mock.patch.object(Protocol, "prepare_steps", prepare_steps)


def forgets_doubt() -> Patch:
    """An InitProducerId without an answer may still arrive, and its id is used nevertheless."""
    return mock.patch.object(TaskProducer, "forgets_doubt", True)


def goes_on_in_doubt() -> Patch:
    """When the commit of the decision has no plain yes for an answer, the handles are ended all the same."""

    def make(*args: Any) -> Change:
        def change(effect: Effect) -> Effects[Any]:
            if not isinstance(effect, EndTransaction):
                return (yield effect)
            try:
                return (yield effect)
            except KafkaError:
                return None

        return change

    return _in("commit_steps", make)


def both_count_for_themselves() -> Patch:
    """Planner processes of one driver are one owner, and each counts the executions that it has planned."""
    prepare = Protocol.prepare

    def counting(self: Protocol, process: Process, app: Application) -> Any:
        plan = prepare(self, process, app)
        number = process.memory["executions"] = process.memory.get("executions", 0) + 1
        execution = plan.execution._replace(number=number)
        return replace(plan, stamp=replace(plan.stamp, execution=execution))

    return mock.patch.object(Protocol, "prepare", counting)


def takes_the_living_for_dead() -> Patch:
    """A run is taken for dead because it is not this one."""
    return mock.patch.object(
        protocol.WatchedCluster, "lives", lambda self, effect: [Life.ENDED for _ in effect.owners]
    )


@dataclass(frozen=True)
class Bug:
    """A mistake.

    Attributes:
        plant: makes it, for as long as its context lasts.
        theme: where it is worth looking for when time is short; None is everywhere.
        seed: where it was seen last; what it takes may have moved to another one since.
    """

    plant: Callable[[], Patch]
    theme: Theme | None
    seed: int

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", "-")


_BUGS = (
    Bug(decides_after_first_end, None, 1010),
    Bug(aborts_blindly, None, 1010),
    Bug(skips_nothing, None, 1000),
    Bug(skips_by_number_alone, None, 1000),
    Bug(skips_for_another_topic, None, 1002),
    Bug(looks_once, None, 1022),
    Bug(reads_committed, Theme.HELD_LOG, 1010),
    Bug(counts_on_markers, None, 1007),
    Bug(puts_back_what_was_deleted, Theme.LATE_MARKERS, 1001),
    Bug(describes_first, Theme.LONG_ABSENCE, 1015),
    Bug(keeps_identity, None, 1000),
    Bug(cleans_by_prefix, None, 1008),
    Bug(prepares_twice, None, 1000),
    Bug(finishes_own_query_only, None, 1014),
    Bug(forgets_doubt, Theme.LATE_INIT, 1086),
    Bug(goes_on_in_doubt, None, 1021),
    Bug(both_count_for_themselves, None, 1000),
    Bug(takes_the_living_for_dead, None, 1000),
)
BUGS = {bug.name: bug for bug in _BUGS}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run the block with a bug, or without."""
    if name is None:
        yield
        return
    with BUGS[name].plant():
        yield
