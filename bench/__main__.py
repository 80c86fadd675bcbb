# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`: start a broker, measure, print one table, write bench/results/latest.json and latest.svg."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import chart, report
from bench.cases import all_cases
from bench.contenders import all_contenders
from bench.model import BenchError, Case, Contender
from bench.runner import Plan, measure
from penstock.devbroker import DevCluster

RESULTS = Path(__file__).resolve().parent / "results"
BROKER_HEAP_MB = 512

_EPILOG = """
--only takes names of cases and contenders, separated by commas; of each kind, those named, or all when none is.

examples:
  python -m bench
  python -m bench --only batch-128k
  python -m bench --only default,penstock,java --rounds 5
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure; 0 when every record of every run arrived."""
    args = _parser().parse_args(arguments)
    try:
        plan = _plan(args)
        if args.list:
            for case in plan.cases:
                print(f"{case.name:<16} {case.title}")
            for contender in plan.contenders:
                print(f"{contender.name:<16} {contender.title}")
            return 0
        with DevCluster(
            heap_mb=BROKER_HEAP_MB, properties={"log.retention.check.interval.ms": 10_000}
        ) as cluster:
            results = measure(plan, cluster, lambda line: print(line, flush=True))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(report.table(results))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "latest.json").write_text(report.as_json(results), encoding="utf-8")
    (args.out / "latest.svg").write_text(chart.svg(results), encoding="utf-8")
    print(f"\nwritten: {args.out / 'latest.json'}, {args.out / 'latest.svg'}")
    return 0 if all(run.complete for run in results.runs) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare producers on a real Apache Kafka.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAMES", help="some of the cases and contenders")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument(
        "--records", type=int, metavar="N", help="records in one run (default: as the case says)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where results go")
    parser.add_argument("--list", action="store_true", help="list cases and contenders, and do nothing")
    return parser


def _plan(args: argparse.Namespace) -> Plan:
    cases, contenders = all_cases(), all_contenders()
    wanted = {name for name in args.only.split(",") if name}
    unknown = wanted - {case.name for case in cases} - {one.name for one in contenders}
    if unknown:
        raise BenchError(
            f"no case or contender of that name: {', '.join(sorted(unknown))} (--list shows them)"
        )
    if args.rounds < 1 or (args.records is not None and args.records < 1):
        raise BenchError("rounds and records must be at least 1")
    chosen_cases: list[Case] = [case for case in cases if case.name in wanted]
    chosen: list[Contender] = [one for one in contenders if one.name in wanted]
    return Plan(chosen_cases or cases, chosen or contenders, args.rounds, args.records)


if __name__ == "__main__":
    sys.exit(main())
