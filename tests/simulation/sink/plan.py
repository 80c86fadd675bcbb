# SPDX-License-Identifier: Apache-2.0
"""What a seed decides before anything runs."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

TOPIC = "rows"
COPY_TOPIC = "copies"  # where a copy of a checkpoint writes, under the same sink name
LOG_TOPIC = "penstock-sink-log"
_RELEASES = ("3.0", "3.7", "3.9", "4.0", "4.1", "4.3", "4.3", "4.3")
_SECOND_PROTOCOL = ("4.0", "4.1", "4.3")


class Theme(enum.Enum):
    """What a seed is about."""

    ANYTHING = "anything"
    HELD_LOG = "one sink's driver is frozen with an open decision, the other's commit() dies after its own"
    LATE_INIT = "answers to the tasks' InitProducerId are lost, and the requests arrive late"
    LONG_ABSENCE = "drivers stay away, or are frozen, longer than any time-out"
    LATE_MARKERS = "a one-off run, of which the markers come late"


@dataclass(frozen=True)
class SinkPlan:
    """One sink and the job that writes to it.

    Attributes:
        run_id: of a batch job; None for a streaming query.
        goal: how many batches its query is to write.
        lives: how many drivers are started one after the other before faults end.
        rewrites: the option onRestoredCheckpoint.
        repairs: the option onLost; replays are cut into tasks as they were before.
        one_off: a batch job that nobody starts again: its run has no name, and the log forgets it.
    """

    sink_id: str
    run_id: str | None
    goal: int
    lives: int
    rewrites: bool
    repairs: bool
    one_off: bool


@dataclass(frozen=True)
class Plan:
    """The frame of one seed.

    Attributes:
        marker_delay: seconds from the coordinator's answer to EndTxn until its markers are in the log.
        faults_at: at how many turns each fault comes.
        zombies: how many of the losing attempts go on.
        task_trouble: how many of the attempts have something go wrong.
        theme: what happens more often than else, as it takes several things at once to go wrong.
        latest: seconds that a request of a dead connection may be late.
    """

    release: str
    features: dict[str, int]
    brokers: int
    partitions: int
    marker_delay: float
    slowest: float
    sinks: tuple[SinkPlan, ...]
    faults_at: tuple[int, ...]
    zombies: float
    task_trouble: float
    theme: Theme
    rows_at_most: int
    latest: float

    def describe(self) -> str:
        sinks = "; ".join(
            f"{sink.sink_id}{'' if sink.run_id is None else f' run {sink.run_id}'}: {sink.goal} batch(es), "
            f"{sink.lives} live(s){', rewrites' if sink.rewrites else ''}"
            f"{', repairs' if sink.repairs else ''}{', one-off' if sink.one_off else ''}"
            for sink in self.sinks
        )
        return (
            f"{self.theme.value}: Kafka {self.release} {self.features or ''}, {self.brokers} broker(s), "
            f"{self.partitions} partition(s), {len(self.faults_at)} fault(s), "
            f"markers after {self.marker_delay} s, {sinks}"
        )


def make_plan(rng: random.Random) -> Plan:
    """Choose the plan of one seed at random."""
    release = rng.choice(_RELEASES)
    features = {}
    if release in _SECOND_PROTOCOL and rng.random() < 0.4:
        features["transaction.version"] = rng.choice((0, 1))
    theme = rng.choices(list(Theme), (45, 15, 15, 20, 5))[0]
    names = ["orders"]
    if theme is Theme.HELD_LOG or rng.random() < 0.4:
        names.append(rng.choice(("orders-eu", "orders", "payments")))
    sinks = tuple(_sink(rng, name, index, theme) for index, name in enumerate(names))
    return Plan(
        release=release,
        features=features,
        brokers=rng.choice((1, 2, 3, 3)),
        partitions=rng.randint(1, 3),
        marker_delay=3.0 if theme is Theme.LATE_MARKERS else rng.choice((0.0, 1.0, 0.01, 0.2)),
        slowest=rng.choice((0.002, 0.02, 0.1)),
        sinks=sinks,
        faults_at=tuple(sorted(rng.randrange(20, 700) for _ in range(rng.choice((0, 3, 6, 12))))),
        zombies=rng.choice((0.2, 0.6)),
        task_trouble=rng.choice((0.0, 0.15, 0.4)),
        theme=theme,
        rows_at_most=rng.choice((4, 8)),
        latest=20.0 if theme is Theme.LATE_INIT else rng.choice((3.0, 3.0, 50.0)),
    )


def _sink(rng: random.Random, name: str, index: int, theme: Theme) -> SinkPlan:
    # Two jobs may share a sink id only as batch jobs with runs of their own.
    is_late = theme is Theme.LATE_MARKERS and index == 0
    is_batch = rng.random() < 0.15 or is_late or (index > 0 and name == "orders")
    goal = 1 if is_batch else rng.randint(2, 4)
    one_off = is_batch and (is_late or rng.random() < 0.5)
    return SinkPlan(
        sink_id=name,
        run_id=f"run-{index}" if is_batch else None,
        goal=goal,
        lives=1 if one_off else rng.randint(2, 5),
        rewrites=rng.random() < 0.1,
        repairs=not one_off and rng.random() < (0.7 if theme is Theme.LONG_ABSENCE else 0.2),
        one_off=one_off,
    )
