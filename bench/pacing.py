# SPDX-License-Identifier: Apache-2.0
"""Sending at a fixed rate, and how long each record takes.

Everybody paces itself by sleeping until the next record is due. Nobody spins: a client's own threads, and the broker on
the same machine, need the processor. Who is late sends the records that are due at once, and then sleeps again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.worker import Task, expect


class Latencies:
    """Gathers latencies of records that are sent in order; callbacks may come in any order, from any thread."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._acknowledged = 0  # by the one thread that calls back
        self._failed = 0
        self.seconds: list[float] = []

    def starts(self) -> Iterator[tuple[int, float]]:
        """Number and start time of every record, each when it is due; the warm-up's have negative numbers."""
        began = time.perf_counter()
        for number in range(-self._task.warm_up, self._task.records):
            wait = self.due(began, number) - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            yield number, time.perf_counter()

    def due(self, began: float, number: int) -> float:
        """When a record is due."""
        return began + (number + self._task.warm_up) / self._task.rate

    def ended(self, number: int, started: float, error: object = None) -> None:
        """A record was acknowledged, or was not."""
        now = time.perf_counter()
        if error is not None:
            self._failed += 1
            return
        self._acknowledged += 1
        if number >= 0:
            self.seconds.append(now - started)

    def send_all(self, send: Callable[[bytes, int, float], object]) -> float:
        """Call send(value, number, started) for every record; when the first that counts was sent."""
        values, first = self._task.values, 0.0
        for number, started in self.starts():
            if number == 0:
                first = started
            send(values[number % len(values)], number, started)
        return first

    def check(self) -> None:
        """See that every record was acknowledged.

        Raises:
            BenchError: one was not.
        """
        expect(self._acknowledged, self._task.records + self._task.warm_up, self._failed)
