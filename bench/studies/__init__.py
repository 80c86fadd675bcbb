# SPDX-License-Identifier: Apache-2.0
"""Measurements that are no race between contenders: ways to send, memory, Spark, instructions, metadata, tracing,
watching, and a hundred million records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.budget import Plan
from bench.model import BenchError, Results
from penstock.devbroker import DevCluster


@dataclass(frozen=True)
class Context:
    """What a study needs.

    Attributes:
        broker: the one that was started; None when nothing of what was chosen needs one.
        results: where its figures go.
        tell: called with lines of progress.
        out: where its own files go.
        keep: why what it found becomes what later measurements are compared with; None: it does not.
    """

    plan: Plan
    broker: DevCluster | None
    results: Results
    tell: Callable[[str], None]
    out: Path
    keep: str | None = None

    @property
    def cluster(self) -> DevCluster:
        """The broker, for a study that needs one.

        Raises:
            BenchError: there is none.
        """
        if self.broker is None:
            raise BenchError("this study needs a broker, and none was started")
        return self.broker


class Study(Protocol):
    """One such measurement.

    Attributes:
        only_by_name: whether it is left out unless somebody asks for it.
        needs_broker: whether it uses the broker that is started for all.
    """

    name: str
    title: str
    only_by_name: bool
    needs_broker: bool

    def missing(self) -> str | None:
        """Why it cannot be made here; None when it can."""
        ...

    def seconds(self, plan: Plan) -> float:
        """How long it takes, about."""
        ...

    def run(self, context: Context) -> None:
        """Make it.

        Raises:
            BenchError: it failed.
        """
        ...


def all_studies() -> list[Study]:
    """Every study, in the order in which they are made."""
    from bench.studies.endurance import Endurance
    from bench.studies.instructions import Instructions
    from bench.studies.memory import Memory
    from bench.studies.metadata import Metadata
    from bench.studies.spark import Spark
    from bench.studies.tracing import Tracing
    from bench.studies.usage import Usage
    from bench.studies.watching import Watching

    return [Usage(), Memory(), Spark(), Instructions(), Metadata(), Tracing(), Watching(), Endurance()]
