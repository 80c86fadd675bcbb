# SPDX-License-Identifier: Apache-2.0
"""The table of the long tests: which targets it runs, and how it is written into the page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
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


def result(long_tests: ModuleType, name: str, code: int = 0) -> str:
    (target,) = (target for target in long_tests.TARGETS if target.name == name)
    return str(long_tests.row(long_tests.Outcome(target, code, 90.0), "abc1234", "2026-01-01"))


def test_the_page_has_the_place_of_the_table(long_tests: ModuleType) -> None:
    page = long_tests.PAGE.read_text(encoding="utf-8")
    assert "| passed | 1.5 | abc1234 | 2026-01-01 |" in long_tests.recorded(
        page, [result(long_tests, "chaos")]
    )


def test_a_result_replaces_the_last_one_of_its_target_alone(long_tests: ModuleType) -> None:
    page = f"before\n{long_tests.BEGIN}\nNot recorded yet.\n{long_tests.END}\nafter\n"
    page = long_tests.recorded(page, [result(long_tests, "chaos"), result(long_tests, "fuzz", code=2)])
    page = long_tests.recorded(page, [result(long_tests, "fuzz")])
    rows = [line for line in page.splitlines() if line.startswith("| `make ")]
    assert len(rows) == len(long_tests.TARGETS)
    assert [row for row in rows if "| passed |" in row] == [
        result(long_tests, "fuzz"),
        result(long_tests, "chaos"),
    ]
    assert sum("| not run yet |" in row for row in rows) == len(rows) - 2
    assert page.startswith("before\n")
    assert page.endswith(f"\n{long_tests.END}\nafter\n")
    assert "Not recorded" not in page


def test_a_page_without_the_place_is_refused(long_tests: ModuleType) -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        long_tests.recorded("nothing here", [])


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


def test_an_unknown_target_is_named_with_those_there_are() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "long_tests.py"), "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no such target: nonsense" in done.stderr
    assert "chaos" in done.stderr
