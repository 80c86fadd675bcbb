# SPDX-License-Identifier: Apache-2.0
"""Arrow tables with wrong numbers: rows that are right are sent, others are told, and nothing else happens.

`make fuzz` runs the same rounds on modules that were compiled with the address sanitizer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.arrow_rounds import changed_round, one_round
from fuzz.mutations import EFFORT

ROOT = Path(__file__).resolve().parent.parent.parent


def test_rows_that_lie_are_told_and_the_others_are_sent() -> None:
    assert sum(one_round(seed) for seed in range(400 * EFFORT)) > 100


def test_a_table_that_changes_meanwhile_makes_no_batch_that_cannot_be_read() -> None:
    assert sum(changed_round(seed) for seed in range(30 * EFFORT)) > 100


@pytest.mark.parametrize(("compiler", "package"), [("no-such-compiler", "gcc"), ("true", "libasan")])
def test_a_sanitizer_that_is_missing_is_an_error_that_names_the_package(compiler: str, package: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "sanitized.py"), "-c", "pass"],
        env={"CC": compiler, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert f"Install the package {package}" in done.stderr
