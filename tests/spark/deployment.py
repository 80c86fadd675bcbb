# SPDX-License-Identifier: Apache-2.0
"""How the package gets to the executors: on a standalone cluster whose workers do not share the driver's environment.

`make test-spark-cluster` runs it, and `make test` does not: it builds a wheel and an environment, and takes a minute or
two. Nothing here is skipped: what is missing is a failure. The commands are those of docs/spark.md, "On a cluster".
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_broker import MakeTopic
from fix_spark import SOURCES, ReadBack
from spark.faults.standalone import StandaloneCluster

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = SOURCES.parent
PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "on_a_cluster.py"
LIMIT = 600.0


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment() | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what points to the environment that the tests run in."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "PENSTOCK"))
    }


def new_environment(folder: Path, *packages: str | Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    if packages:
        constraints = ("--constraint", ROOT / "constraints.txt")
        pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet")
        run(*pip, "--disable-pip-version-check", *constraints, *packages, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-build-isolation", "-w", place, ROOT, cwd=place)
    (made,) = place.glob("penstock_kafka-*.whl")
    return made


@pytest.fixture(scope="module")
def libraries(place: Path) -> Path:
    """An environment with what the package needs, and without the package."""
    return new_environment(place / "libraries", "cramjam", "google-crc32c", "pyarrow")


@pytest.fixture(scope="module")
def cluster(place: Path, libraries: Path) -> Iterator[StandaloneCluster]:
    """Its workers find a python3 that has neither penstock nor PySpark."""
    environment = clean_environment()
    environment["PATH"] = f"{libraries / 'bin'}{os.pathsep}{environment['PATH']}"
    (place / "spark").mkdir()
    with StandaloneCluster(place / "spark", environment=environment) as running:
        yield running


def command(words: str) -> tuple[dict[str, str], list[str]]:
    """The spark-submit of the page that has these words: the variables before it, and its parts."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    (line,) = (line for line in lines if "spark-submit" in line and words in line)
    parts = shlex.split(line)
    start = parts.index("spark-submit")
    return dict(part.split("=", 1) for part in parts[:start]), parts[start + 1 :]


def submit(words: str, cwd: Path, url: str, servers: str, topic: str) -> str:
    """Run the command of the page in a folder that has all its files, and give what the program printed."""
    variables, parts = command(words)
    assert parts[-2:] == ["on_a_cluster.py", "localhost:9092"]
    (cwd / "on_a_cluster.py").write_text(EXAMPLE.read_text("utf-8"), encoding="utf-8")
    known = {"spark://host:7077": url, "localhost:9092": servers}
    scripts = sysconfig.get_path("scripts")
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    parts = [known.get(part, part) for part in parts]
    return run(Path(scripts) / "spark-submit", *parts, topic, cwd=cwd, **(here | variables))


def note_processes(environment: Path, folder: Path) -> None:
    """Let each Python of an environment leave a note of where it runs."""
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"with open(os.path.join({str(folder)!r}, str(os.getpid())), 'w') as note:\n"
        "    note.write(os.getcwd())\n",
        encoding="utf-8",
    )


def ran_in_executors(notes: Path, cluster: StandaloneCluster) -> bool:
    return any(Path(note.read_text()).is_relative_to(cluster.folder) for note in notes.iterdir())


def test_a_packed_environment(
    place: Path,
    wheel: Path,
    cluster: StandaloneCluster,
    dev_cluster: DevCluster,
    topic: MakeTopic,
    read_back: ReadBack,
    tmp_path: Path,
) -> None:
    packed = new_environment(place / "packed", wheel, "pyarrow")
    notes = tmp_path / "notes"
    notes.mkdir()
    note_processes(packed, notes)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(packed, arcname=".")
    (tmp_path / "environment").symlink_to(sys.prefix)
    target = topic(2)
    said = submit("--archives", tmp_path, cluster.url, dev_cluster.bootstrap_servers, target)
    assert f"1000 rows are in {target}" in said
    assert len(read_back(target)) == 1000
    assert ran_in_executors(notes, cluster)


def test_a_wheel_for_workers_that_have_its_libraries(
    wheel: Path,
    libraries: Path,
    cluster: StandaloneCluster,
    dev_cluster: DevCluster,
    topic: MakeTopic,
    read_back: ReadBack,
    tmp_path: Path,
) -> None:
    shutil.copy(wheel, tmp_path / "penstock.whl")  # a link would arrive under its own name
    notes = tmp_path / "notes"
    notes.mkdir()
    note_processes(libraries, notes)
    target = topic(2)
    said = submit("--py-files", tmp_path, cluster.url, dev_cluster.bootstrap_servers, target)
    assert f"1000 rows are in {target}" in said
    assert len(read_back(target)) == 1000
    assert ran_in_executors(notes, cluster)


def test_workers_that_were_sent_nothing_do_not_have_it(
    cluster: StandaloneCluster, dev_cluster: DevCluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """That the others succeed is owed to what was shipped."""
    scripts = sysconfig.get_path("scripts")
    done = subprocess.run(
        [
            f"{scripts}/spark-submit",
            "--master",
            cluster.url,
            EXAMPLE,
            dev_cluster.bootstrap_servers,
            topic(1),
        ],
        cwd=tmp_path,
        env=clean_environment()
        | {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode != 0
    assert "No module named 'penstock" in done.stdout + done.stderr
