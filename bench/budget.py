# SPDX-License-Identifier: Apache-2.0
"""How long a measurement takes, and how long its runs may be so that it is over in time.

Every contender sends for the same time, so its time is known before: what differs is how many records it gets to send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.model import Case, Contender

CLOCK_SECONDS = 3.0  # of one run, where there is time
SHORTEST_SECONDS = 1.0
LATENCY_SECONDS = 2.0  # nine rounds of 2,000 records tell more than three of 5,000
LATENCY_WARM_UP_SECONDS = 1.0
WARM_UP_SHARE = 2  # the first round is so many times shorter
OFTEN = 3  # so many times the rounds, for those that a case names
TOPIC_SECONDS = 1.0  # to make a topic and remove it


@dataclass(frozen=True)
class Plan:
    """What shall be measured.

    Attributes:
        records: sent in one run; None: as many as fit into `seconds`.
        seconds: for which each run sends.
        warm_up: whether a first, shorter round is run and not counted. It shows how many records fit, too.
    """

    cases: Sequence[Case]
    contenders: Sequence[Contender]
    rounds: int = 3
    records: int | None = None
    seconds: float = CLOCK_SECONDS
    warm_up: bool = True

    def rounds_of(self, case: Case, contender: Contender) -> int:
        """How many rounds of a contender in a case are counted."""
        return self.rounds * (OFTEN if contender.name in case.often else 1)

    def groups(self) -> dict[str, list[tuple[Case, Contender]]]:
        """Who does what, by group: the runs of a group take turns."""
        known = {one.name: one for one in self.contenders}
        found: dict[str, list[tuple[Case, Contender]]] = {}
        for case in self.cases:
            entries = [(case, known[name]) for name in case.contenders if name in known]
            if entries:
                found.setdefault(case.group, []).extend(entries)
        return found


def group_seconds(plan: Plan, entries: Sequence[tuple[Case, Contender]]) -> float:
    """How long one group takes, about."""
    total = TOPIC_SECONDS * len({case.name for case, _ in entries})
    for case, contender in entries:
        rounds = plan.rounds_of(case, contender)
        if case.rate:
            clock = (
                plan.records / case.rate if plan.records else LATENCY_SECONDS + LATENCY_WARM_UP_SECONDS / 2
            )
            total += rounds * contender.run_seconds(clock)
        elif plan.records:
            total += (rounds + 1 / WARM_UP_SHARE) * contender.run_seconds(plan.records / contender.guess)
        else:
            total += rounds * contender.run_seconds(plan.seconds)
            total += contender.run_seconds(plan.seconds / WARM_UP_SHARE) if plan.warm_up else 0.0
    return total


def choose_seconds(total_with: Callable[[float], float], limit: float) -> float:
    """The longest run that keeps to a limit.

    Args:
        total_with: how long all takes with runs of so many seconds.
        limit: seconds for all.
    """
    seconds = CLOCK_SECONDS
    while seconds > SHORTEST_SECONDS and total_with(seconds) > limit:
        seconds -= 0.25
    return max(seconds, SHORTEST_SECONDS)


def minutes(seconds: float) -> str:
    """4:05 for 245 seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"
