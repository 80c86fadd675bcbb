# SPDX-License-Identifier: Apache-2.0
"""Holds docs/requirements.md against the suite: every requirement has tests, which exist and are not skipped."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_requirements", ROOT / "tools" / "gen_requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table() -> dict[int, set[str]]:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \|([^|]*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(number): set(re.findall(r"`([^`]+)`", tests)) for number, tests in rows}


def test_the_page_is_current(generator: ModuleType) -> None:
    assert PAGE.read_text(encoding="utf-8") == generator.page(), "run `make docs`"


def test_every_requirement_has_a_test(generator: ModuleType) -> None:
    wanted = {number for group in generator.REQUIREMENTS.values() for number in group}
    found = table()
    assert set(found) == wanted
    assert [number for number, tests in sorted(found.items()) if not tests] == []


@pytest.mark.slow
def test_every_named_test_is_collected_and_not_skipped() -> None:
    named = set().union(*table().values())
    files = sorted({test.split("::")[0] for test in named})
    collected = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "collect_marks",
            *files,
        ],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]
    marks = dict(re.findall(r"^MARKS (\S+) (\S*)$", collected.stdout, re.MULTILINE))
    assert sorted(named - set(marks)) == []
    assert {test: found for test, found in marks.items() if test in named and found} == {}


def _environment() -> dict[str, str]:
    import os

    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    }
