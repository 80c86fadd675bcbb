# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, for people and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass

from chaos.check import Findings
from chaos.faults import InjectedFault

# A broker is taken for dead after 4 s, a request is given up after 5 s, and faults come on top of each other. What
# takes longer than this has not recovered by itself.
MAX_STALL_SECONDS = 45.0


@dataclass(frozen=True)
class ChaosReport:
    """What happened, and what came of it.

    Attributes:
        failed: records whose delivery failed, and was reported so.
        stalls: the longest time without an acknowledgement, by process; of a transactional one, its longest
            transaction.
        median_transaction: seconds from begin to end, of those that ended in the process that began them.
        troubles: what processes met and got over, as texts.
    """

    seed: int
    protocol: str
    seconds: float
    faults: list[InjectedFault]
    findings: Findings
    failed: int
    stalls: dict[str, float]
    median_transaction: float
    troubles: list[str]

    @property
    def counted(self) -> int:
        return sum(fault.counted for fault in self.faults)

    @property
    def longest_stall(self) -> float:
        return max(self.stalls.values(), default=0.0)

    @property
    def passed(self) -> bool:
        return self.findings.faultless and self.failed == 0 and self.longest_stall <= MAX_STALL_SECONDS

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Faults of each kind: counted, and not."""
        counted = Counter(_kind(fault) for fault in self.faults if fault.counted)
        others = Counter(_kind(fault) for fault in self.faults if not fault.counted)
        return {kind: (counted[kind], others[kind]) for kind in sorted({*counted, *others})}

    def as_dict(self) -> dict[str, object]:
        return {
            **asdict(self),
            "faults": {kind: list(counts) for kind, counts in self.by_kind().items()},
            "counted": self.counted,
            "passed": self.passed,
        }

    def text(self) -> str:
        found = self.findings
        lines = [
            f"seed {self.seed}, transactions {self.protocol}, {self.seconds:.0f} s of faults",
            f"records {found.records:,}, of {found.transactions:,} transactions among others",
            f"faults {self.counted} counted, {len(self.faults) - self.counted} not",
            *(f"    {kind}: {yes} (and {no} not counted)" for kind, (yes, no) in self.by_kind().items()),
            f"lost {found.lost}, duplicated {found.duplicated}, reordered {found.reordered}",
            f"transactions torn {found.torn}, seen though not committed {found.ghosts}",
            f"misplaced {found.misplaced}, unknown {found.unknown}, failed {self.failed}",
            f"longest stall {self.longest_stall:.1f} s, half of the transactions took {self.median_transaction:.2f} s",
            *(f"    {name}: {seconds:.1f} s" for name, seconds in sorted(self.stalls.items())),
        ]
        if self.troubles:
            lines.append(f"what producers met, and got over: {len(self.troubles)}")
            lines += [f"    {trouble[:400]}" for trouble in self.troubles[:10]]
        lines += [f"    {example}" for example in found.examples]
        lines.append("passed" if self.passed else "FAILED")
        return "\n".join(lines)


def _kind(fault: InjectedFault) -> str:
    kind = re.sub(r" by \d+ ms| of the coordinator of .*", "", fault.kind).rstrip(",")
    if "coordinator" in fault.kind:
        return "kill -9 of a coordinator"
    return f"{kind} of a producer" if "producer" in fault.target else kind
