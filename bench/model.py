# SPDX-License-Identifier: Apache-2.0
"""What is compared: cases (the work), contenders (who does it), runs (what one of them needed for it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # Not at run time: the processes of other clients shall not pay for importing ours.
    from penstock.devbroker import DevCluster


class BenchError(Exception):
    """A contender could not be run, or its answer could not be read."""


@dataclass(frozen=True)
class Case:
    """One kind of work, the same for every contender.

    Attributes:
        name: short, for --only and for the results file.
        title: one line for people.
        settings: producer options by their Java names. What is not named here is each client's own default.
        partitions: of the topic.
        record_size: bytes of each value.
        records: how many are sent in one run.
    """

    name: str
    title: str
    settings: Mapping[str, str]
    partitions: int = 6
    record_size: int = 100
    records: int = 2_000_000


@dataclass(frozen=True)
class Job:
    """One run to be made: a case, where to send it, and the values that every contender sends in turn."""

    case: Case
    cluster: DevCluster
    topic: str
    payload_file: Path
    records: int

    def settings(self) -> dict[str, str]:
        """The producer's options, the address included."""
        return {"bootstrap.servers": self.cluster.bootstrap_servers, **self.case.settings}


@dataclass(frozen=True)
class Timing:
    """What a contender says of its run.

    Attributes:
        seconds: from before the first send until the last acknowledgement.
        peak_rss: bytes; None where the contender cannot tell, and the operating system's figure is taken.
        warm_up_records: sent before the clock started, besides those of the job.
    """

    seconds: float
    peak_rss: int | None = None
    warm_up_records: int = 0


class Contender(Protocol):
    """A producer to be measured; each run is a process of its own."""

    name: str
    title: str

    def missing(self) -> str | None:
        """Why it cannot run here, in a few words; None when it can."""
        ...

    def command(self, job: Job) -> list[str]:
        """The command line of one run."""
        ...

    def read_timing(self, job: Job, output: str) -> Timing:
        """Find the figures in what the run printed.

        Raises:
            BenchError: they are not there.
        """
        ...


@dataclass(frozen=True)
class Run:
    """One run that was made, and counted at the broker.

    Attributes:
        records: sent within the measured time.
        warm_up_records: sent before it.
        arrived: records at the broker that were not there before.
        seconds: as in Timing.
        cpu_seconds: user and system time of the whole process.
        peak_rss: bytes.
        others_share: the part of the machine that other programs used meanwhile, 0 to 1; None where that is unknown.
    """

    case: str
    contender: str
    round: int
    records: int
    arrived: int
    seconds: float
    cpu_seconds: float
    peak_rss: int
    others_share: float | None = None
    warm_up_records: int = 0

    @property
    def sent(self) -> int:
        """All records that should be at the broker."""
        return self.records + self.warm_up_records

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of user and system time per record, the whole process counted."""
        return 1e6 * self.cpu_seconds / self.sent

    @property
    def complete(self) -> bool:
        """Whether exactly the records that were sent are at the broker."""
        return self.arrived == self.sent


@dataclass(frozen=True)
class Results:
    """All runs of one measurement, and where it was made."""

    cases: Sequence[Case]
    contenders: Sequence[Contender]
    runs: Sequence[Run]
    machine: Mapping[str, object]
    skipped: Mapping[str, str] = field(default_factory=dict)  # contender -> why it did not run

    def of(self, case: str, contender: str) -> list[Run]:
        """The runs of one contender in one case, in the order of the rounds."""
        return [run for run in self.runs if (run.case, run.contender) == (case, contender)]
