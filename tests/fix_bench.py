# SPDX-License-Identifier: Apache-2.0
"""Makes the benchmarks importable, which are no part of the package, and builds results for tests of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / "bench").is_dir():
    pytest.skip("the benchmarks are part of the source tree only", allow_module_level=True)
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # nothing has installed it

from bench.cases import all_cases  # noqa: E402
from bench.contenders import all_contenders  # noqa: E402
from bench.model import Case, Contender, Results, Run  # noqa: E402

CASES = {case.name: case for case in all_cases()}
CONTENDERS: dict[str, Contender] = {one.name: one for one in all_contenders()}


def a_run(case: str, contender: str, number: int, seconds: float = 1.0, **more: object) -> Run:
    """A run of 1,000 records that all arrived, unless told otherwise."""
    figures: dict[str, object] = {
        "cpu_seconds": 1.0,
        "arrived": 1000,
        "peak_rss": 1 << 20,
        "others_share": 0.25,
    }
    figures.update(more)
    return Run(case, contender, number, 1000, seconds=seconds, **figures)  # type: ignore[arg-type]


def some_results(*runs: Run) -> Results:
    """Results with the cases and contenders of some runs, in the order of the benchmarks."""
    cases: list[Case] = [one for name, one in CASES.items() if any(run.case == name for run in runs)]
    contenders = [one for name, one in CONTENDERS.items() if any(run.contender == name for run in runs)]
    return Results(cases, contenders, list(runs), machine={"cores": 2})
