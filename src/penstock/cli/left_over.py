# SPDX-License-Identifier: Apache-2.0
"""The part of `penstock recover` about transactions that nobody has decided: who waits for them, and ending them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from penstock._counted import counted
from penstock.control import ControlClient
from penstock.errors import KafkaError
from penstock.sink import Life, OpenTransaction, SinkState, end_left_over

_MAX_PARTITIONS: Final = 8

_MINUTE: Final = 60
_HOUR: Final = 3600


def left_over_lines(state: SinkState, now_ms: int | None = None) -> list[str]:
    """Whose readers wait, for what, and until when."""
    if not state.left_over:
        return []
    count = counted(len(state.left_over), "open transaction")
    lines = [
        f"  left over    {count} in no decision: of a batch that runs now, or of one that came to nothing"
    ]
    replaced = [each for each in state.left_over if each.generation < state.generation]
    own = [each for each in state.left_over if each.generation >= state.generation]
    for group, whose in ((replaced, "of a driver that was replaced"), (own, f"of {_driver(state)}")):
        if group:
            lines.append(f"               {len(group)} {whose}{_since(group, now_ms)}")
            lines += _who_waits(group)
    return lines


def _driver(state: SinkState) -> str:
    if state.owner is None:
        return "a driver that is not known"
    said = {
        Life.RUNS: "which runs",
        Life.ENDED: "which has ended",
        Life.UNKNOWN: "of which cannot be told from here whether it runs",
    }
    return f"{state.owner}, {said[state.life]}"


def _since(group: Sequence[OpenTransaction], now_ms: int | None) -> str:
    started = [each.started_ms for each in group if each.started_ms >= 0]
    if not started:
        return ""
    now = int(time.time() * 1000) if now_ms is None else now_ms
    return f", open for {_age(max(now - min(started), 0) // 1000)}"


def _who_waits(group: Iterable[OpenTransaction]) -> list[str]:
    known = [each for each in group if each.started_ms >= 0]
    if not known:
        return []
    partitions = sorted({f"{topic}-{partition}" for each in known for topic, partition in each.partitions})
    named = ", ".join(partitions[:_MAX_PARTITIONS])
    if len(partitions) > _MAX_PARTITIONS:
        named += f" and {len(partitions) - _MAX_PARTITIONS} more"
    until = max(each.started_ms + each.timeout_ms for each in known)
    return [f"               readers of {named or 'their topics'} wait until {_moment(until)} at the latest"]


def _age(seconds: int) -> str:
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min"
    return f"{seconds // _HOUR} h {seconds % _HOUR // _MINUTE} min"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def left_over_advice(state: SinkState, command: str) -> list[str]:
    """What is to be done: nothing, unless readers cannot wait."""
    lines = [
        "  to do        nothing: they are aborted by themselves, at the latest after their time-out (the option",
        "               transactionTimeout, 15 minutes unless set)",
    ]
    if may_be_ended(state, named=True):
        lines.append(
            f"               or end them now: {command} --sink-key {state.sink_key} --abort-left-over"
        )
    return lines


def left_over_json(state: SinkState) -> list[Mapping[str, Any]]:
    """The open transactions of a sink, as values of JSON."""
    runs = {Life.RUNS: True, Life.ENDED: False, Life.UNKNOWN: None}
    return [
        {
            "transactionalId": each.transactional_id,
            "replaced": each.generation < state.generation,
            "driver": None if state.owner is None or each.generation < state.generation else str(state.owner),
            "driverRuns": None if each.generation < state.generation else runs[state.life],
            "openSince": None if each.started_ms < 0 else _moment(each.started_ms),
            "until": None if each.started_ms < 0 else _moment(each.started_ms + each.timeout_ms),
            "partitions": [f"{topic}-{partition}" for topic, partition in each.partitions],
        }
        for each in state.left_over
    ]


# ---- ending them


def may_be_ended(state: SinkState, *, named: bool) -> tuple[OpenTransaction, ...]:
    """What may be ended: of drivers that were replaced or have ended; of a named sink also where that is not known."""
    own = state.life is Life.ENDED or (named and state.life is Life.UNKNOWN and state.owner is not None)
    return tuple(
        each
        for each in state.left_over
        if each.generation < state.generation or (own and each.generation == state.generation)
    )


def what_would_be_ended(states: Iterable[SinkState], *, named: bool, command: str) -> str:
    """What `--yes` would do, and why it would leave the rest alone."""
    lines: list[str] = []
    endable = 0
    for state in states:
        found = may_be_ended(state, named=named)
        endable += len(found)
        if found:
            lines.append(f"would end {counted(len(found), 'open transaction')} of {title(state)}")
        if len(found) < len(state.left_over):
            lines.append(f"leaves {len(state.left_over) - len(found)} of {title(state)} alone: {_why(state)}")
    if endable:
        lines.append(f"nothing was ended; to end them: {command} --yes")
        return "\n".join(lines)
    return "\n".join([*lines, "there is nothing that could be ended"])


def _why(state: SinkState) -> str:
    if state.owner is None:
        return "this decision topic does not know their driver. Is it one with another --decision-topic?"
    if state.life is Life.RUNS:
        return f"their driver ({state.owner}) runs; stop it first"
    return (
        f"whether their driver ({state.owner}) runs cannot be told from here. Look there; if it does not, name the "
        f"sink: --sink-key {state.sink_key}"
    )


def end_all(
    client: ControlClient,
    states: Iterable[SinkState],
    log_topic: str,
    say: Callable[[str], None],
    *,
    named: bool,
) -> dict[str, KafkaError]:
    """End what may be ended; by sink key, why it could not be done."""
    failed: dict[str, KafkaError] = {}
    for state in states:
        if not may_be_ended(state, named=named):
            continue
        say(f"ending open transactions of {title(state)} ...")
        try:
            ended = end_left_over(client, state.sink_key, log_topic=log_topic, elsewhere=named)
        except KafkaError as error:
            failed[state.sink_key] = error
        else:
            say(f"  {counted(len(ended), 'transaction')} ended")
    return failed


def title(state: SinkState) -> str:
    """A sink by its name and its key."""
    name = "a sink without a name" if state.sink_id is None else f"sink {state.sink_id!r}"
    run_name = "" if state.run_id is None else f", run {state.run_id!r}"
    return f"{name}{run_name} ({state.sink_key})"
