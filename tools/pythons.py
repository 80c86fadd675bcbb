# SPDX-License-Identifier: Apache-2.0
"""Finds the Pythons that Penstock supports, and makes environments of them below build/pythons.

`make test-pythons` and `make wheels` use it. PYTHONS tells them which: versions (3.12 is python3.12 of the PATH, or
that of pyenv, if pyenv is on the PATH) and paths of interpreters. Versions that few systems have are taken from
Debian's packages. A Python that is missing is a failure, never left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "pythons"
CONSTRAINTS = ROOT / "constraints.txt"
# Tests compare them with the classifiers, and with what cibuildwheel builds.
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
# Those that Debian's sid has, with further suites to take packages from. A row for what only experimental has:
# "3.15": ("experimental",)
IN_DEBIAN: dict[str, tuple[str, ...]] = {"3.14": ()}
APT = Path("/etc/apt")
_MIRROR = re.compile(r"^(?:URIs:|deb(?:\s+\[.*\])?)\s+(https?://\S+/debian/?)(?=\s|$)", re.MULTILINE)
_STAMP = "made.json"
_HOME = "PENSTOCK_HOME"  # where Kafka's jars are

# Run by an interpreter, to see what it is.
_WHO = """
import json, platform, sys, sysconfig
print(json.dumps({
    "implementation": platform.python_implementation(),
    "version": "%d.%d" % sys.version_info[:2],
    "release": platform.python_version(),
    "has_lock": not sysconfig.get_config_var("Py_GIL_DISABLED"),
}))
"""


class PythonsError(Exception):
    """A Python is missing or cannot be used, or what was done with it has failed."""


@dataclass(frozen=True)
class Python:
    """An interpreter that runs, and what it says of itself."""

    path: str
    implementation: str
    version: str  # like 3.12
    release: str  # like 3.12.1
    has_lock: bool


def find(asked: list[str]) -> list[Python]:
    """The Pythons that are asked for; all that are supported when none is.

    Raises:
        PythonsError: some are missing or not supported. It has a line for each, with what to do.
    """
    found: list[Python] = []
    wrong: list[str] = []
    for name in asked or SUPPORTED:
        try:
            one = _named(name)
        except PythonsError as error:
            wrong.append(str(error))
            continue
        if any(one.version == other.version for other in found):
            wrong.append(f"PYTHONS has two of Python {one.version}")
        found.append(one)
    if wrong:
        raise PythonsError("\n".join(wrong))
    return found


def _named(name: str) -> Python:
    if name in SUPPORTED:
        for path in [f"python{name}", *_of_pyenv(name)]:
            one = ask(path)
            if one is not None and _trouble(one) is None:
                return one
        if name in IN_DEBIAN:
            return _of_debian(name)
        raise PythonsError(_missing(name))
    one = ask(name)
    if one is None:
        raise PythonsError(
            f"{name} is no interpreter that works. PYTHONS takes paths, and the versions {', '.join(SUPPORTED)}"
        )
    trouble = _trouble(one)
    if trouble is not None:
        raise PythonsError(f"{name} is {one.implementation} {one.release}, {trouble}")
    return one


def _missing(version: str, *more: str) -> str:
    ways = (
        f"Install the packages python{version}, python{version}-venv and python{version}-dev",
        f"run `pyenv install {version}`",
        *more,
        "name interpreters by their paths: PYTHONS='/path/to/python ...'",
    )
    return (
        f"Python {version} is missing: there is no python{version} on the PATH that works, and none of pyenv. "
        f"{', or '.join(ways)}"
    )


def _trouble(one: Python) -> str | None:
    if one.implementation != "CPython" or one.version not in SUPPORTED:
        return f"and supported are CPython {', '.join(SUPPORTED)}"
    if not one.has_lock:
        return "built without the interpreter lock, which the compiled modules need"
    return None


def ask(path: str) -> Python | None:
    """What an interpreter says of itself; None when there is none, or when it does not run (as a shim of pyenv may)."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _WHO], check=False, capture_output=True, text=True, timeout=60
        )
    except OSError:
        return None
    if done.returncode != 0:
        return None
    return Python(path=path, **json.loads(done.stdout))


def _of_pyenv(version: str) -> list[str]:
    """The interpreters of that version that pyenv has, the newest first; none without pyenv."""
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return []
    root = _output(pyenv, "root")
    releases = [
        tuple(map(int, name.split(".")))
        for name in _output(pyenv, "versions", "--bare").split()
        if name.startswith(f"{version}.") and name.replace(".", "").isdigit()
    ]
    return [
        str(Path(root, "versions", ".".join(map(str, release)), "bin", "python"))
        for release in sorted(releases, reverse=True)
    ]


def _of_debian(version: str) -> Python:
    """That of Debian's sid, in a folder below build/pythons. The packages are unpacked there once, which needs root.

    It runs outside the folder, with the folder's own loader and libraries: those of this machine may be too old for it.
    """
    folder = FOLDER / version / "debian"
    launcher = folder / "usr" / "local" / "bin" / f"python{version}"
    if launcher.exists() and (one := ask(str(launcher))) is not None:
        return one
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        way = "become root and install the package debootstrap: then it is taken from Debian, into build/pythons"
        raise PythonsError(_missing(version, way))
    say(f"Python {version}: from Debian's sid by debootstrap, as root, into {folder} (400 MB)")
    run(["rm", "-rf", "--one-file-system", str(folder)])  # an earlier debootstrap may have left a mount in it
    folder.parent.mkdir(parents=True, exist_ok=True)
    packages = ",".join(f"python{version}{suffix}" for suffix in ("", "-dev", "-venv"))
    extra_suites = IN_DEBIAN[version]
    run(
        [
            *("debootstrap", "--variant=minbase", f"--include={packages}"),
            *([f"--extra-suites={','.join(extra_suites)}"] if extra_suites else []),
            *("sid", str(folder), *debian_mirror()),
        ]
    )
    _make_it_run_outside(folder, version, launcher)
    one = ask(str(launcher))
    if one is None:
        raise PythonsError(f"{launcher} does not run: remove {folder} to get it anew")
    return one


def _make_it_run_outside(folder: Path, version: str, launcher: Path) -> None:
    (loader,) = folder.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*")
    libraries = loader.parent
    # pip's wheel for new environments has an absolute path.
    for path in (folder / "usr" / "lib" / f"python{version}").glob("_sysconfigdata*.py"):
        if not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            path.write_text(
                text.replace("'/usr/share/python-wheels", f"'{folder}/usr/share/python-wheels"), "utf-8"
            )
    # It includes this one, but from a folder with the headers of sid's C library, and extensions are compiled here.
    headers = folder / "usr" / "include"
    shutil.copy(
        headers / libraries.name / f"python{version}" / "pyconfig.h",
        headers / f"python{version}" / "pyconfig.h",
    )
    start = shlex.join([str(loader), "--library-path", str(libraries), "--argv0"])
    python = shlex.quote(f"{folder}/usr/bin/python{version}")
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(f'#!/bin/bash\nexec -a "$0" {start} "$0" {python} "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)


def debian_mirror() -> list[str]:
    """Where apt of this machine has Debian from. Elsewhere nothing, and debootstrap knows where it is."""
    lists = [APT / "sources.list", *sorted(APT.glob("sources.list.d/*"))]
    texts = [
        path.read_text("utf-8") for path in lists if path.suffix in (".list", ".sources") and path.is_file()
    ]
    return _MIRROR.findall("\n".join(texts))[:1]


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build_tools() -> list[str]:
    """What it takes to build a wheel."""
    return [*_table()["build-system"]["requires"], "wheel"]


def needed(*extras: str) -> list[str]:
    """What the package asks for, and what these extras of it do."""
    project = _table()["project"]
    return [
        *project["dependencies"],
        *(one for extra in extras for one in project["optional-dependencies"][extra]),
    ]


def _table() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def environment(python: Python, name: str, packages: list[str]) -> Path:
    """The interpreter of an environment of that Python with these packages, in the versions of constraints.txt.

    It is made anew when what it was made from has changed.

    Raises:
        PythonsError: it could not be made.
    """
    home = FOLDER / python.version / name
    inside = home / "bin" / "python"
    made_from = {
        "python": [str(python.path), python.release],
        "packages": packages,
        "constraints": CONSTRAINTS.read_text(encoding="utf-8"),
    }
    stamp = home / _STAMP
    if stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == made_from:
        return inside
    started = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    say(f"Python {python.release}: an environment in {home.relative_to(ROOT)}")
    run([python.path, "-m", "venv", str(home)])
    pip_install(inside, *packages)
    stamp.write_text(json.dumps(made_from), encoding="utf-8")
    say(f"Python {python.release}: made in {time.monotonic() - started:.0f} s")
    return inside


def pip_install(python: Path, *arguments: str | Path) -> None:
    """Install into an environment.

    Raises:
        PythonsError: pip could not.
    """
    quiet = ("--quiet", "--disable-pip-version-check", "--constraint", str(CONSTRAINTS))
    run([str(python), "-m", "pip", "install", *quiet, *map(str, arguments)])


def run(command: list[str], *, cwd: Path = ROOT, **variables: str) -> str:
    """Run one step to its end and give what it printed.

    Raises:
        PythonsError: it failed; with its output.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_variables() | variables,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        raise PythonsError(f"{done.stdout}\nfailed ({done.returncode}): {' '.join(command)}")
    return done.stdout.strip()


def clean_variables() -> dict[str, str]:
    """The variables of this process without those that point to another Python, or that change what Penstock does."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == _HOME or not name.startswith(("PENSTOCK_", "PYTHON", "PYENV_", "VIRTUAL_ENV"))
    }


def say(line: str) -> None:
    """Tell what is being done."""
    print(f"==> {line}", flush=True)
