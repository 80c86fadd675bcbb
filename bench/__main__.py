# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`: start a broker, measure, print one table, write bench/results/latest.json and latest.svg."""

from __future__ import annotations

import argparse
import compileall
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import penstock
from bench import chart, report
from bench.budget import Plan, choose_seconds, group_seconds, minutes
from bench.cases import all_cases
from bench.contenders import all_contenders
from bench.machine import describe_machine
from bench.model import BenchError, Results
from bench.runner import BROKER_HEAP_MB, BROKER_PROPERTIES, Tell, last_line, run_groups
from bench.studies import Context, Study, all_studies
from bench.words import counted
from penstock.devbroker import DevBrokerError, DevCluster

RESULTS = Path(__file__).resolve().parent / "results"
MINUTES = 35.0

_EPILOG = """
--only takes names of groups, cases, contenders and studies, separated by commas; of each kind, those named, or all when
none is. Without a study's name no study is made beside named cases, nor cases beside a named study.

examples:
  python -m bench
  python -m bench --only batch-128k
  python -m bench --only default,penstock,java --rounds 5
  python -m bench --only latency
  python -m bench --only endurance
"""


@dataclass(frozen=True)
class _Choice:
    plan: Plan
    studies: list[Study]
    skipped: dict[str, str]

    @property
    def needs_broker(self) -> bool:
        shared = any(not case.kafka for group in self.plan.groups().values() for case, _ in group)
        return shared or any(one.needs_broker for one in self.studies)

    def seconds(self, clock_seconds: float) -> float:
        plan = replace(self.plan, seconds=clock_seconds)
        groups = sum(group_seconds(plan, entries) for entries in plan.groups().values())
        return groups + sum(one.seconds(plan) for one in self.studies if not one.only_by_name)


def main(arguments: list[str] | None = None) -> int:
    """Measure; 0 when nothing failed and every record of every run arrived."""
    args = _parser().parse_args(arguments)
    try:
        choice = _choose(args)
        if args.list:
            _show(choice)
            return 0
        # As pip does when it installs a package: the others' bytecode is there, and start-up counts as CPU.
        compileall.compile_dir(Path(penstock.__file__).parent, quiet=2)
        with _broker(choice) as broker:
            results = measure(choice, broker, args, _say)
    except (BenchError, DevBrokerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(report.table(results))
    if results.runs:  # a study alone does not replace what the contenders showed
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "latest.json").write_text(report.as_json(results), encoding="utf-8")
        (args.out / "latest.svg").write_text(chart.svg(results), encoding="utf-8")
        print(f"\nwritten: {args.out / 'latest.json'}, {args.out / 'latest.svg'}")
    return 0 if not results.failures and all(run.complete for run in results.runs) else 1


def _broker(choice: _Choice) -> AbstractContextManager[DevCluster | None]:
    if choice.needs_broker:
        secured = any(case.access for case in choice.plan.cases)
        return DevCluster(
            heap_mb=BROKER_HEAP_MB, properties=BROKER_PROPERTIES, security="scram" if secured else None
        )
    return nullcontext()


def measure(choice: _Choice, broker: DevCluster | None, args: argparse.Namespace, tell: Tell) -> Results:
    """Make everything that was chosen, within the time there is."""
    started = time.monotonic()
    seconds = choose_seconds(choice.seconds, 0.9 * 60 * args.minutes)
    plan = replace(choice.plan, seconds=seconds)
    results = Results(plan.cases, plan.contenders, skipped=dict(choice.skipped), machine=describe_machine())
    _announce(choice, plan, args.minutes, tell)
    deadline = started + 60 * args.minutes
    try:
        run_groups(plan, broker, results, tell, deadline)
        _run_studies(choice.studies, Context(plan, broker, results, tell, args.out, args.record), deadline)
    except KeyboardInterrupt:
        results.notes.append("INTERRUPTED: rounds and cases are missing")
    results.notes.append(f"all took {minutes(time.monotonic() - started)} minutes")
    return results


def _run_studies(studies: list[Study], context: Context, deadline: float) -> None:
    for study in studies:
        expected = study.seconds(context.plan)
        if not study.only_by_name and time.monotonic() + 0.7 * expected > deadline:
            context.results.skipped[study.name] = "there was no time left for it"
            continue
        context.tell(f"\n{study.name}: {study.title}; about {minutes(expected)}")
        try:
            study.run(context)
        except Exception as error:  # it is this study's figure that is missing, and no other
            context.results.failures[study.name, "penstock"] = last_line(error)
            context.tell(f"  FAILED: {error}")


def _announce(choice: _Choice, plan: Plan, limit: float, tell: Tell) -> None:
    fixed = counted(plan.records, "record") if plan.records else f"{plan.seconds:g} s"
    total = minutes(choice.seconds(plan.seconds))
    tell(f"about {total} minutes (at most {limit:g}): {counted(plan.rounds, 'round')}, runs of {fixed}")
    for name, entries in plan.groups().items():
        tell(f"  {minutes(group_seconds(plan, entries)):>6}  {name}: {counted(len(entries), 'run')} a round")
    for study in choice.studies:
        tell(f"  {minutes(study.seconds(plan)):>6}  {study.name}")


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare producers on a real Apache Kafka.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAMES", help="a part of it; see below")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="runs of each (default: 3); close latencies have 3 times as many",
    )
    parser.add_argument(
        "--records", type=int, metavar="N", help="records in one run (default: what takes some seconds)"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, metavar="N", help=f"for all of it (default: {MINUTES:g})"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where results go")
    parser.add_argument(
        "--record",
        metavar="WHY",
        help="compare later instruction counts with these; WHY says what was paid for",
    )
    parser.add_argument("--list", action="store_true", help="list what can be named, and do nothing")
    return parser


def _choose(args: argparse.Namespace) -> _Choice:
    cases, contenders, studies = all_cases(), all_contenders(), all_studies()
    wanted = {name for name in args.only.split(",") if name}
    known = {name for case in cases for name in (case.name, case.group)}
    known |= {one.name for one in contenders} | {one.name for one in studies}
    if wanted - known:
        unknown = ", ".join(sorted(wanted - known))
        raise BenchError(f"no case, contender or study of that name: {unknown} (--list shows them)")
    if args.record is not None and not args.record.strip():
        raise BenchError("--record wants the reason: what the instructions were paid for")
    if args.rounds < 1 or args.minutes <= 0 or (args.records is not None and args.records < 1):
        raise BenchError("rounds, records and minutes must be at least 1")
    chosen_cases = [case for case in cases if wanted & {case.name, case.group}]
    chosen_studies = [one for one in studies if one.name in wanted]
    chosen = [one for one in contenders if one.name in wanted] or contenders
    if not wanted:
        chosen_studies = [one for one in studies if args.list or not one.only_by_name]
    if not chosen_cases and not (chosen_studies and wanted):
        chosen_cases = cases
    skipped = {one.name: why for one in chosen if (why := one.missing())}
    skipped |= {one.name: why for one in chosen_studies if (why := one.missing())}
    plan = Plan(chosen_cases, [one for one in chosen if one.name not in skipped], args.rounds, args.records)
    present = [one for one in chosen_studies if one.name not in skipped]
    if not plan.groups() and not present:
        raise BenchError(
            "there is nothing to measure" + "".join(f"; {n}: {why}" for n, why in skipped.items())
        )
    return _Choice(plan, present, skipped)


def _show(choice: _Choice) -> None:
    for case in choice.plan.cases:
        print(f"{case.name:<18} {case.group:<12} {case.title}")
    for contender in choice.plan.contenders:
        print(f"{contender.name:<18} {'contender':<12} {contender.title}")
    for study in choice.studies:
        print(f"{study.name:<18} {'study':<12} {study.title}")


if __name__ == "__main__":
    sys.exit(main())
