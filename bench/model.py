# SPDX-License-Identifier: Apache-2.0
"""What is compared: cases (the work), contenders (who does it), runs (what one of them needed for it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # Not at run time: the processes of other clients shall not pay for importing ours.
    from bench.fake_brokers import FakeBrokers
    from penstock.devbroker import DevCluster


class BenchError(Exception):
    """A contender could not be run, or its answer could not be read."""


@dataclass(frozen=True)
class Case:
    """One kind of work, the same for every contender that takes part.

    Attributes:
        name: short, for --only and for the results file.
        title: one line for people.
        group: cases of one group are run in turns, so that they can be compared with each other.
        contenders: the names of those who take part.
        settings: producer options by their Java names. What is not named here is each client's own default.
        partitions: of the topic.
        record_size: bytes of each value, about.
        values: what they look like, see bench.values.
        rate: records per second, for latency; 0: as many as possible.
        threads: that send at the same time, through one producer.
        tasks: of asyncio, each of which waits for every record before it sends the next; 0: nobody waits for single
            records.
        keys: whether records have keys, so that partitions follow from hashes.
        often: those of the contenders that have three times as many rounds, because they are close to each other.
        access: the way to a secured listener of the broker, as DevCluster names it; "" for the plain one.
        kafka: the release of a broker that is started for the group alone; "" for the newest, which all others share.
        brokers: of a fake cluster that is started for the case alone; 0: the case has a real broker.
    """

    name: str
    title: str
    group: str
    contenders: tuple[str, ...]
    settings: Mapping[str, str]
    partitions: int = 6
    record_size: int = 100
    values: str = "letters"
    rate: int = 0
    threads: int = 1
    tasks: int = 0
    keys: bool = False
    often: tuple[str, ...] = ()
    access: str = ""
    kafka: str = ""
    brokers: int = 0


@dataclass(frozen=True)
class Job:
    """One run to be made: a case, where to send it, and the values that every contender sends in turn.

    Attributes:
        records: sent within the clock.
        warm_up_records: sent before, at the same rate; only where a rate is given.
        fake: the brokers, where the case wants them in place of the cluster.
    """

    case: Case
    cluster: DevCluster
    topic: str
    payload_file: Path
    records: int
    warm_up_records: int = 0
    fake: FakeBrokers | None = None

    def settings(self) -> dict[str, str]:
        """The producer's options, the address included."""
        if self.case.access:
            return {**self.cluster.client_options(self.case.access), **self.case.settings}
        return {"bootstrap.servers": (self.fake or self.cluster).bootstrap_servers, **self.case.settings}


@dataclass(frozen=True)
class Timing:
    """What a contender says of its run.

    Attributes:
        seconds: from before the first send until the last acknowledgement.
        cpu_seconds: user and system time until then, start-up included; None: that of the whole process is taken.
        peak_rss: bytes; None where the contender cannot tell, and the operating system's figure is taken.
        warm_up_records: sent before the clock started, besides those of the job.
        latency_ms: milliseconds from send to acknowledgement, by percentile ("p50", ...); empty where nobody waits for
            single records.
    """

    seconds: float
    cpu_seconds: float | None = None
    peak_rss: int | None = None
    warm_up_records: int = 0
    latency_ms: Mapping[str, float] = field(default_factory=dict)


class Named(Protocol):
    """Somebody with figures: a contender, or a sink of Spark's."""

    @property
    def name(self) -> str:
        """As in the results file."""
        ...

    @property
    def title(self) -> str:
        """The name that people read."""
        ...


class Contender(Protocol):
    """A producer to be measured; each run is a process of its own.

    Attributes:
        guess: records of 100 bytes per second, to begin with; the first run shows the real rate.
        environment: what its process needs besides the environment of this one.
    """

    name: str
    title: str
    guess: int
    environment: Mapping[str, str]

    def missing(self) -> str | None:
        """Why it cannot run here, in a few words; None when it can."""
        ...

    def run_seconds(self, clock_seconds: float) -> float:
        """How long a run will take whose clock runs for so long."""
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
        cpu_seconds: user and system time, start-up included.
        peak_rss: bytes.
        others_share: the part of the machine that other programs used meanwhile, 0 to 1; None where that is unknown.
        latency_ms: as in Timing.
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
    latency_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """All records that should be at the broker."""
        return self.records + self.warm_up_records

    @property
    def rate(self) -> float:
        """Records per second of this run."""
        return self.records / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of user and system time per record."""
        return 1e6 * self.cpu_seconds / self.sent

    @property
    def complete(self) -> bool:
        """Whether exactly the records that were sent are at the broker."""
        return self.arrived == self.sent

    def value(self, measure: str) -> float | None:
        """One of its figures: rate, us (per record), cpu_us, rss_mib or a percentile; None when it has no such."""
        plain = {
            "rate": self.rate,
            "us": 1e6 / self.rate,
            "cpu_us": self.cpu_us,
            "rss_mib": self.peak_rss / (1 << 20),
        }
        return plain.get(measure, self.latency_ms.get(measure))


@dataclass(frozen=True)
class Sample:
    """A figure that is not one of a run against a broker: memory, instructions."""

    case: str
    contender: str
    round: int
    measure: str
    value: float


@dataclass
class Results:
    """Everything of one measurement, and where it was made.

    Attributes:
        failures: (case, contender) -> why there is no figure.
        skipped: what did not take part -> why.
        notes: lines to be said with the table.
    """

    cases: Sequence[Case]
    contenders: Sequence[Named]
    runs: list[Run] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    machine: Mapping[str, object] = field(default_factory=dict)

    def of(self, case: str, contender: str) -> list[Run]:
        """The runs of one contender in one case, in the order of the rounds."""
        return [run for run in self.runs if (run.case, run.contender) == (case, contender)]

    def sound(self, case: str, contender: str) -> bool:
        """Whether its figures may be compared: no run failed, no record was lost or doubled."""
        complete = all(run.complete for run in self.of(case, contender))
        return complete and (case, contender) not in self.failures

    def values(self, case: str, contender: str, measure: str) -> dict[int, float]:
        """A figure of every round; empty when it may not be compared."""
        if not self.sound(case, contender):
            return {}
        found = {
            one.round: one.value
            for one in self.samples
            if (one.case, one.contender, one.measure) == (case, contender, measure)
        }
        for run in self.of(case, contender):
            value = run.value(measure)
            if value is not None:
                found[run.round] = value
        return found
