# SPDX-License-Identifier: Apache-2.0
"""Makes an environment with another Spark than the one of `.venv`, below build/spark.

    .venv/bin/python tools/spark_env.py 4.2.0          # makes it, or says at once that it is there
    .venv/bin/python tools/spark_env.py --where 4.2.0  # its interpreter, nothing is made

Such an environment holds PySpark and what PySpark itself asks for. Everything else is taken from the environment that
runs this, and Penstock, compiled, from this source tree: so what is measured and tested there differs by its Spark and
by nothing else, and making one takes no other download than Spark's, about 450 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "spark"
_STAMP = "made.json"

# Run by the new interpreter. What it prints is what was really imported.
_LOOK = """
import json, penstock, pyspark, pyarrow
from penstock import _compiled
print(json.dumps([pyspark.__version__, pyarrow.__version__, penstock.__file__, _compiled.describe()]))
"""


class SparkEnvError(Exception):
    """The environment could not be made."""


def interpreter(version: str) -> Path:
    """The Python of the environment with that PySpark; it need not exist."""
    return FOLDER / f"pyspark-{version}" / "bin" / "python"


def is_made(version: str) -> bool:
    """Say whether the environment is there, whole, and made by this very interpreter."""
    stamp = interpreter(version).parent.parent / _STAMP
    try:
        found = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == _wanted(version))


def make(version: str) -> Path:
    """Return the interpreter of the environment with that PySpark, after making the environment if need be.

    Raises:
        SparkEnvError: pip could not install that version, or it does not work here.
    """
    python = interpreter(version)
    if is_made(version):
        return python
    home = python.parent.parent
    started = time.monotonic()
    _say(f"PySpark {version}: an environment of its own in {home.relative_to(ROOT)} (downloads about 450 MB)")
    if home.exists():
        shutil.rmtree(home)
    venv.create(home, with_pip=False, symlinks=True)
    _pip_install(python, f"pyspark=={version}")
    packages = _site_packages(python)
    # After PySpark is in: pip shall not find the other one and be content with it.
    (packages / "penstock_spark_env.pth").write_text(_path_lines(), encoding="utf-8")
    look = _look(python, version)
    (home / _STAMP).write_text(json.dumps(_wanted(version)), encoding="utf-8")
    _say(f"PySpark {version}: ready after {time.monotonic() - started:.0f} s; {look}")
    return python


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would point Spark, or Python, to another installation."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("SPARK_HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        and not name.startswith("PYSPARK_")
    }


def _wanted(version: str) -> dict[str, str]:
    return {
        "pyspark": version,
        "python": platform.python_version(),
        "packages": sysconfig.get_path("purelib"),
        "sources": str(ROOT / "src"),
    }


def _path_lines() -> str:
    # A path by itself is appended; the second line also reads the .pth files of that folder.
    packages = sysconfig.get_path("purelib")
    return f"{ROOT / 'src'}\nimport site; site.addsitedir({packages!r})\n"


def _pip_install(python: Path, *wanted: str) -> None:
    command = [
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
        *("--disable-pip-version-check", *wanted),
    ]
    done = subprocess.run(command, env=clean_environment(), check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SparkEnvError(f"pip could not install {' '.join(wanted)}:\n{done.stderr[-2000:]}")


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def _look(python: Path, version: str) -> str:
    """See that the right PySpark and the right Penstock are imported; return a line about them."""
    done = subprocess.run(
        [str(python), "-c", _LOOK], env=clean_environment(), check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SparkEnvError(f"PySpark {version} was installed, but does not import:\n{done.stderr[-2000:]}")
    pyspark, pyarrow, penstock, implementation = json.loads(done.stdout)
    if pyspark != version or ROOT / "src" not in Path(penstock).parents:
        raise SparkEnvError(f"wanted PySpark {version} and Penstock of {ROOT}, got {pyspark} and {penstock}")
    return f"pyarrow {pyarrow}, penstock {implementation}"


def _say(line: str) -> None:
    print(f"==> {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Make the environments that are named, and print their interpreters."""
    parser = argparse.ArgumentParser(description="Make an environment with another Spark than that of .venv.")
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="of PySpark, like 4.2.0")
    parser.add_argument("--where", action="store_true", help="only print where the interpreters are")
    args = parser.parse_args()
    try:
        for version in args.versions:
            print(interpreter(version) if args.where else make(version))
    except SparkEnvError as error:
        print(f"spark_env: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
