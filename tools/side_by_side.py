# SPDX-License-Identifier: Apache-2.0
"""Run commands at the same time; show the first as it goes, and the others when they have ended.

Usage: python tools/side_by_side.py COMMAND COMMAND ...

For test suites that wait a lot (for brokers to die, for time-outs to pass) beside others that compute. Ends with the
exit code of the first command that failed, once all have ended: one failure does not hide another.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from typing import IO


def main(commands: list[str]) -> int:
    """Run them, and say how it went."""
    if not commands:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"==> side by side: {'; '.join(commands)}", flush=True)
    started = time.monotonic()
    running = [_Running(command, show=number == 0) for number, command in enumerate(commands)]
    try:
        codes = [one.finish(started) for one in running]
    except KeyboardInterrupt:
        # The terminal has interrupted them as well: let them clean up.
        for one in running:
            one.process.wait()
        return 130
    return next((code for code in codes if code), 0)


class _Running:
    """A command that has been started."""

    def __init__(self, command: str, *, show: bool) -> None:
        self.command = command
        self._output: IO[bytes] | None = None if show else tempfile.TemporaryFile()  # noqa: SIM115 - until finish()
        errors = None if show else subprocess.STDOUT
        self.process = subprocess.Popen(shlex.split(command), stdout=self._output, stderr=errors)

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
