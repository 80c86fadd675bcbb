# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Spark sink on every Spark that it supports, and prints a table.

    .venv/bin/python tools/spark_matrix.py                        # 4.0, 4.1 and the one of .venv
    .venv/bin/python tools/spark_matrix.py 4.2.1 -- -k streaming  # others, and what follows is passed to pytest

Every Spark is in an environment of its own (tools/spark_env.py), but for the newest, which is the one of `.venv`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import junit
import spark_env

# The newest patch of each minor version before the one of .venv that the sink supports and that is tested.
OLDER = ("4.0.5", "4.1.4")
_NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True)
class Outcome:
    """What pytest said of one Spark."""

    version: str
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


def sink_tests() -> list[str]:
    """The tests of the data source; those of pipelines are about another thing than Spark's versions."""
    return [str(path) for path in sorted((spark_env.ROOT / "tests" / "spark").glob("test_*.py"))]


def run_tests(version: str, pytest_arguments: list[str]) -> Outcome:
    """Run the tests on one Spark.

    Raises:
        spark_env.SparkEnvError: there is no environment for it, and none could be made.
    """
    ours = version == metadata.version("pyspark")
    python = Path(sys.executable) if ours else spark_env.make(version)
    environment = spark_env.clean_environment()
    environment |= {"PYSPARK_PYTHON": str(python), "PENSTOCK_EXPECT": "compiled"}
    # Also where this environment has Penstock of another source tree: the others have that of this one.
    environment["PYTHONPATH"] = str(spark_env.ROOT / "src")
    print(f"\n==> Spark {version}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={report}"]
        command += ["-m", "spark", *sink_tests(), *pytest_arguments]
        done = subprocess.run(command, cwd=spark_env.ROOT, env=environment, check=False)
        passed, failed, skipped = junit.read_counts(report)
    return Outcome(version, passed, failed, skipped, time.monotonic() - started, done.returncode)


def table(outcomes: list[Outcome]) -> str:
    """One line for each Spark."""
    lines = [f"{'Spark':<8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    lines += [
        f"{one.version:<8} {one.passed:>7} {one.failed:>7} {one.skipped:>8} {one.seconds:>8.0f}  {one.word}"
        for one in outcomes
    ]
    return "\n".join(lines)


def main() -> int:
    """Run all of them; 0 when every test passed on every Spark."""
    parser = argparse.ArgumentParser(description="Run the tests of the Spark sink on several Sparks.")
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help="of PySpark (default: all that are tested)"
    )
    ours = sys.argv[1:]
    cut = ours.index("--") if "--" in ours else len(ours)
    args = parser.parse_args(ours[:cut])
    versions = args.versions or (*OLDER, metadata.version("pyspark"))
    try:
        outcomes = [run_tests(version, ours[cut + 1 :]) for version in versions]
    except spark_env.SparkEnvError as error:
        print(f"spark_matrix: {error}", file=sys.stderr)
        return 1
    print(f"\n{table(outcomes)}")
    return 0 if all(one.word == "ok" for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
