# SPDX-License-Identifier: Apache-2.0
"""What the tools tell of tests that fail: at the end of `make test`, and in the counts of `make test-flaky`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose folders of tests pass, fail, do not load and die."""
    files = {
        "pytest.ini": f"[pytest]\npythonpath = {ROOT / 'tests'}\naddopts = -p pytest_randomly\n"
        "markers =\n  broker\n  spark\n",
        "src/penstock/aio/loop.py": "",
        "src/penstock/sink/task.py": "",
        "tests/conftest.py": "pytest_plugins = ['run_results']\n",
        "tests/test_loose.py": "def test_loose(): pass\n",
        "tests/aio/test_good.py": "def test_good(): pass\n",
        "tests/sink/test_bad.py": "def test_good(): pass\ndef test_bad(): assert 0\n",
        "tests/spark/test_broken.py": "import nothing_of_this_name\n",
        "tests/testing/test_dies.py": "import os\ndef test_dies(): os._exit(7)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.delenv("PYTEST_ARGS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts sooner
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lane(name: str) -> str:
    return shlex.join(["env", f"PENSTOCK_TEST_RUN={name}", sys.executable, "-m", "pytest", f"tests/{name}"])


def test_every_lane_that_went_wrong_is_named_last(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import side_by_side

    lanes = [lane("aio"), lane("sink"), lane("spark"), lane("testing"), "true --quiet"]
    assert side_by_side.main(["--tests", *lanes]) == 1
    last = capfd.readouterr().out.partition("\n==> sink, seed ")[2]
    seed = last.split(":")[0]
    assert f"--randomly-seed={seed} tests/sink/test_bad.py::test_bad\n" in last
    assert f"make sink PYTEST_ARGS=--randomly-seed={seed}\n" in last
    assert "    failed: tests/spark/test_broken.py\n" in last
    assert "    failed: tests/testing/test_dies.py::test_dies\n" in last
    assert "without running a test: true --quiet\n" in last
    assert "test_good" not in last
    assert "tests/aio" not in last


def test_lanes_that_pass_are_counted(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import side_by_side

    assert side_by_side.main(["--tests", lane("aio"), lane("test_loose.py")]) == 0
    assert capfd.readouterr().out.endswith("\n==> all 2 tests passed: aio 1, test_loose 1\n")


@pytest.fixture
def flaky(tree: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import flaky

    monkeypatch.setattr(flaky, "ROOT", tree)
    return flaky


def counts(tree: Path) -> dict[str, tuple[int, int, int]]:
    state = json.loads((tree / "build" / "flaky" / "state.json").read_text())
    return {name: (one["rounds"], one["tests"], len(one["failures"])) for name, one in state.items()}


def test_counts_go_on_until_the_folder_changes(flaky: ModuleType, tree: Path) -> None:
    run = ["--folders", "tests/aio", "--rounds"]
    assert flaky.main([*run, "1"]) == 0
    assert flaky.main([*run, "2"]) == 0
    assert counts(tree) == {"tests/aio": (2, 2, 0)}
    (tree / "src/penstock/aio/loop.py").write_text("changed = True\n")
    assert flaky.main([*run, "1"]) == 0
    assert counts(tree) == {"tests/aio": (1, 1, 0)}


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        ("tests/aio/test_good.py", ["tests/aio"]),
        ("tests/test_loose.py", ["tests"]),
        ("tests/conftest.py", ["tests", "tests/aio", "tests/sink"]),
        ("src/penstock/aio/loop.py", ["tests", "tests/aio"]),
        ("src/penstock/sink/task.py", ["tests", "tests/sink"]),
        ("src/penstock/sink/task.so", []),
    ],
)
def test_what_a_folder_depends_on(changed: str, folders: list[str], flaky: ModuleType, tree: Path) -> None:
    names = ["tests", "tests/aio", "tests/sink"]
    before = {name: flaky.fingerprint(tree, name) for name in names}
    (tree / changed).write_text("x = 1\n")
    assert [name for name in names if flaky.fingerprint(tree, name) != before[name]] == folders


def test_a_failure_counts_until_its_folder_changes(
    flaky: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--folders", "tests/sink", "tests/testing", "--rounds", "1"]
    assert flaky.main(run) == 1
    assert flaky.main(run) == 1
    assert counts(tree) == {"tests/sink": (1, 2, 1), "tests/testing": (1, 0, 1)}
    (failure,) = flaky.State(tree).folders["tests/sink"].failures
    assert "assert 0" in (tree / failure.log).read_text()
    printed = capsys.readouterr().out
    assert f"--randomly-seed={failure.seed} tests/sink/test_bad.py::test_bad\n" in printed
    assert "tests/testing/test_dies.py::test_dies\n" in printed
    (tree / "tests/sink/test_bad.py").write_text("def test_good(): pass\n")
    assert flaky.main(["--folders", "tests/sink", "--rounds", "1"]) == 0


def test_a_pure_round_leaves_out_what_is_said(
    flaky: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flaky, "_PURE_EVERY", 1)
    folders = ["--folders", "tests/aio", "tests", "--rounds", "1"]
    assert flaky.main([*folders, "--", "--ignore", "tests/aio"]) == 0
    printed = capsys.readouterr().out
    assert "tests, pure, seed" in printed
    assert "tests/aio, seed" in printed


def test_a_round_that_is_cut_off_keeps_what_failed_before(
    flaky: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--randomly-dont-reorganize")
    with (tree / "tests/sink/test_bad.py").open("a") as tests:
        tests.write("def test_hangs():\n    import os, signal, threading\n")
        tests.write("    os.kill(os.getppid(), signal.SIGINT)\n    threading.Event().wait()\n")
    assert flaky.main(["--folders", "tests/sink", "--rounds", "1"]) == 130
    assert counts(tree) == {"tests/sink": (0, 2, 1)}


def test_an_unknown_folder_is_named(flaky: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flaky.main(["--folders", "tests/nonsense"])
    assert "tests/nonsense" in capsys.readouterr().err
