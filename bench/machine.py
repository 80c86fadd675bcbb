# SPDX-License-Identifier: Apache-2.0
"""The machine on which a measurement was made, and how much of it others used meanwhile.

Machines are shared. A measurement cannot keep others away, but it can say how much they disturbed: all the time that
the processors were busy, less what the client and the brokers used.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from penstock import _compiled
from penstock.devbroker.settings import KAFKA_VERSION

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class OthersWatch:
    """Watches from its making on; tells nothing where the system has no /proc.

    Args:
        brokers: process ids of the brokers.
    """

    def __init__(self, brokers: Iterable[int]) -> None:
        self._brokers = list(brokers)
        self._started = time.monotonic()
        self._before = self._counted()

    def share(self, client_cpu_seconds: float) -> float | None:
        """The part of the machine, 0 to 1, that neither client nor brokers used, but somebody; None if unknown."""
        now = self._counted()
        if now is None or self._before is None:
            return None
        elapsed = time.monotonic() - self._started
        others = now - self._before - client_cpu_seconds
        return min(1.0, max(0.0, others / (elapsed * (os.cpu_count() or 1))))

    def _counted(self) -> float | None:
        """Busy seconds of all processors, less those of the brokers."""
        try:
            user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
                int, (_PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
            )
            brokers = sum(map(_ticks_of, self._brokers))
        except (OSError, ValueError):
            return None
        return (user + nice + system + irq + softirq - brokers) / _TICKS


def _ticks_of(pid: int) -> int:
    # The name in the second field may hold spaces; user and system time are the 12th and 13th after it.
    fields = (
        (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    )
    return int(fields[11]) + int(fields[12])


def describe_machine() -> Mapping[str, object]:
    """What a reader needs to know to judge the absolute numbers."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M %Z"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "penstock": _compiled.describe(),
        "kafka": KAFKA_VERSION,
        **{name: _version(name) for name in ("confluent-kafka", "aiokafka", "kafka-python")},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )
