# SPDX-License-Identifier: Apache-2.0
"""Run commands at the same time; show the first as it goes, and the others when they have ended.

Usage: python tools/side_by_side.py [--tests] COMMAND COMMAND ...

For test suites that wait a lot (for brokers to die, for time-outs to pass) beside others that compute. Ends with the
exit code of the first command that failed, once all have ended: one failure does not hide another. With --tests, every
command runs tests: the last lines name those that failed, and how to repeat them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import test_results

RESULTS = Path("build/test-results")


def main(arguments: list[str]) -> int:
    """Run them, and say how it went."""
    tests = arguments[:1] == ["--tests"]
    commands = arguments[tests:]
    if not commands:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"==> side by side: {'; '.join(commands)}", flush=True)
    if tests:
        shutil.rmtree(RESULTS, ignore_errors=True)
    started = time.monotonic()
    running = [_Running(command, number) for number, command in enumerate(commands)]
    try:
        codes = [one.finish(started) for one in running]
    except KeyboardInterrupt:
        # The terminal has interrupted them as well: let them clean up.
        for one in running:
            one.process.wait()
        return 130
    code = next((code for code in codes if code), 0)
    if tests:
        lines, well = test_results.closing_lines(
            {one.command: (ended, one.runs()) for one, ended in zip(running, codes, strict=True)}
        )
        print("\n" + "\n".join(lines), flush=True)
        return code or (not well)
    return code


class _Running:
    """A command that has been started. The first is shown as it goes."""

    def __init__(self, command: str, number: int) -> None:
        self.command = command
        self._results = RESULTS / str(number)
        self._output: IO[bytes] | None = tempfile.TemporaryFile() if number else None  # noqa: SIM115 - until finish()
        self.process = subprocess.Popen(
            shlex.split(command),
            stdout=self._output,
            stderr=subprocess.STDOUT if number else None,
            env={**os.environ, "PENSTOCK_TEST_RESULTS": str(self._results.absolute())},
        )

    def finish(self, started: float) -> int:
        """Wait for the end, and show what has not been shown."""
        _, status, used = os.wait4(self.process.pid, 0)
        code = self.process.returncode = os.waitstatus_to_exitcode(status)
        if self._output is not None:
            print(f"\n==> meanwhile: {self.command}", flush=True)
            self._output.seek(0)
            sys.stdout.buffer.write(self._output.read())
            self._output.close()
        seconds = time.monotonic() - started
        computed = used.ru_utime + used.ru_stime
        outcome = "failed" if code else "passed"
        print(f"==> {outcome} after {seconds:.0f} s, {computed:.0f} s computed: {self.command}", flush=True)
        return code

    def runs(self) -> list[test_results.Run]:
        """What its runs of pytest have noted."""
        return [test_results.read(path) for path in sorted(self._results.glob("*.jsonl"))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
