# SPDX-License-Identifier: Apache-2.0
"""Runs the cases on one server, and compares what is there with what was sent.

All cases write to one partition, one after the other, so that one run of each reader shows what all of them wrote.
Offsets tell which records are of which case.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from brokers.cases import Case
from brokers.readers import ReadingFailed, read_by_another_client, read_by_the_console
from brokers.records import Found, Sent, difference, without_repeats
from brokers.scene import TOPIC, CaseFailed, Scene
from brokers.segments import Entry
from brokers.servers import CannotBe, RealBroker, Server, started_kfake
from brokers.table import Cell
from brokers.traits import Traits
from penstock import errors
from penstock.devbroker import KAFKA_VERSION, DevCluster

# Segments are never deleted: records may have timestamps of long ago.
_PROPERTIES = {"log.retention.ms": -1}
_HEAP_MB = 256
KFAKE = "kfake"


@dataclass
class Ran:
    """What a case has left behind."""

    case: Case
    begin: int
    end: int
    sent: list[Sent]
    scene: Scene
    problems: list[str] = field(default_factory=list)
    cannot_be: bool = False

    def its_own(self, found: Sequence[Found]) -> list[Found]:
        """Of everything that was read, the records of this case."""
        own = [
            record for record in found if record.offset is not None and self.begin <= record.offset < self.end
        ]
        return without_repeats(own) if self.scene.repeats_allowed else own


def run_release(version: str, cases: Sequence[Case], say: Callable[[str], None]) -> list[Cell]:
    """Start a broker, run the cases on it, stop it; a cell of the table for each."""
    started = time.monotonic()
    with DevCluster(kafka=version, heap_mb=_HEAP_MB, properties=_PROPERTIES, security="all") as cluster:
        say(f"{version}: started after {time.monotonic() - started:.1f} s")
        return run_on(RealBroker(cluster), version, Traits(version), cases, say)


def run_kfake(cases: Sequence[Case], say: Callable[[str], None]) -> list[Cell]:
    """The same on franz-go's kfake, which is as new as the newest release."""
    with started_kfake(TOPIC) as server:
        return run_on(server, KFAKE, Traits(KAFKA_VERSION), cases, say)


def run_on(
    server: Server, title: str, traits: Traits, cases: Sequence[Case], say: Callable[[str], None]
) -> list[Cell]:
    """Run the cases on a server that runs; a cell of the column ``title`` for each."""
    started = time.monotonic()
    rans = []
    for case in cases:
        begun = time.monotonic()
        ran = _run_case(case, server, traits)
        say(
            f"{title}: {case.name}, {time.monotonic() - begun:.1f} s{''.join(': ' + p for p in ran.problems)}"
        )
        rans.append(ran)
    _compare(server, traits, rans)
    say(f"{title}: done after {time.monotonic() - started:.1f} s")
    return [_cell(title, ran) for ran in rans]


def _run_case(case: Case, server: Server, traits: Traits) -> Ran:
    scene = Scene(server, traits)
    ran = Ran(case, scene.end(), 0, [], scene)
    logger = logging.getLogger("penstock")
    logger.addHandler(scene.warnings)
    try:
        ran.sent = case.run(scene)
    except CannotBe:
        ran.cannot_be = True
    except CaseFailed as error:
        ran.problems.append(str(error))
    except (errors.KafkaError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ran.problems.append(f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")
    finally:
        logger.removeHandler(scene.warnings)
    ran.end = scene.end()
    return ran


def _compare(server: Server, traits: Traits, rans: Sequence[Ran]) -> None:
    """Compare what was sent with the segments, with what another client reads, and with Kafka's own consumer."""
    entries = server.entries(TOPIC)
    for ran in rans:
        if entries is not None:
            own = [entry for entry in entries if ran.begin <= entry.last_offset < ran.end]
            ran.problems += _stored_wrong(ran, own, traits)
    end = server.end(TOPIC)
    if end == 0:
        return
    try:
        readings = _read_all(server, traits, end, committed=False)
        for ran in rans:
            for who, records in readings.items():
                wrong = difference(ran.sent, ran.its_own(records))
                if wrong is not None and not ran.problems:
                    ran.problems.append(f"{who}: {wrong}")
        aborting = [ran for ran in rans if ran.scene.aborted]
        readings = _read_all(server, traits, end, committed=True) if aborting else {}
        for ran in aborting:
            visible = [record for record in ran.sent if record not in ran.scene.aborted]
            for who, records in readings.items():
                wrong = difference(visible, ran.its_own(records))
                if wrong is not None:
                    ran.problems.append(f"read committed by {who}: {wrong}")
    except (ReadingFailed, KafkaException) as error:
        for ran in rans:
            ran.problems.append(f"nothing was compared: {error}")


def _read_all(server: Server, traits: Traits, end: int, *, committed: bool) -> dict[str, list[Found]]:
    """What each reader finds, by its name."""
    found = read_by_another_client(server.bootstrap_servers, traits, TOPIC, end, committed=committed)
    readings = {"another client": found}
    if isinstance(server, RealBroker):
        console = read_by_the_console(server.cluster, traits, TOPIC, len(found), committed=committed)
        readings["the console consumer"] = _with_offsets(console, found)
    return readings


def _with_offsets(console: Sequence[Found], found: Sequence[Found]) -> list[Found]:
    """The console consumer of most releases shows no offsets; it reads the same records in the same order."""
    return [
        Found(one.key, one.value, one.headers, one.timestamp, other.offset)
        for one, other in zip(console, found, strict=True)
    ]


def _stored_wrong(ran: Ran, entries: Sequence[Entry], traits: Traits) -> list[str]:
    """What is wrong with the format of the entries that a case has left in the segments."""
    if ran.problems or not ran.sent:
        return []
    magics = {entry.magic for entry in entries}
    if magics != {traits.magic}:
        return [f"stored with magic {sorted(magics)} instead of {traits.magic}"]
    codecs = {entry.codec for entry in entries if not entry.is_control}
    if codecs != {ran.case.codec}:
        return [f"stored with codec {sorted(codecs)} instead of {ran.case.codec}"]
    return []


def _cell(version: str, ran: Ran) -> Cell:
    word = "cannot be" if ran.cannot_be else "ok" if ran.sent else "refused"
    return Cell(ran.case.name, version, "FAILED" if ran.problems else word, ran.problems)
