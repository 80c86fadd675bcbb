# SPDX-License-Identifier: Apache-2.0
"""Runs the unit tests and the core of the tests with a broker on every Python that is supported, and prints a table.

    .venv/bin/python tools/python_matrix.py                      # all of them
    .venv/bin/python tools/python_matrix.py 3.13 -- -k metadata  # one, and what follows is passed to pytest

Each Python has an environment of its own below build/pythons, with all that the tests need but Spark, which is the
largest part by far and is not what differs between Pythons. Into it goes a wheel that was compiled for that Python: the
tests run on the installed package, and the sources stay as `make build` has left them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import junit
import pythons

from penstock.devbroker.machine import DevBrokerError
from penstock.devbroker.releases.fetch import kafka_jars

_SECURED = "tests/security/test_matrix.py::test_records_arrive"
# What is run, in this order, by its name in the table.
PARTS = {
    "units": ("-m", "not broker and not spark", "--ignore", "tests/spark"),
    "broker": ("-m", "core", "--ignore", "tests/spark"),
    "TLS and SCRAM": (f"{_SECURED}[ssl]", f"{_SECURED}[sasl_ssl-scram-sha-512]"),
}
_NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True)
class Outcome:
    """What pytest said of one part on one Python."""

    release: str
    part: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    exit_code: int

    @property
    def word(self) -> str:
        """Whether all is well. To find no test is not."""
        if self.exit_code == _NO_TESTS or not self.passed + self.failed:
            return "NO TESTS"
        return "ok" if self.exit_code == 0 else "FAILED"


def prepared(python: pythons.Python) -> Path:
    """The interpreter of an environment with all that the tests need, and the package compiled for that Python.

    Raises:
        pythons.PythonsError: one of the steps has failed.
    """
    packages = [
        *pythons.build_tools(),
        *pythons.needed("cli", "arrow", "pkcs12", "oauth", "prometheus", "otel", "tests"),
    ]
    inside = pythons.environment(python, "tests", packages)
    pythons.say(f"Python {python.release}: compiling the hot modules")
    # Objects of earlier runs are used again; they are not optimised, so they stay apart from those of `make build`.
    objects = pythons.FOLDER / python.version / "objects"
    _keep_extensions_alone(objects)
    with tempfile.TemporaryDirectory(prefix="penstock-python-") as folder:
        build = ("build", "--build-base", str(objects))
        pythons.run(
            [str(inside), "setup.py", "--quiet", *build, "bdist_wheel", "--dist-dir", folder],
            PENSTOCK_REQUIRE_EXT="1",
            PENSTOCK_OPTIMISE="0",
        )
        (wheel,) = Path(folder).glob("*.whl")
        pythons.pip_install(inside, "--no-deps", "--force-reinstall", wheel)
    # pip has written them in any order, and what is older than its source counts as out of date.
    for extension in inside.parent.parent.glob("lib/*/site-packages/penstock/**/*_cy.*.so"):
        extension.touch()
    return inside


def _keep_extensions_alone(objects: Path) -> None:
    """Remove what was copied for an earlier wheel: a module that is gone would be in this one, too."""
    for path in objects.glob("lib*/**/*"):
        module = path.parent / f"{path.name.partition('.')[0]}.py"
        source = pythons.ROOT / "src" / Path(*module.relative_to(objects).parts[1:])
        if path.is_file() and not (path.suffix == ".so" and source.exists()):
            path.unlink()


def run_part(python: pythons.Python, inside: Path, part: str, pytest_arguments: list[str]) -> Outcome:
    """Run one part of the tests on one Python."""
    pythons.say(f"Python {python.release}: {part}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-python-") as folder:
        report = Path(folder) / "report.xml"
        command = [str(inside), "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={report}"]
        done = subprocess.run(
            [*command, *PARTS[part], *pytest_arguments],
            cwd=pythons.ROOT,
            env=pythons.clean_variables() | {"PENSTOCK_EXPECT": "compiled"},
            check=False,
        )
        passed, failed, skipped = junit.read_counts(report)
    seconds = time.monotonic() - started
    return Outcome(python.release, part, passed, failed, skipped, seconds, done.returncode)


def table(outcomes: list[Outcome]) -> str:
    """One line for each part on each Python."""
    lines = [f"{'Python':<8} {'part':<14} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    lines += [
        f"{one.release:<8} {one.part:<14} {one.passed:>7} {one.failed:>7} {one.skipped:>8} {one.seconds:>8.0f}"
        f"  {one.word}"
        for one in outcomes
    ]
    return "\n".join(lines)


def main() -> int:
    """Run all parts on all Pythons; 0 when every test passed on every one."""
    parser = argparse.ArgumentParser(description="Run the core of the tests on several Pythons.")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="a version or a path (default: all)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    ours = sys.argv[1:]
    cut = ours.index("--") if "--" in ours else len(ours)
    args = parser.parse_args(ours[:cut])
    outcomes = []
    try:
        found = pythons.find(args.pythons)
        kafka_jars()  # from here: it takes PySpark or Maven to fetch them
        for python in found:
            inside = prepared(python)
            outcomes += [
                run_part(python, inside, part, ours[cut + 1 :])
                for part in PARTS
                if not args.part or part in args.part
            ]
    except (pythons.PythonsError, DevBrokerError) as error:
        print(f"python_matrix: {error}", file=sys.stderr)
        return 1
    print(f"\n{table(outcomes)}")
    return 0 if all(one.word == "ok" for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
