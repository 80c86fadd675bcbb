# SPDX-License-Identifier: Apache-2.0
"""Which Pythons and platforms are supported: the lists agree, and one that is missing is told, never left out."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def pythons(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import pythons

    return pythons


@pytest.fixture
def check_wheel(pythons: ModuleType) -> ModuleType:
    import check_wheel

    return check_wheel


def test_classifiers_and_wheels_are_for_the_supported_pythons(pythons: ModuleType) -> None:
    prefix = "Programming Language :: Python :: 3."
    classifiers = [line for line in PROJECT["project"]["classifiers"] if line.startswith(prefix)]
    assert [line.rpartition(" ")[2] for line in classifiers] == list(pythons.SUPPORTED)
    assert PROJECT["project"]["requires-python"] == f">={pythons.SUPPORTED[0]}"
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{version.replace('.', '')}-*" for version in pythons.SUPPORTED]


def test_the_readme_names_them(pythons: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"CPython {', '.join(pythons.SUPPORTED[:-1])} and {pythons.SUPPORTED[-1]}" in readme


def wheel_of(folder: Path, *, without: str = "", extra: tuple[str, ...] = ()) -> Path:
    """Looks like a wheel: all files of the sources, and others."""
    wheel = folder / "x.whl"
    sources = ROOT / "src"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sources.rglob("*"):
            name = path.relative_to(sources).as_posix()
            if path.is_file() and path.suffix not in (".so", ".c", ".pyc") and name != without:
                archive.writestr(name, b"")
        for name in extra:
            archive.writestr(name, b"")
    return wheel


def extensions() -> tuple[str, ...]:
    sources = ROOT / "src"
    return tuple(
        path.relative_to(sources).with_suffix(".cpython-3.so").as_posix() for path in sources.rglob("*_cy.py")
    )


def test_whole_wheels_are_accepted(check_wheel: ModuleType, tmp_path: Path) -> None:
    check_wheel.check_contents(wheel_of(tmp_path), "pure")
    check_wheel.check_contents(wheel_of(tmp_path, extra=extensions()), "compiled")


def test_a_missing_extension_is_found(check_wheel: ModuleType, pythons: ModuleType, tmp_path: Path) -> None:
    lost, *others = extensions()
    with pytest.raises(pythons.PythonsError, match=f"the extension of {lost.partition('.')[0]}.py"):
        check_wheel.check_contents(wheel_of(tmp_path, extra=tuple(others)), "compiled")


def test_windows_is_refused_at_import_with_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.platform = 'win32'; import penstock"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: Penstock does not run on Windows: it is written for POSIX systems; "
        "use WSL or a container with Linux"
    )
