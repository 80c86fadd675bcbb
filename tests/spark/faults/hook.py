# SPDX-License-Identifier: Apache-2.0
"""What PENSTOCK_SINK_HOOK names in the tests: runs in Spark's own processes, whenever the sink reaches a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark.faults.processes import java_above
from spark.faults.rules import Marks, Rule, killed_mark

# The batch that this process was last told of.
_last_batch: list[int | None] = [None]
# The sink's own commit, in a process in which it was replaced.
_real_commit: list[Callable[..., Any]] = []

WITHOUT_DECISIONS = "without decisions"


class PlannedFailure(Exception):
    """What a rule raises."""


def at_step(step: Any, facts: Mapping[str, Any]) -> None:
    """Called by the sink."""
    marks = Marks.of_this_process()
    place = _place(facts)
    for number, rule in enumerate(marks.rules()):
        if rule.fits(step.name, place) and marks.claim(number, rule.times):
            for action in rule.do:
                _carry_out(action, rule, marks)


def _place(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Where we are: in which batch, and in a task in which one."""
    from pyspark import TaskContext

    place: dict[str, Any] = {}
    if facts.get("batch_id") is not None:
        _last_batch[0] = int(facts["batch_id"])
    # Between the ends of two transactions the sink does not say of which batch they are.
    if _last_batch[0] is not None:
        place["batch"] = _last_batch[0]
    if "execution" in facts:
        # Right in the program's first run: the sink's first batch has the epoch 2, each decided one takes two.
        place["batch"] = facts["execution"].number // 2 - 1
    context = TaskContext.get()
    if context is not None:
        place |= {"partition": context.partitionId(), "attempt": context.attemptNumber()}
        batch = context.getLocalProperty("streaming.sql.batchId")
        if batch is not None:
            place["batch"] = int(batch)
    return place


def _carry_out(action: str, rule: Rule, marks: Marks) -> None:
    verb, _, what = action.partition(" ")
    if verb == "touch":
        marks.touch(what)
    elif verb == "await":
        marks.wait(what)
    elif verb == "pause":
        threading.Event().wait(float(what))
    elif verb == "raise":
        raise PlannedFailure(f"planned at {rule.step}")
    elif action == "kill self":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "kill jvm":
        # A machine that fails takes both: what this process would still do must not happen.
        java = java_above(os.getpid())
        marks.touch(killed_mark(java))
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "freeze jvm":
        os.kill(java_above(os.getpid()), signal.SIGSTOP)
    elif action == "thaw jvm":
        # Spark may have ended it for good in the meantime.
        with contextlib.suppress(LookupError, ProcessLookupError):
            os.kill(java_above(os.getpid()), signal.SIGCONT)
    elif action == WITHOUT_DECISIONS:
        _switch_off_decisions()
    else:
        raise ValueError(f"no such action: {action}")


def _switch_off_decisions() -> None:
    """Replace the sink's commit, in this process, by one that decides nothing as long as a rule says so."""
    from penstock import sink

    if "commit" not in sink.__all__:  # or the control would control nothing
        raise RuntimeError("the sink's commit is not where it was")
    if _real_commit:
        return
    _real_commit.append(sink.commit)
    sink.commit = _commit_by_rule


def _commit_by_rule(settings: Any, messages: Sequence[Any], batch_id: int, **more: Any) -> Any:
    # Spark hands its Python processes on: this one may serve the next scenario, whose rules say nothing of it.
    if any(WITHOUT_DECISIONS in rule.do for rule in Marks.of_this_process().rules()):
        return _end_without_decision(settings, messages, batch_id)
    return _real_commit[0](settings, messages, batch_id, **more)


def _end_without_decision(settings: Any, messages: Sequence[Any], batch_id: int) -> Any:
    from penstock.control import complete_transaction
    from penstock.sink import CommitReport, Step, Written, reached

    handles = [message.handle.transaction for message in messages if isinstance(message, Written)]
    for number, handle in enumerate(handles):
        complete_transaction(handle, config=settings.config)
        if number == 0:
            reached(Step.AFTER_FIRST_END, batch_id=batch_id)
    reached(Step.AFTER_ALL_ENDS, batch_id=batch_id)
    return CommitReport(decided=True)
