# SPDX-License-Identifier: Apache-2.0
"""Measurements that are no race between contenders: memory, Spark, instructions, and a hundred million
records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.budget import Plan
from bench.model import Results
from penstock.devbroker import DevCluster


@dataclass(frozen=True)
class Context:
    """What a study needs.

    Attributes:
        results: where its figures go.
        tell: called with lines of progress.
        out: where its own files go.
        keep: whether what it found becomes what later measurements are compared with.
    """

    plan: Plan
    cluster: DevCluster
    results: Results
    tell: Callable[[str], None]
    out: Path
    keep: bool = False


class Study(Protocol):
    """One such measurement.

    Attributes:
        only_by_name: whether it is left out unless somebody asks for it.
    """

    name: str
    title: str
    only_by_name: bool

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
    from bench.studies.spark import Spark

    return [Memory(), Spark(), Instructions(), Endurance()]
