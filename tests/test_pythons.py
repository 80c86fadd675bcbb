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
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def pythons(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import pythons

    return pythons


@pytest.fixture
def check_wheel(pythons: ModuleType) -> ModuleType:
    import check_wheel

    return check_wheel


@pytest.fixture
def only_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with this Python under its name, and nothing else."""
    (tmp_path / f"python{HERE}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


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


def test_a_version_is_found_on_the_path(pythons: ModuleType, only_this_python: Path) -> None:
    (found,) = pythons.find([HERE])
    assert (found.version, found.implementation) == (HERE, "CPython")


def test_a_path_is_taken(pythons: ModuleType, only_this_python: Path) -> None:
    (found,) = pythons.find([sys.executable])
    assert (found.path, found.version) == (sys.executable, HERE)


def test_all_that_are_missing_are_told_with_what_to_install(
    pythons: ModuleType, only_this_python: Path
) -> None:
    missing = [version for version in pythons.SUPPORTED if version != HERE]
    with pytest.raises(pythons.PythonsError) as told:
        pythons.find([])
    assert [line.split()[1] for line in str(told.value).splitlines()] == missing
    for version in missing:
        assert f"python{version}-venv" in str(told.value)
        assert f"pyenv install {version}" in str(told.value)


def test_one_on_the_path_that_does_not_run_counts_as_missing(
    pythons: ModuleType, only_this_python: Path
) -> None:
    """As the stand-in of pyenv for a version that is not chosen."""
    broken = only_this_python / f"python{HERE}"
    broken.unlink()
    broken.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    broken.chmod(0o755)
    with pytest.raises(pythons.PythonsError, match=f"Python {HERE} is missing"):
        pythons.find([HERE])


def test_pyenv_is_asked_where_the_path_has_none(pythons: ModuleType, only_this_python: Path) -> None:
    (only_this_python / f"python{HERE}").unlink()
    interpreter = only_this_python / "versions" / f"{HERE}.10" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    pyenv = only_this_python / "pyenv"
    pyenv.write_text(
        f"#!/bin/sh\ncase $1 in root) echo {only_this_python};; versions) echo {HERE}.9 {HERE}.10 {HERE}-dev;; esac\n",
        encoding="utf-8",
    )
    pyenv.chmod(0o755)
    (found,) = pythons.find([HERE])
    assert found.path == str(interpreter)


@pytest.mark.parametrize("name", ["2.7", "3.99", "/no/such/python"])
def test_what_is_no_supported_python_is_refused(
    pythons: ModuleType, only_this_python: Path, name: str
) -> None:
    with pytest.raises(pythons.PythonsError, match="PYTHONS takes paths, and the versions"):
        pythons.find([name])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"version": "3.10", "release": "3.10.1"}, "is CPython 3.10.1, and supported are"),
        ({"implementation": "PyPy"}, "is PyPy"),
        ({"has_lock": False}, "without the interpreter lock"),
    ],
)
def test_an_interpreter_of_another_kind_is_refused(
    pythons: ModuleType, monkeypatch: pytest.MonkeyPatch, said: dict[str, object], told: str
) -> None:
    usual = {"implementation": "CPython", "version": "3.13", "release": "3.13.0", "has_lock": True}
    one = pythons.Python(path="other", **(usual | said))
    monkeypatch.setattr(pythons, "ask", lambda _path: one)
    with pytest.raises(pythons.PythonsError, match=told):
        pythons.find(["other"])


def test_a_python_is_taken_once(pythons: ModuleType, only_this_python: Path) -> None:
    with pytest.raises(pythons.PythonsError, match=f"two of Python {HERE}"):
        pythons.find([HERE, sys.executable])


def test_the_environment_is_made_of_what_the_extras_ask_for(pythons: ModuleType) -> None:
    needed = pythons.needed("cli", "tests")
    assert {one for one in needed if one.startswith(("rich", "pytest>", "cramjam"))} == {
        "rich>=13",
        "pytest>=8.3",
        "cramjam>=2.9",
    }
    assert not [one for one in needed if one.startswith(("pyspark", "penstock"))]


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


@pytest.mark.parametrize(
    "name",
    [
        "penstock/py.typed",
        "penstock/_primitives_cy.py",
        "penstock/_primitives_cy.pxd",
        "penstock/watching/glass_box/page/index.html",
        "penstock/testing/security/ca.pem",
    ],
)
def test_a_missing_file_is_found(
    check_wheel: ModuleType, pythons: ModuleType, tmp_path: Path, name: str
) -> None:
    with pytest.raises(pythons.PythonsError, match=f"not in x.whl: {name}"):
        check_wheel.check_contents(wheel_of(tmp_path, without=name), "pure")


@pytest.mark.parametrize(
    "name", ["tests/test_x.py", "penstock/_primitives_cy.c", "penstock/_primitives_cy.so"]
)
def test_a_file_too_many_is_found(
    check_wheel: ModuleType, pythons: ModuleType, tmp_path: Path, name: str
) -> None:
    with pytest.raises(pythons.PythonsError, match="does not belong in"):
        check_wheel.check_contents(wheel_of(tmp_path, extra=(name,)), "pure")


@pytest.mark.parametrize(
    ("tags", "good"),
    [
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", True),
        ("manylinux_2_28_aarch64", True),
        ("manylinux_2_31_x86_64", False),
        ("linux_x86_64", False),
    ],
)
def test_a_wheel_that_needs_a_newer_c_library_is_refused(pythons: ModuleType, tags: str, good: bool) -> None:
    import wheels

    name = f"penstock_kafka-0.1.0-cp312-cp312-{tags}.whl"
    if good:
        wheels.check_tags(name)
    else:
        with pytest.raises(pythons.PythonsError, match="not for manylinux_2_28 or older"):
            wheels.check_tags(name)


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
