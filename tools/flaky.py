# SPDX-License-Identifier: Apache-2.0
"""Runs each folder of tests again and again, in random order and beside busy processes, and counts what failed.

    .venv/bin/python tools/flaky.py                                   # an hour
    .venv/bin/python tools/flaky.py --runs 200000                     # until so many tests have run, over all calls
    .venv/bin/python tools/flaky.py --rounds 50 --folders tests/aio   # until this folder has had 50 rounds

Only tests that need neither a broker nor Spark are run. The folder that has had the least time is next, so that the
spread is even whenever this ends. Every fourth round runs the Python sources; what follows `--` are options of pytest
that leave out tests such a round need not repeat.

build/flaky keeps the counts, and the output of every run that failed. A later call continues. The counts of a folder
start anew when its tests, the helpers that all tests share, or its sources change. Ends with 1 when a test has failed
that still counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import test_results

ROOT = Path(__file__).resolve().parent.parent
_MARKS = ("-m", "not broker and not spark")
_LOOSE = "tests"  # the files directly in it are a folder like the others
_MADE = {".so", ".pyd", ".c", ".pyc"}
_PURE_EVERY = 4
_FOREVER = 1e6  # minutes
_PATIENCE = 30.0  # seconds that a run has to clean up when it is interrupted
# Ends with this process, in whatever way that ends: then its standard input does.
_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True: pass
"""


@dataclass
class Failure:
    """One test that failed in one run."""

    test: str
    seed: int
    pure: bool
    log: str


@dataclass
class Folder:
    """What is known of a folder since its tests and sources have changed."""

    fingerprint: str = ""
    rounds: int = 0
    tests: int = 0
    seconds: float = 0.0
    without_tests: list[bool] = field(default_factory=list)  # for which `pure` it has no test to run
    failures: list[Failure] = field(default_factory=list)


class State:
    """The counts of all folders, in a file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = root / "build" / "flaky"
        self._path = self.place / "state.json"
        self.folders: dict[str, Folder] = {}
        if self._path.exists():
            for name, known in json.loads(self._path.read_text(encoding="utf-8")).items():
                failures = [Failure(**one) for one in known.pop("failures")]
                self.folders[name] = Folder(**known, failures=failures)

    def refresh(self, name: str) -> Folder:
        """The counts of a folder; new ones when it has changed since."""
        current, known = fingerprint(self.root, name), self.folders.get(name)
        if known is None or known.fingerprint != current:
            if known is not None:
                print(f"==> {name} has changed: its {known.tests} tests in {known.rounds} rounds are dropped")
            known = self.folders[name] = Folder(current)
        return known

    def save(self) -> None:
        """Write it, all or nothing."""
        self.place.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        text = json.dumps({name: asdict(folder) for name, folder in self.folders.items()}, indent=1)
        written.write_text(text, encoding="utf-8")
        written.replace(self._path)


def folder_names(root: Path) -> list[str]:
    """The folders directly below tests that have tests, and the files beside them."""
    folders = {path.relative_to(root).parts[1] for path in (root / "tests").glob("*/**/test_*.py")}
    return [_LOOSE, *(f"tests/{name}" for name in sorted(folders))]


def paths_of(name: str) -> str:
    """What is passed to pytest; the shell expands it."""
    return f"{name}/test_*.py" if name == _LOOSE else name


def paths(root: Path, name: str, left_out: list[str]) -> list[str]:
    """The same, expanded. What is named is run by pytest, even if an option says to ignore it."""
    found = (str(path.relative_to(root)) for path in root.glob(paths_of(name)))
    return sorted(path for path in found if path not in left_out)


def fingerprint(root: Path, name: str) -> str:
    """A digest of the tests of a folder, of what all tests share, and of the sources that it mirrors, or all."""
    tests, sources = root / "tests", root / "src" / "penstock" / Path(name).name
    shared = [path for path in tests.glob("*.py") if not path.match("test_*")]
    own = tests.glob("test_*.py") if name == _LOOSE else (root / name).rglob("*")
    # A folder whose name no package has mirrors none.
    mirrored = (sources if sources.is_dir() else root / "src").rglob("*")
    digest = hashlib.sha256()
    for path in sorted({*shared, *own, *mirrored}):
        if path.is_file() and path.suffix not in _MADE:
            digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Round:
    """One run of the tests of a folder. The run is a session of its own: Ctrl-C reaches this process alone."""

    def __init__(self, state: State, name: str, *, pure: bool, left_out: list[str]) -> None:
        self.name, self.pure = name, pure
        self.seed = random.getrandbits(32)
        self._state, self._folder = state, state.folders[name]
        stem = f"{Path(name).name}-{self.seed}"
        self._log = state.place / f"{stem}.log"
        self._results = state.place / f"{stem}.jsonl"
        self._arguments = [*_MARKS, *left_out, *paths(state.root, name, left_out)]

    def run(self, deadline: float) -> None:
        """Run it, at most until the deadline, and add what it has done to the counts."""
        self._state.place.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PENSTOCK_EXPECT": "pure" if self.pure else "compiled",
            "PENSTOCK_PURE": "1" if self.pure else "",
            "PENSTOCK_TEST_RESULTS": str(self._state.place),
            "PENSTOCK_TEST_RUN": self._results.stem,
        }
        command = [sys.executable, "-m", "pytest", f"--randomly-seed={self.seed}", "-p", "no:cacheprovider"]
        started = time.monotonic()
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *self._arguments],
                cwd=self._state.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            interrupted = True
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(deadline - started)
                    interrupted = False
            finally:
                self._count(time.monotonic() - started, interrupted=interrupted)
                _end(process)
                self._tidy()

    def _count(self, seconds: float, *, interrupted: bool) -> None:
        """Add what it has done; of one that is interrupted only what it did before."""
        run, folder = test_results.Run(self.name), self._folder
        if self._results.exists():
            run = test_results.read(self._results)
        failed = set(run.failed)
        if run.exit_code == test_results.NO_TESTS:
            folder.without_tests.append(self.pure)
        elif not interrupted:
            folder.rounds += 1
            if run.trouble:
                failed.add(run.running or self.name)
        log = str(self._log.relative_to(self._state.root))
        folder.failures += [Failure(test, self.seed, self.pure, log) for test in sorted(failed)]
        folder.tests += run.tests
        folder.seconds += seconds
        self._state.save()
        total = sum(one.tests for one in self._state.folders.values())
        form = ", pure" if self.pure else ""
        print(
            f"{self.name}{form}, seed {self.seed}: {len(run.passed)} passed, {len(failed)} failed, "
            f"{seconds:.0f} s{', interrupted' if interrupted else ''}; {total} tests in all",
            flush=True,
        )
        for test in sorted(failed):
            print(f"    failed: {test}; output in {log}", flush=True)
        if run.implementation is None and not interrupted:
            raise SystemExit(f"pytest did not start; its output is in {log}")

    def _tidy(self) -> None:
        self._results.unlink(missing_ok=True)
        if not any(failure.seed == self.seed for failure in self._folder.failures):
            self._log.unlink(missing_ok=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a run that has not ended, so that its tests clean up, and kill it if it does not end."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_all(state: State, names: list[str], options: argparse.Namespace) -> None:
    """Run one folder after another until enough has been run."""
    deadline = time.monotonic() + 60 * (options.minutes or _FOREVER)
    for name in names:
        state.refresh(name)
    with ExitStack() as busy:
        for _ in range(os.cpu_count() or 1):
            command = [sys.executable, "-c", _BUSY]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            # Not as a context: after Ctrl-C that waits for a quarter of a second only.
            busy.callback(process.wait)
            if process.stdin is not None:
                busy.callback(process.stdin.close)  # which ends it
        while time.monotonic() < deadline:
            counts = {name: state.folders[name] for name in names}
            if options.runs and sum(folder.tests for folder in counts.values()) >= options.runs:
                return
            left = [
                name
                for name, folder in counts.items()
                if False not in folder.without_tests
                and not (options.rounds and folder.rounds >= options.rounds)
            ]
            if not left:
                return
            name = min(left, key=lambda name: counts[name].seconds)
            folder = state.refresh(name)
            pure = folder.rounds % _PURE_EVERY == _PURE_EVERY - 1 and True not in folder.without_tests
            pure = pure and bool(paths(state.root, name, options.left_out))
            Round(state, name, pure=pure, left_out=options.left_out if pure else []).run(deadline)


def report(state: State, names: list[str]) -> bool:
    """Print the counts, and every failure with what repeats it; whether there is one."""
    counts = {name: state.refresh(name) for name in names}
    print(f"\n{'folder':<20} {'rounds':>7} {'tests':>8} {'failed':>7} {'minutes':>8}")
    for name, folder in counts.items():
        failed, minutes = len(folder.failures), folder.seconds / 60
        print(f"{name:<20} {folder.rounds:>7} {folder.tests:>8} {failed:>7} {minutes:>8.1f}")
    for name, folder in counts.items():
        for failure in folder.failures:
            run = test_results.Run(name, failure.seed, "pure" if failure.pure else "compiled")
            print(f"\nfailed: {failure.test}, seed {failure.seed}; output in {failure.log}")
            print(f"    alone:  {run.command(failure.test)}")
            print(f"    in the same order:  {run.command(*_MARKS)} {paths_of(name)}")
    failed = sum(len(folder.failures) for folder in counts.values())
    print(f"\n==> {failed} of {sum(folder.tests for folder in counts.values())} tests failed")
    return failed > 0


def main(arguments: list[str]) -> int:
    """Run what was asked for; 1 when a test has failed."""
    parser = argparse.ArgumentParser(description="Run the tests many times beside busy processes.")
    parser.add_argument("--rounds", type=int, help="until each folder has had so many, over all calls")
    parser.add_argument("--runs", type=int, help="until so many tests have run, over all calls")
    parser.add_argument(
        "--minutes", type=float, help="at most so long (default: 60 without --rounds or --runs)"
    )
    parser.add_argument(
        "--folders", nargs="+", metavar="FOLDER", help="some, as tests/producer (default: all)"
    )
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:cut])
    options.left_out = arguments[cut + 1 :]
    if not (options.rounds or options.runs or options.minutes):
        options.minutes = 60
    there = folder_names(ROOT)
    names = [name.rstrip("/") for name in options.folders or there]
    if unknown := sorted(set(names) - set(there)):
        parser.error(f"no tests in {', '.join(unknown)}; there are: {shlex.join(there)}")
    state = State(ROOT)
    try:
        run_all(state, names, options)
    except KeyboardInterrupt:
        print("==> interrupted; the next call goes on from here")
        report(state, names)
        return 130
    return 1 if report(state, names) else 0


if __name__ == "__main__":
    # A shell that starts this in the background lets it ignore Ctrl-C; to be ended is to be interrupted.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
