# SPDX-License-Identifier: Apache-2.0
"""Which Pythons and platforms are supported: the lists agree, and one that is missing is told, never left out."""

from __future__ import annotations

import os
import shutil
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
def only_this_python(tmp_path: Path, pythons: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with this Python under its name, and nothing else."""
    (tmp_path / f"python{HERE}").symlink_to(sys.executable)
    monkeypatch.setattr(pythons, "FOLDER", tmp_path / "build")
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


def test_a_python_without_the_interpreter_lock_is_refused(
    pythons: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = pythons.Python("other", "CPython", HERE, f"{HERE}.0", has_lock=False)
    monkeypatch.setattr(pythons, "ask", lambda _path: free)
    with pytest.raises(pythons.PythonsError, match="without the interpreter lock"):
        pythons.find(["other"])


DEBOOTSTRAP = f"""#!{sys.executable}
import pathlib, sys
root = pathlib.Path(sys.argv[-2])
with pathlib.Path(sys.argv[0]).with_name("said").open("a") as said:
    print(*sys.argv[1:], file=said)
for name, text in {{
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": "#!/bin/sh\\nshift 4; exec \\"$@\\"",
    "usr/lib/python{HERE}/_sysconfigdata__x.py": "'/usr/share/python-wheels/'",
    "usr/include/python{HERE}/pyconfig.h": "of all",
    "usr/include/x86_64-linux-gnu/python{HERE}/pyconfig.h": "of one",
}}.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    (root / name).chmod(0o755)
(root / "usr/bin").mkdir()
(root / "usr/bin/python{HERE}").symlink_to({sys.executable!r})
"""


def test_debian_is_unpacked_once_and_its_python_runs_outside(
    pythons: ModuleType, only_this_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only_this_python / f"python{HERE}").unlink()
    (only_this_python / "rm").symlink_to(shutil.which("rm", path=os.defpath) or "")
    tool = only_this_python / "debootstrap"
    tool.write_text(DEBOOTSTRAP, encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setattr(pythons, "IN_DEBIAN", {HERE: ("experimental",)})
    monkeypatch.setattr(pythons, "APT", only_this_python)
    (only_this_python / "sources.list").write_text(
        "deb http://mirror.test/debian stable main\n", encoding="utf-8"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pythons.PythonsError, match="become root and install the package debootstrap"):
        pythons.find([HERE])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for _ in range(2):
        (found,) = pythons.find([HERE])
        assert found.version == HERE
    folder = only_this_python / "build" / HERE / "debian"
    assert Path(found.path).is_relative_to(folder)
    assert (folder / f"usr/include/python{HERE}/pyconfig.h").read_text(encoding="utf-8") == "of one"
    data = (folder / f"usr/lib/python{HERE}/_sysconfigdata__x.py").read_text(encoding="utf-8")
    assert data == f"'{folder}/usr/share/python-wheels/'"
    (options,) = (only_this_python / "said").read_text(encoding="utf-8").splitlines()
    assert options.split()[2:] == [
        "--extra-suites=experimental",
        "sid",
        str(folder),
        "http://mirror.test/debian",
    ]


@pytest.mark.parametrize(
    ("name", "text", "mirror"),
    [
        ("sources.list", "# deb http://old.test/debian x\ndeb-src http://s.test/debian x\n", []),
        ("sources.list", "deb [a=b c=d] http://m.test/debian/ x main\n", ["http://m.test/debian/"]),
        ("sources.list.d/a.sources", "Types: deb\nURIs: https://m.test/debian\n", ["https://m.test/debian"]),
        ("sources.list.d/a.sources", "URIs: http://m.test/debian-security\n", []),
        ("sources.list.d/a.sources.off", "URIs: http://m.test/debian\n", []),
        ("sources.list", "deb http://m.test/ubuntu x main\n", []),
    ],
)
def test_debian_comes_from_where_this_machine_has_it(
    pythons: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    text: str,
    mirror: list[str],
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(pythons, "APT", tmp_path)
    assert pythons.debian_mirror() == mirror


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


def test_a_wheel_that_needs_a_newer_c_library_is_refused(pythons: ModuleType) -> None:
    import wheels

    wheels.check_tags("x-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
    wheels.check_tags("x-cp312-manylinux_2_28_aarch64.whl")
    for tags in ("manylinux_2_31_x86_64", "linux_x86_64"):
        with pytest.raises(pythons.PythonsError, match="not for manylinux_2_28 or older"):
            wheels.check_tags(f"x-cp312-{tags}.whl")


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
