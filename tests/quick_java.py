# SPDX-License-Identifier: Apache-2.0
"""Options with which a Java process of Spark or Kafka starts in half the time, and with a third of the work.

The tests start dozens of them, each for seconds. Loading and checking classes is most of such a life, so those that a
small job needs are kept, once loaded, in an archive of Java's own below `build/`. The optimising compiler is off: it
would cost these processes more than it gives.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.devbroker.machine import OPTIONS_VARIABLE, find_java
from penstock.devbroker.settings import KAFKA_VERSION

FOLDER = Path(__file__).resolve().parent.parent / "build" / "quick-java"
# Read by spark-submit, which every driver is started by, also under pyspark and Spark Connect.
SPARK_VARIABLE = "SPARK_SUBMIT_OPTS"
KAFKA_VARIABLE = OPTIONS_VARIABLE
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_PLAIN_KAFKA = "-XX:TieredStopAtLevel=1 -Xshare:auto"  # brokers and tools have chosen their collectors
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_LIMIT = 300.0

# A bit of everything: what it loads is in the archive.
_PROGRAM = """
import pathlib, sys
from pyspark.sql import SparkSession
folder = pathlib.Path(sys.argv[1])
(folder / "input").mkdir()
(folder / "input" / "a.txt").write_text("1,x\\n2,y\\n")
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
gateway = spark.sparkContext._gateway
text = str(folder / "input")
spark.read.csv(text).selectExpr("_c1 as key", "to_json(struct(*)) as value").groupBy("key").count().collect()
spark.range(100).mapInArrow(lambda batches: batches, "id long").write.format("noop").mode("append").save()
lines = spark.readStream.text(text).writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
lines.trigger(availableNow=True).start().awaitTermination()
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())  # the archive is written when Java ends
"""


class NoArchiveError(Exception):
    """The archive could not be made."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where tests with a broker or with Spark were chosen, all that they start here starts quicker.

    Before the first test, and not in a fixture of it: fetching Kafka and making an archive may take longer than a test.
    """
    if session.config.option.collectonly:
        return
    patch = pytest.MonkeyPatch()
    session.config.add_cleanup(patch.undo)
    for marker, variable, options in (
        ("broker", KAFKA_VARIABLE, kafka_options),
        ("spark", SPARK_VARIABLE, spark_options),
    ):
        if any(item.get_closest_marker(marker) for item in session.items):
            patch.setenv(variable, options())


def spark_options() -> str:
    """The options for Spark, with an archive that is made now if there is none."""
    archive = _with_archive(f"spark-{version('pyspark')}", _make_of_spark)
    return f"{PLAIN} {archive}"


def kafka_options() -> str:
    """The options for Kafka's broker and tools, likewise."""
    archive = _with_archive(f"kafka-{KAFKA_VERSION}", _make_of_kafka)
    return f"{_PLAIN_KAFKA} {archive}"


def _with_archive(name: str, make: Callable[[Path, Path], None]) -> str:
    archive = FOLDER / f"{name}-{_java_release()}.jsa"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _lock(FOLDER / f"{name}.lock"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                draft = Path(folder, "draft.jsa")
                try:
                    make(draft, Path(folder))
                except NoArchiveError as error:
                    # A broker that is slow to stop is killed and writes none. Without, tests only take longer.
                    print(f"==> without an archive of classes: {error}", file=sys.stderr, flush=True)  # noqa: T201
                    return ""
                draft.rename(archive)
    return f"-XX:SharedArchiveFile={archive} {_QUIET}"


def _make_of_spark(draft: Path, folder: Path) -> None:
    options = f"{PLAIN} -XX:ArchiveClassesAtExit={draft} {_QUIET}"
    made = {SPARK_VARIABLE: options, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, folder],
        env={**os.environ, **made},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # with the Java process that it starts
    )
    try:
        told, _ = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise NoArchiveError(f"Spark took longer than {_LIMIT} seconds") from None
    if process.returncode or not draft.exists():
        raise NoArchiveError(f"Spark's classes could not be archived:\n{told}")


def _make_of_kafka(draft: Path, folder: Path) -> None:
    """Let a broker keep a transaction, and stop it in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KAFKA_VARIABLE, f"{_PLAIN_KAFKA} -XX:ArchiveClassesAtExit={draft} {_QUIET}")
        with DevCluster(data_dir=folder / "data") as cluster:
            draft.unlink(
                missing_ok=True
            )  # the tool that prepares the broker's folder has written one as well
            producer = Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="archive")
            with producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send("archive", b"value")
    if not draft.exists():
        raise NoArchiveError(
            "Kafka's classes could not be archived: its broker was stopped, and wrote nothing"
        )


def _java_release() -> str:
    """Java itself, as a word: an archive is of use only to the one that made it."""
    done = subprocess.run(
        [find_java(), "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True
    )
    found = re.findall(r"^ *java\.(?:vendor|vm\.version) = (.*)$", done.stderr, re.MULTILINE)
    return "-".join("".join(filter(str.isalnum, value)) for value in found)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One test run at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
