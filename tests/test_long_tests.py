# SPDX-License-Identifier: Apache-2.0
"""The table of the long tests: which targets it runs, and that a failure is told."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def long_tests() -> ModuleType:
    spec = importlib.util.spec_from_file_location("long_tests", ROOT / "tools" / "long_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["long_tests"] = module
    spec.loader.exec_module(module)
    return module


def test_every_target_is_one_of_the_makefile(long_tests: ModuleType) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    there = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert {target.arguments[0] for target in long_tests.TARGETS} <= there


def test_a_failure_is_in_the_table_and_in_the_exit_code(
    long_tests: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "Makefile").write_text("good:\n\t@echo fine\nbad:\n\t@echo 'what went wrong' && exit 3\n")
    monkeypatch.setattr(long_tests, "ROOT", tmp_path)
    monkeypatch.setattr(long_tests, "OUTPUT", tmp_path / "build")
    targets = (long_tests.Target("bad", ("bad",), "fails"), long_tests.Target("good", ("good",), "passes"))
    monkeypatch.setattr(long_tests, "TARGETS", targets)
    assert long_tests.main([]) == 1
    said = capsys.readouterr().out
    assert "what went wrong" in said
    assert "| `make bad` | fails | FAILED (2) |" in said
    assert "| `make good` | passes | passed |" in said
    assert long_tests.main(["good"]) == 0
