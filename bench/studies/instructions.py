# SPDX-License-Identifier: Apache-2.0
"""How many machine instructions one record takes, counted by valgrind's callgrind.

Instructions depend little on how busy the machine is: counts of the same sources lay about 5 % apart where rates halve.
Each program runs with N records and with 2 N; the difference, divided by N, has no start-up in it. What was found is
kept in bench/instructions.json and compared with the next time.

This module is also the program that is counted; see `main`.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.budget import Plan
from bench.counting import create_topic, delete_topics
from bench.model import BenchError, Sample
from bench.process import ROOT, run_measured
from bench.runner import TOPIC_CONFIG, address
from bench.studies import Context

RECORDED = ROOT / "bench" / "instructions.json"
GROWTH = 1.10  # more than this is said aloud
RECORDS = {"send": 60_000, "send-keys": 60_000, "send-arrow": 600_000, "send-arrow-keys": 600_000}
RUN_SECONDS = 20.0
RUN_TIMEOUT_SECONDS = 240.0
_TOPIC = "bench-instructions"
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)
# Under valgrind everything is slow but the clock: records shall wait for their batch to be full as they do otherwise.
_SETTINGS = {
    "batch.size": str(16 * 1024),
    "linger.ms": "2000",
    "request.timeout.ms": "120000",
    "delivery.timeout.ms": "240000",
}


class Instructions:
    """Instructions per record, against those that were recorded."""

    name = "instructions"
    title = "machine instructions per record, by callgrind, against bench/instructions.json"
    only_by_name = False

    def missing(self) -> str | None:
        return None if shutil.which("valgrind") else "valgrind is not installed"

    def seconds(self, plan: Plan) -> float:
        del plan  # once is enough: there is hardly a spread
        return 2 * RUN_SECONDS * len(_programs())

    def run(self, context: Context) -> None:
        create_topic(address(context.cluster), _TOPIC, 6, TOPIC_CONFIG)
        found: dict[str, float] = {}
        for program in _programs():
            records = context.plan.records or RECORDS[program]
            try:
                once, twice = (count(context, program, number) for number in (records, 2 * records))
            except BenchError as error:
                context.results.failures[f"instructions-{program}", "penstock"] = str(error).splitlines()[-1]
                context.tell(f"  {program:<16} FAILED: {error}")
                continue
            found[program] = round((twice - once) / records, 1)
            case = f"instructions-{program}"
            context.results.samples.append(Sample(case, "penstock", 1, "instructions", found[program]))
            context.tell(f"  {program:<16} {found[program]:,.0f} instructions per record")
        delete_topics(address(context.cluster), [_TOPIC])
        context.results.notes += compare_with_recorded(found, _read_recorded())
        if context.keep:
            RECORDED.write_text(
                json.dumps({**_where(), "per_record": found}, indent=2) + "\n", encoding="utf-8"
            )
            context.tell(f"  recorded in {RECORDED.relative_to(ROOT)}")


def compare_with_recorded(found: Mapping[str, float], recorded: Mapping[str, Any]) -> list[str]:
    """Say for each program how many instructions it took, and whether that is more than was recorded."""
    same_kind = {name: recorded.get(name) for name in _where()} == _where()
    lines = []
    for program, value in found.items():
        before = recorded.get("per_record", {}).get(program) if same_kind else None
        line = f"instructions per record, {program}: {value:,.0f}"
        if before is None:
            lines.append(f"{line} (nothing recorded for this kind of interpreter)")
        else:
            grown = value / before
            word = "GREW" if grown > GROWTH else "recorded"
            lines.append(f"{line} ({word}: {before:,.0f} before, {100 * (grown - 1):+.1f} %)")
    return lines


def count(context: Context, program: str, records: int) -> int:
    """All instructions of one run.

    Raises:
        BenchError: it failed.
    """
    settings = {**_SETTINGS, "bootstrap.servers": context.cluster.bootstrap_servers}
    told = json.dumps({"settings": settings, "program": program, "records": records})
    with tempfile.TemporaryDirectory(prefix="penstock-callgrind-") as folder:
        out = Path(folder) / "callgrind.out"
        command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"]
        worker = [sys.executable, "-m", "bench.studies.instructions", told]
        # Sets of strings are walked in the same order every time.
        run_measured([*command, *worker], RUN_TIMEOUT_SECONDS, {"PYTHONHASHSEED": "0"})
        total = _TOTALS.search(out.read_text(encoding="utf-8", errors="replace")) if out.exists() else None
    if total is None:
        raise BenchError("callgrind wrote no totals")
    return int(total[1])


def _programs() -> list[str]:
    from penstock import Producer

    with_arrow = hasattr(Producer, "send_arrow")
    return [name for name in RECORDS if with_arrow or "arrow" not in name]


def _where() -> dict[str, str]:
    from penstock import _compiled

    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "penstock": _compiled.describe().partition(",")[0],  # compiled or pure, not which patch of Python
    }


def _read_recorded() -> dict[str, Any]:
    if not RECORDED.exists():
        return {}
    recorded: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return recorded


def main(arguments: Sequence[str]) -> None:
    """Send the records, and see that all were acknowledged."""
    from penstock import Producer

    told = json.loads(arguments[0])
    program, records = told["program"], told["records"]
    value = bytes(100)
    with Producer(told["settings"]) as producer:
        if "arrow" in program:
            _send_arrow(producer, records, keys=program.endswith("keys"))
            return
        keys = [b"%07d" % number if program.endswith("keys") else None for number in range(1000)]
        deliveries = [producer.send(_TOPIC, value, keys[number % 1000]) for number in range(records)]
        producer.flush()
        if any(delivery.exception(0) is not None for delivery in deliveries):
            raise BenchError("a record was not acknowledged")


def _send_arrow(producer: Any, records: int, *, keys: bool) -> None:
    import pyarrow as pa

    rows = 60_000
    columns = {"value": pa.array([bytes(100)] * rows, pa.binary())}
    if keys:
        columns["key"] = pa.array([b"%07d" % number for number in range(rows)], pa.binary())
    table = pa.table(columns)
    bulks = [
        producer.send_arrow(_TOPIC, table.slice(0, min(rows, records - sent)))
        for sent in range(0, records, rows)
    ]
    producer.flush()
    if sum(bulk.result(0).records for bulk in bulks) != records:
        raise BenchError("a record was not acknowledged")


if __name__ == "__main__":
    main(sys.argv[1:])
