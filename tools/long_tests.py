# SPDX-License-Identifier: Apache-2.0
"""Runs every test target that is too long, or needs too much, for `make test`, and prints one table of results.

    python tools/long_tests.py                    # all of them, one after another: about two hours
    python tools/long_tests.py fuzz chaos         # only these
    python tools/long_tests.py --record           # write the results into docs/testing.md, too
    python tools/long_tests.py --record chaos     # the same for one: the rows of the others stay as they are

A target that fails does not stop the others. The output of each goes to a file below build/long-tests, whose last lines
are shown when it fails. Ends with 1 when one of them failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "testing.md"
OUTPUT = ROOT / "build" / "long-tests"
BEGIN, END = "<!-- long tests: begin -->", "<!-- long tests: end -->"
_TAIL = 25  # lines of output that are shown of a target that failed


@dataclass(frozen=True)
class Target:
    """What `make` is asked for, under a name of its own."""

    name: str
    arguments: tuple[str, ...]
    what: str


TARGETS = (
    Target("simulate", ("simulate", "SEEDS=10000"), "the producer in virtual time"),
    Target("simulate-sink", ("simulate", "SINK=1", "SEEDS=10000"), "the exactly-once sink in virtual time"),
    Target(
        "simulate-guarded",
        ("simulate", "GUARDED=1", "SEEDS=10000"),
        "the producer in virtual time, with brokers that authenticate it",
    ),
    Target(
        "simulate-old",
        ("simulate", "OLD=1", "SEEDS=3000"),
        "the producer in virtual time, with old brokers that are upgraded and downgraded",
    ),
    Target(
        "simulate-awaited",
        ("simulate", "AWAITED=1", "SEEDS=10000"),
        "the producer in virtual time, used by tasks in event loops",
    ),
    Target(
        "test-flaky",
        ("test-flaky", "MINUTES=30"),
        "tests without Kafka again and again, beside busy processes",
    ),
    Target("instructions", ("bench", "ONLY=instructions"), "instructions per record against their limit"),
    Target("docs", ("docs",), "the documentation site, where a warning is an error"),
    Target("fuzz", ("fuzz",), "answers of brokers and Arrow data that lie"),
    Target("chaos", ("chaos", "MINUTES=10"), "three real brokers that are broken"),
    Target("test-security", ("test-security",), "every way to connect to a secured Kafka"),
    Target("test-kerberos", ("test-kerberos",), "GSSAPI with a real KDC and a real Kafka"),
    Target("test-pythons", ("test-pythons",), "the core of the tests on every Python that is supported"),
    Target("wheels", ("wheels",), "the wheels of a release, each tried in a clean environment"),
    Target("test-install", ("test-install",), "the wheel with each extra, start and tutorial by the letter"),
    Target(
        "test-watching",
        ("test-watching",),
        "a real Prometheus, the dashboard's queries, spans of two processes, the live page in a browser",
    ),
    Target("test-brokers", ("test-brokers",), "every release of Kafka from 0.9 to the newest"),
    Target(
        "test-examples", ("test-examples",), "services on FastAPI, Django and Celery, one of them under load"
    ),
    Target(
        "chaos-security",
        ("chaos", "MINUTES=10", "SECURITY=SASL_SSL"),
        "the same by TLS and SCRAM, with sessions of two seconds",
    ),
    Target("test-spark-faults", ("test-spark-faults",), "Spark jobs that are killed and frozen"),
    Target("test-spark-cluster", ("test-spark-cluster",), "the package on the workers of a Spark cluster"),
    Target("test-spark-matrix", ("test-spark-matrix",), "the sink on older versions of Spark"),
)


@dataclass(frozen=True)
class Outcome:
    """How a target ended."""

    target: Target
    exit_code: int
    seconds: float

    @property
    def word(self) -> str:
        """The outcome, in the words of the table."""
        return "passed" if self.exit_code == 0 else f"FAILED ({self.exit_code})"


def run(target: Target) -> Outcome:
    """Run one target; its output goes to a file."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / f"{target.name}.log"
    print(
        f"==> make {' '.join(target.arguments)}: {target.what}; output in {path.relative_to(ROOT)}",
        flush=True,
    )
    started = time.monotonic()
    with path.open("wb") as output:
        # A process group of its own, so that Ctrl-C here ends all that it has started.
        process = subprocess.Popen(
            ["make", "--no-print-directory", *target.arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
    outcome = Outcome(target, code, time.monotonic() - started)
    print(f"    {outcome.word} after {outcome.seconds:.0f} s", flush=True)
    if code:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(f"    | {line}" for line in lines[-_TAIL:]), flush=True)
    return outcome


_HEAD = ("| command | what it runs | result | minutes | commit | day |", "|---|---|---|---|---|---|")


def row(outcome: Outcome, commit: str, day: str) -> str:
    """A result as a line of a table of Markdown, which is readable on a terminal, too."""
    minutes = f"{outcome.seconds / 60:.1f}"
    return (
        f"{_command(outcome.target)} {outcome.target.what} | {outcome.word} | {minutes} | {commit} | {day} |"
    )


def _command(target: Target) -> str:
    return f"| `make {' '.join(target.arguments)}` |"


def table(rows: list[str]) -> str:
    """The rows below their head."""
    return "\n".join((*_HEAD, *rows))


def recorded(page: str, rows: list[str]) -> str:
    """The page with these rows in place of those of the same targets; what has never run has a row that says so.

    Raises:
        ValueError: the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r} around the table")
    known = [*rows, *old.splitlines()]
    chosen_rows = [
        next(
            (line for line in known if line.startswith(_command(target))),
            f"{_command(target)} {target.what} | not run yet | | | |",
        )
        for target in TARGETS
    ]
    return f"{before}{BEGIN}\n{table(chosen_rows)}\n{END}{after}"


def chosen(names: list[str]) -> list[Target]:
    """The targets of these names; all of them when none is named.

    Raises:
        SystemExit: there is no target of such a name.
    """
    known = {target.name: target for target in TARGETS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no such target: {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(TARGETS)


def _commit() -> str:
    """The commit that is checked out; "unknown" outside of a clone."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


def main(arguments: list[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Run the long tests and print one table.")
    parser.add_argument(
        "names", nargs="*", metavar="TARGET", help=", ".join(target.name for target in TARGETS)
    )
    parser.add_argument(
        "--record", action="store_true", help="write the results into docs/testing.md; other rows stay"
    )
    options = parser.parse_args(arguments)
    targets, commit, day = chosen(options.names), _commit(), datetime.now(UTC).date().isoformat()
    try:
        outcomes = [run(target) for target in targets]
    except KeyboardInterrupt:
        print("==> interrupted", file=sys.stderr)
        return 130
    rows = [row(outcome, commit, day) for outcome in outcomes]
    print(f"\n{table(rows)}")
    if options.record:
        PAGE.write_text(recorded(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
        print(f"written to {PAGE.relative_to(ROOT)}")
    return 1 if any(one.exit_code for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
