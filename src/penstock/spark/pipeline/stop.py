# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C for a pipeline: a wish that the run looks at between two steps, not an exception in the middle of one.

PySpark's own handler raises KeyboardInterrupt wherever Python is, also inside a call to the JVM.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """While it is entered, signals are noted instead of handled.

    Outside of the main thread, where Python delivers no signals, it notes nothing.
    """

    def __init__(self, signals: tuple[signal.Signals, ...] = (signal.SIGINT,)) -> None:
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}
        self._event = threading.Event()
        self.received: signal.Signals | None = None
        self.count = 0  # the second one means: at once

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; whether to stop."""
        return self._event.wait(seconds)

    def request(self) -> None:
        """Ask for a stop without a signal."""
        self.count += 1
        self._event.set()

    @property
    def wanted(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received = signal.Signals(number)
        self.request()
