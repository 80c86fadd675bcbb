# SPDX-License-Identifier: Apache-2.0
"""Where `penstock demo` kills: a Python worker of Spark once, and the driver once, each with SIGKILL.

The demo names `hook` in PENSTOCK_SINK_HOOK, so the sink calls it at each of its steps, in Spark's own Python processes:
the workers, and those that plan and commit for the driver. PENSTOCK_DEMO_KILLS is a folder with the file `plan.json`,
which says what is killed, at which step and in which micro-batch. A file for each kill is made there before it happens,
so that it happens once, and the demo can tell of it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KILLS_VARIABLE = "PENSTOCK_DEMO_KILLS"
HOOK = f"{__name__}:hook"

WORKER = "worker"
DRIVER = "driver"

_PLAN = "plan.json"


@dataclass(frozen=True)
class PlannedKill:
    """What is to be killed, and when."""

    victim: str  # WORKER or DRIVER
    step: str  # the name of a step of the sink
    batch: int
    turn: int = 1  # which of the processes that come to this step


@dataclass(frozen=True)
class Kill:
    """A kill that happened, or is about to."""

    victim: str
    batch: int
    pids: tuple[int, ...]
    at: float  # seconds since the epoch: several processes tell the time


def write_plan(folder: Path, plan: Sequence[PlannedKill]) -> None:
    """Tell the hook what to do. The folder must exist."""
    (folder / _PLAN).write_text(json.dumps([asdict(planned) for planned in plan]), encoding="ascii")


def try_read_kill(folder: Path, victim: str) -> Kill | None:
    """The kill of the driver or of a worker, once it has happened."""
    try:
        found = json.loads((folder / f"{victim}.json").read_text(encoding="ascii"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None  # not yet, or not yet written whole
    return Kill(found["victim"], found["batch"], tuple(found["pids"]), found["at"])


def hook(step: Any, facts: Mapping[str, Any]) -> None:
    """Kill what the plan says for this step and batch, unless that was done before; called by the sink."""
    folder = os.environ.get(KILLS_VARIABLE)
    if folder is None:
        return
    for planned in _read_plan(folder):
        if planned.step == step.name and planned.batch == facts.get("batch_id"):
            maybe_kill(Path(folder), planned)


@functools.cache
def _read_plan(folder: str) -> tuple[PlannedKill, ...]:
    text = (Path(folder) / _PLAN).read_text(encoding="ascii")
    return tuple(PlannedKill(**planned) for planned in json.loads(text))


def maybe_kill(folder: Path, planned: PlannedKill) -> None:
    """Kill when it is this process' turn, and it was not done before."""
    if _count_turn(folder / f"{planned.victim}.turns") < planned.turn:
        return
    # For the driver this is the process that commits. It would go on without Java, and finish what it has begun.
    above = driver_pids(os.getpid()) if planned.victim == DRIVER else ()
    pids = (*above, os.getpid())
    kill = Kill(planned.victim, planned.batch, pids, time.time())
    try:
        # Made only if it is not there: of all processes and attempts one gets to kill.
        with open(folder / f"{planned.victim}.json", "x", encoding="ascii") as file:
            json.dump(asdict(kill), file)
    except FileExistsError:
        return
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _count_turn(path: Path) -> int:
    """Which turn this is: each adds a byte to the file, which is safe between processes."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b".")
        return os.fstat(file).st_size
    finally:
        os.close(file)


def driver_pids(pid: int) -> tuple[int, ...]:
    """The processes of the driver above one that Spark started: the Python that runs the pipeline, and Java."""
    parent, name = _parent_and_name(pid)
    while parent > 1 and name != "java":
        pid = parent
        parent, name = _parent_and_name(pid)
    # Java last: it starts nothing new once its Python has gone.
    return (parent, pid) if name == "java" and parent > 1 else ()


def _parent_and_name(pid: int) -> tuple[int, str]:
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        # The name stands in parentheses and may hold some itself.
        head, _, rest = stat.read_text(encoding="utf-8", errors="replace").rpartition(") ")
        return int(rest.split()[1]), head.partition("(")[2]
    command = ["ps", "-o", "ppid=,comm=", "-p", str(pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
    parent, _, name = listed.stdout.strip().partition(" ")
    return int(parent), Path(name.strip()).name
