# SPDX-License-Identifier: Apache-2.0
"""Makes an environment with another Spark than the one of `.venv`, below build/spark.

    .venv/bin/python tools/spark_env.py 4.1.4          # makes it, or says at once that it is there
    .venv/bin/python tools/spark_env.py --alone 4.2.0
    .venv/bin/python tools/spark_env.py --where 4.1.4  # its interpreter, nothing is made

Such an environment holds PySpark and what PySpark itself asks for. Everything else is taken from the environment that
runs this, so what is tested there differs by its Spark and by nothing else, and no other download is needed than
Spark's, about 450 MB. With --alone it has what `pip install penstock-kafka[spark]` brings and nothing more: Spark's
workers import some packages because they are there, and a measurement should not depend on which are there. Penstock
itself is, in both, that of this source tree, compiled.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
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


def interpreter(version: str, *, alone: bool = False) -> Path:
    """The Python of the environment with that PySpark; it need not exist."""
    return FOLDER / f"pyspark-{version}{'-alone' if alone else ''}" / "bin" / "python"


def is_made(version: str, *, alone: bool = False) -> bool:
    """Say whether the environment is there, whole, and made by this very interpreter."""
    stamp = interpreter(version, alone=alone).parent.parent / _STAMP
    try:
        found = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == wanted(version, alone=alone))


def make(version: str, *, alone: bool = False) -> Path:
    """Return the interpreter of the environment with that PySpark, after making the environment if need be.

    Raises:
        SparkEnvError: pip could not install that version, or it does not work here.
    """
    # An installed package has its bytecode, and a job of Spark waits for what its many processes import.
    compileall.compile_dir(ROOT / "src", quiet=1)
    python = interpreter(version, alone=alone)
    if is_made(version, alone=alone):
        return python
    home = python.parent.parent
    started = time.monotonic()
    _say(f"PySpark {version}: an environment of its own in {home.relative_to(ROOT)} (downloads about 450 MB)")
    if home.exists():
        shutil.rmtree(home)
    venv.create(home, with_pip=False, symlinks=True)
    _pip_install(python, *(_requirements(version) if alone else [f"pyspark=={version}"]))
    lines = [str(ROOT / "src")]
    if not alone:
        # This also reads the .pth files of that folder, which a path by itself would not.
        lines.append(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    # After PySpark is in: pip shall not find the other one and be content with it.
    (_site_packages(python) / "penstock_spark_env.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    look = _look(python, version)
    (home / _STAMP).write_text(json.dumps(wanted(version, alone=alone)), encoding="utf-8")
    _say(f"PySpark {version}: ready after {time.monotonic() - started:.0f} s; {look}")
    return python


def wanted(version: str, *, alone: bool = False) -> dict[str, object]:
    """What an environment is made from; when any of it differs, it is made anew."""
    return {
        "python": platform.python_version(),
        "sources": str(ROOT / "src"),
        "packages": _requirements(version) if alone else sysconfig.get_path("purelib"),
    }


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would point Spark, or Python, to another installation."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("SPARK_HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        and not name.startswith("PYSPARK_")
    }


def _requirements(version: str) -> list[str]:
    """What Penstock's extra `spark` asks for, with that PySpark and otherwise the versions of development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    names = [re.split(r"[<>=!~ ]", one, maxsplit=1)[0] for one in asked]
    pins = dict(line.split("==") for line in _pins())
    return [f"{name}=={version}" if name.startswith("pyspark") else f"{name}=={pins[name]}" for name in names]


def _pins() -> list[str]:
    """The lines of constraints.txt but for Spark's own."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "==" in line and not line.startswith(("pyspark==", "py4j=="))]


def _pip_install(python: Path, *asked: str) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-spark-env-") as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text("\n".join(_pins()), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--disable-pip-version-check", "--constraint", str(pins), *asked),
        ]
        done = subprocess.run(
            command, env=clean_environment(), check=False, stderr=subprocess.PIPE, text=True
        )
    if done.returncode != 0:
        raise SparkEnvError(f"pip could not install {' '.join(asked)}:\n{done.stderr[-2000:]}")


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
    parser.add_argument(
        "--alone", action="store_true", help="with what penstock-kafka[spark] brings, and nothing more"
    )
    args = parser.parse_args()
    answer = interpreter if args.where else make
    try:
        for version in args.versions:
            print(answer(version, alone=args.alone))
    except SparkEnvError as error:
        print(f"spark_env: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
