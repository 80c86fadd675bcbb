# SPDX-License-Identifier: Apache-2.0
"""Finds the Pythons that Penstock supports, and makes environments of them below build/pythons.

`make test-pythons` and `make wheels` use it. PYTHONS tells them which: versions (3.12 is python3.12 of the PATH, or
that of pyenv, if pyenv is on the PATH) and paths of interpreters. A Python that is missing is a failure, never left
out.
"""

from __future__ import annotations

import json
import os
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
SUPPORTED = ("3.11", "3.12", "3.13")
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
        raise PythonsError(
            f"Python {name} is missing: there is no python{name} on the PATH that works, and none of pyenv. Install "
            f"the packages python{name}, python{name}-venv and python{name}-dev, or run `pyenv install {name}`, or "
            "name interpreters by their paths: PYTHONS='/path/to/python ...'"
        )
    one = ask(name)
    if one is None:
        raise PythonsError(
            f"{name} is no interpreter that works. PYTHONS takes paths, and the versions {', '.join(SUPPORTED)}"
        )
    trouble = _trouble(one)
    if trouble is not None:
        raise PythonsError(f"{name} is {one.implementation} {one.release}, {trouble}")
    return one


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
