# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on this machine: a master and two workers with one core each.

Spark runs the second copy of a slow task on another host only, so each worker has a loopback address of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import quick_java
from spark.faults.processes import kill_session
from spark.faults.rules import wait_until

MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
START_SECONDS = 180.0


@dataclass
class StandaloneCluster:
    """Use with `with`; nothing of it is left running at the end."""

    folder: Path
    url: str = ""
    environment: Mapping[str, str] | None = None  # of master and workers, and so of the executors; None: ours
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End master, workers and what they have started."""
        for process in reversed(self._processes):
            kill_session(process.pid)
            process.wait()
        self._processes.clear()

    def _start(self) -> None:
        self._java("master", "127.0.0.1", MASTER_CLASS, "--port", "0")
        self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
        for number, host in enumerate(WORKER_HOSTS):
            name = f"worker-{number}"
            place = str(self.folder / name)
            options = ("--cores", "1", "--memory", "1g", "--work-dir", place, self.url)
            self._java(name, host, WORKER_CLASS, *options)
        for number in range(len(WORKER_HOSTS)):
            self._wait_for(f"worker-{number}", r"Successfully registered with master (\S+)")

    def _java(self, name: str, host: str, main: str, *options: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        (core,) = (home / "jars").glob("spark-core_*.jar")
        env = dict(os.environ if self.environment is None else self.environment) | {
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.folder),
        }
        command = [
            "java",
            *quick_java.PLAIN.split(),
            "-Xmx256m",
            *_OPENED,
            "-cp",
            f"{home / 'jars'}/*",
            main,
        ]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", host, "--webui-port", "0", *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def _wait_for(self, name: str, pattern: str) -> str:
        path = self.folder / f"{name}.log"
        wait_until(
            lambda: re.search(pattern, path.read_text()) is not None,
            f"{pattern!r} in the log of {name}: {path}",
            START_SECONDS,
        )
        found = re.search(pattern, path.read_text())
        assert found is not None
        return found[1]


# What Spark's launcher opens to itself in Java's modules.
_OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
)
