# SPDX-License-Identifier: Apache-2.0
"""Whether a thread is inside a lock can be asked while other threads make producers with transactions."""

from __future__ import annotations

import sys
import threading
import time

from penstock import _locks


def test_locks_may_be_made_while_a_thread_asks_whether_it_holds_one() -> None:
    kept = [_locks.new_nesting_lock() for _ in range(50)]
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            for _ in range(50):
                kept.append(_locks.new_nesting_lock())
            del kept[50:]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    maker = threading.Thread(target=make)
    maker.start()
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert not _locks.inside()
    finally:
        stop.set()
        maker.join()
        sys.setswitchinterval(interval)
