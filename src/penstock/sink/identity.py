# SPDX-License-Identifier: Apache-2.0
"""The identities: the host, JVM and planner process of a driver, and the transactional ids of a sink.

A JVM that another one has taken over from must never write again, however long it slept. So it has to be recognised:
by host, process id and start time, which together are never given twice. The planner process is a child of that JVM
which Spark may replace at any time; it is known by a random token, made by each process for itself.

Whether a driver still runs can only be told where its process id means something: under the same running kernel, and
in the same space of process ids, which a container has for itself. Start times are shown by the clock of the space of
time, which a container may have for itself, too. All that is its *place*. The host's name says too little: containers
and machines share names.

The transactional ids:

    ps.<sinkKey>.c                          the coordinator: owner records and decisions
    ps.<sinkKey>.p                          a probe: may such ids be used, and with which time-out?
    ps.<sinkKey>.<gen>.<worker>.<slot>      a task

No field holds a dot and the key has a fixed length, so that no sink's ids are a prefix of another's.
"""

from __future__ import annotations

import enum
import os
import platform
import re
import secrets
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock._escaping import escaped
from penstock._json_fields import as_list, as_number, as_text
from penstock._processes import ENDED_STATES, parse_proc_stat
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, KafkaError, SinkAuthorizationError

_PROC = Path("/proc")
_MAX_ANCESTORS = 64
_MORE_THAN_ANY_PID = 1 << 31


class Jvm(NamedTuple):
    """One Java process, or the process that stands for it where there is none."""

    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {escaped(self.host)}"


class DriverIdentity(NamedTuple):
    """A driver.

    Attributes:
        jvm: what is replaced when a job is started anew.
        planner_pid: the process that plans batches for it.
        token: told by no two planner processes.
        place: where the JVM's process id means something; empty where that cannot be told.
    """

    jvm: Jvm
    planner_pid: int
    token: str
    place: str = ""

    @classmethod
    def current(cls) -> DriverIdentity:
        """The driver that this process plans for."""
        jvm = _java_above()
        # A planner process may end while its driver goes on: where it stands for it, nothing follows from its end.
        place = "" if jvm is None else current_place()
        return cls(jvm or _this_process(), os.getpid(), _process_token(), place)


class Life(enum.Enum):
    """Whether a driver runs, as far as it can be told from here."""

    RUNS = "it runs"
    ENDED = "it has ended"
    UNKNOWN = "whether it runs is not known here"


def life_of(jvm: Jvm, place: str) -> Life:
    """Whether the process of an owner record is there; `place` is that of the record."""
    if not place or place != current_place() or not 0 < jvm.pid < _MORE_THAN_ANY_PID:
        return Life.UNKNOWN
    try:
        os.kill(jvm.pid, 0)
    except ProcessLookupError:
        return Life.ENDED
    except OSError:  # it is there, and somebody else's
        pass
    found = _look_at(jvm.pid)
    if found is None:
        return Life.UNKNOWN  # hidden from us, or gone since
    return Life.RUNS if found.started == jvm.started and not found.ended else Life.ENDED


def current_place() -> str:
    """Under which running kernel, and in which spaces of process ids and time, this process is; empty if not known."""
    if not _PROC.is_dir():
        return _boot_session()
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        place = f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""
    try:
        return f"{place} {os.readlink(_PROC / 'self/ns/time')}"
    except FileNotFoundError:  # kernels before 5.6 have one for all
        return place
    except OSError:
        return ""


@cache
def _boot_session() -> str:
    """As macOS names it, which has one space of process ids."""
    asked = ["sysctl", "-n", "kern.bootsessionuuid"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
        return answer.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# This process's token, by its id: a child made by a fork must not use its parent's token.
_tokens: dict[int, str] = {}


def _process_token() -> str:
    pid = os.getpid()
    if pid not in _tokens:
        _tokens.clear()
        _tokens[pid] = secrets.token_hex(8)
    return _tokens[pid]


def _java_above() -> Jvm | None:
    """The nearest Java process among the parents."""
    host = platform.node()
    pid = os.getpid()
    for _ in range(_MAX_ANCESTORS):
        found = _look_at(pid)
        if found is None:
            break
        if found.command == "java":
            return Jvm(host, pid, found.started)
        if found.parent <= 1:
            break
        pid = found.parent
    return None


def _this_process() -> Jvm:
    """What stands for the driver where there is no Java process."""
    own = _look_at(os.getpid())
    return Jvm(platform.node(), os.getpid(), own.started if own is not None else _process_token())


class _Process(NamedTuple):
    command: str
    parent: int
    started: str
    ended: bool = False  # and its parent has not asked for its exit code yet


def _look_at(pid: int) -> _Process | None:
    return _from_proc(pid) if _PROC.is_dir() else _from_ps(pid)


def _from_proc(pid: int) -> _Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    found = parse_proc_stat(stat, boot)
    ended = found.state in ENDED_STATES and found.threads <= 1
    return _Process(found.command, found.parent, found.started, ended)


def _from_ps(pid: int) -> _Process | None:
    # One -o for each: where POSIX is taken at its word, all behind the first = would be a heading.
    asked = ["ps", "-o", "ppid=", "-o", "lstart=", "-o", "comm=", "-p", str(pid)]
    try:
        answer = subprocess.run(  # noqa: S603 - our own words and a number
            asked, capture_output=True, text=True, check=True, timeout=10
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    # ppid, five words of the start time, and the command, which may hold blanks.
    return _Process(Path(" ".join(answer[6:])).name, int(answer[0]), " ".join(answer[1:6]))


def jvm_from_json(values: Any) -> Jvm:
    """Read a JVM as the log has it.

    Raises:
        ValueError: it is something else.
    """
    try:
        host, pid, started = as_list(values, "jvm", 3)
        return Jvm(as_text(host, "host"), as_number(pid, "pid"), as_text(started, "start time"))
    except ValueError as error:
        raise ValueError(f"not a JVM: {error}") from error


_TASK: Final = re.compile(r"ps\.([0-9a-f]{16})\.(\d{1,18})\.([0-9a-zA-Z-]+)\.(\d{1,9})")


class TaskId(NamedTuple):
    """The parts of a task's transactional id."""

    sink_key: str
    generation: int
    worker: str
    slot: int

    def __str__(self) -> str:
        return f"ps.{self.sink_key}.{self.generation}.{self.worker}.{self.slot}"


def coordinator_id(sink_key: str) -> str:
    """The id in whose transactions a sink's decisions are written."""
    return f"ps.{sink_key}.c"


def probe_id(sink_key: str) -> str:
    """The id that is only ever initialised, to find out what the brokers allow."""
    return f"ps.{sink_key}.p"


def task_id_pattern(sink_key: str = "[0-9a-f]{16}") -> str:
    """A regular expression for the ids of all tasks of a sink, of whichever generation; without one of all sinks."""
    return rf"ps\.{sink_key}\.[0-9]+\.[0-9a-zA-Z-]+\.[0-9]+"


def parse_task_id(transactional_id: str) -> TaskId | None:
    """The parts of a task's id; None for any other id."""
    found = _TASK.fullmatch(transactional_id)
    if found is None:
        return None
    key, generation, worker, slot = found.groups()
    return TaskId(key, int(generation), worker, int(slot))


_AUTHORIZATION_CODES = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def explain_refusal(error: BrokerError, wanted: str) -> KafkaError:
    """If a permission is missing: an error that says which one. Any other error as it is."""
    if error.code not in _AUTHORIZATION_CODES:
        return error
    return SinkAuthorizationError(
        f"this client may not {wanted}: {error}. Exactly-once delivery needs Write and Describe on the transactional "
        "ids `ps.*` (an ACL with a prefix), Read, Write, Describe and DescribeConfigs on the log's topic, and Create "
        "for it unless it exists. Nothing was written"
    )
