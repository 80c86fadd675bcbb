# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Spark sink on several versions of Spark, one after the other.

    python tools/spark_matrix.py [VERSION ...] [-- PYTEST_ARGUMENT ...]

Each version is installed once, below build/spark, and put in front of the environment's own; that one comes last.
Needs Java 17 or later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "spark"
# The last release of each line that is older than the environment's.
VERSIONS = ("4.0.5", "4.1.4", "4.2.1")
_ASK_VERSION = "import pyspark; print(pyspark.__version__)"


def sink_tests() -> list[str]:
    """The tests of the data source that need Spark; pipelines have tests of their own."""
    files = sorted((ROOT / "tests" / "spark").glob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if not path.name.startswith("test_pipeline")]


def installed(version: str) -> Path:
    """The folder with a version of pyspark, installed if need be."""
    folder = HOME / version
    if not (folder / "pyspark").is_dir():
        print(f"==> installing pyspark {version} (about 450 MB)", flush=True)
        # Its only dependency, py4j, is in the environment already.
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--target")
        command = [sys.executable, "-m", "pip", "install", *options, str(folder), f"pyspark=={version}"]
        subprocess.run(command, check=True)
    return folder


def run(version: str | None, arguments: list[str]) -> bool:
    """Run the tests on a version, or on the environment's own; whether they passed."""
    environment = dict(os.environ)
    environment.pop("SPARK_HOME", None)
    paths = [str(ROOT / "src")] if version is None else [str(installed(version)), str(ROOT / "src")]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [environment.get("PYTHONPATH")])])
    ask = [sys.executable, "-c", _ASK_VERSION]
    found = subprocess.run(ask, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    if version not in (None, found):
        sys.exit(f"spark_matrix: wanted pyspark {version}, but {found} is what is imported")
    print(f"==> the sink's tests on Spark {found}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", "spark", *sink_tests(), *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode == 0


def main() -> None:
    """Run all that were asked for, and tell which failed."""
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    versions: list[str | None] = [*given[:cut]] or [*VERSIONS, None]
    failed = [version or "the environment's" for version in versions if not run(version, given[cut + 1 :])]
    if failed:
        sys.exit(f"spark_matrix: failed on {', '.join(failed)}")


if __name__ == "__main__":
    main()
