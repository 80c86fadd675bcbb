# SPDX-License-Identifier: Apache-2.0
"""Ends a cluster's brokers when the program that started them is gone, however it went.

Runs as a script, ``_watchdog.py [FOLDER]``, without the package around it, as the leader of the process group
that the brokers are started into. It holds the read end of a pipe whose write end only the starter has.
``done`` on the pipe: end, and let the brokers run. The pipe closes without it, or the parent changes: the starter died;
end the group and delete FOLDER, the data of a throw-away cluster.

Why a group and not a list of process ids: there is no moment in which a broker runs and the watchdog does not
know of it, and an id cannot be recycled while its group exists.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

_GRACE_SECONDS = 5.0
# The pipe alone is not enough: a child that the starter forked holds the write end open too.
_PARENT_CHECK_SECONDS = 0.5


def wait_for_the_end(pipe: int, parent: int) -> bool:
    """Wait until the starter is done or dead. Return True when it said that it is done."""
    heard = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([pipe], [], [], _PARENT_CHECK_SECONDS)
        if not readable:
            continue
        chunk = os.read(pipe, 64)
        if not chunk:
            break
        heard += chunk
        if b"done" in heard:
            return True
    return False


def end_group(group: int) -> None:
    """End every process of ``group``: asked first, so that data is closed in order, then killed."""
    deadline = time.monotonic() + _GRACE_SECONDS
    try:
        os.killpg(group, signal.SIGTERM)
        # A paused process takes the signal only once it runs again.
        os.killpg(group, signal.SIGCONT)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def main(argv: list[str]) -> int:
    """Watch the starter until it ends; see the module's text."""
    # Ctrl-C and a closed terminal are for the starter to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if wait_for_the_end(sys.stdin.fileno(), os.getppid()):
        return 0
    group = os.getpgrp()
    # The signals reach this process too. A child that has left the group sees the work through.
    if os.fork() == 0:
        os.setpgid(0, 0)
        end_group(group)
        for folder in argv:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
