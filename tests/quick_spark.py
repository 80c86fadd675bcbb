# SPDX-License-Identifier: Apache-2.0
"""Options with which a Java process of Spark starts in half the time, and with a third of the work.

The tests start dozens of them, each for seconds. Loading and checking Spark's classes is most of such a life, so those
that a small job needs are kept, once loaded, in an archive of Java's own below `build/`; and the optimising compiler
would cost these processes more than it gives.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from penstock.devbroker.java import find_java

FOLDER = Path(__file__).resolve().parent.parent / "build" / "quick-spark"
# Read by spark-submit, which every driver is started by, also under pyspark and Spark Connect.
VARIABLE = "SPARK_SUBMIT_OPTS"
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
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


def submit_options() -> str:
    """The options, with an archive that is made now if there is none."""
    archive = FOLDER / f"spark-{version('pyspark')}-{_java_release()}.jsa"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _lock(FOLDER / "lock"):
        if not archive.exists():
            _make(archive)
    return f"{PLAIN} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        draft = Path(folder, "draft.jsa")
        options = f"{PLAIN} -XX:ArchiveClassesAtExit={draft} -Xlog:cds=off -Xlog:cds+dynamic=off"
        made = {VARIABLE: options, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, folder],
            env={**os.environ, **made},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        if done.returncode or not draft.exists():
            raise RuntimeError(f"Spark's classes could not be archived:\n{done.stdout}{done.stderr}")
        draft.rename(archive)


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
