# SPDX-License-Identifier: Apache-2.0
"""The code of the page testing.md, which is for those who write tests here: parts of tests, and no programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fix_snippets import DOCS, ROOT, run, run_tests, snippets

BLOCKS = [block for block in snippets(DOCS / "testing.md") if block.language == "python"]


@pytest.mark.slow
def test_a_test_of_a_hot_module(tmp_path: Path) -> None:
    printed = run_tests(BLOCKS[:1], tmp_path, "-o", f"pythonpath={ROOT / 'tests'}")
    assert re.search(r"^[23] passed", printed, re.MULTILINE)  # once in each form that there is


@pytest.mark.broker
@pytest.mark.slow
def test_a_cluster_whose_brokers_are_killed(tmp_path: Path) -> None:
    run(BLOCKS[1], tmp_path, "")


def test_the_plan_of_faults_is_run_with_the_other_faults() -> None:
    assert len(BLOCKS) == 3
    test = (ROOT / "tests" / "spark" / "faults" / "test_drivers.py").read_text(encoding="utf-8")
    assert "scene.plan(" in BLOCKS[2].code
    assert '"testing.md"' in test
