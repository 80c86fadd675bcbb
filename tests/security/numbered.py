# SPDX-License-Identifier: Apache-2.0
"""A producer that goes on sending numbers while something is changed under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock import Producer
from penstock.errors import AuthenticationError

PATIENCE = 100.0  # seconds that a test that passes never needs
_REST = 0.002
# An eager one waits while so many have no outcome yet.
_MOST_OPEN = 400
_PER_TRANSACTION = 7


def wait_until(is_so: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that another thread does.

    Raises:
        TimeoutError: it has not happened.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)


class Numbered:
    """Sends 0, 1, 2 ... to partition 0 of a topic, from a thread of its own, until it is told to finish.

    A producer with transactions commits every few numbers.

    Args:
        topic: where to.
        eager: as fast as it can, in requests of a few records, so that as many are in flight as may be.
        options: of the producer.

    Attributes:
        acknowledged: how many have been, and are committed.
    """

    def __init__(self, topic: str, *, eager: bool = False, **options: Any) -> None:
        self.acknowledged = 0
        self._topic = topic
        self._eager = eager
        self._transactional = "transactional.id" in options
        self._options = {
            "linger.ms": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        } | options
        if eager:
            self._options |= {"batch.size": 200, "max.in.flight.requests.per.connection": 5}
        self._sent = 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="numbers", daemon=True)

    def __enter__(self) -> Self:
        self.producer = Producer(self._options)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self.producer.close(0)
        self._thread.join(PATIENCE)

    def wait_for_more(self, count: int = 20, seconds: float = PATIENCE) -> None:
        """Until so many more are acknowledged."""
        wanted = self.acknowledged + count
        wait_until(lambda: self._failure or self.acknowledged >= wanted, f"{count} more records", seconds)
        if self._failure is not None:
            raise self._failure

    def watch(self, seconds: float, until: int = 0) -> int:
        """Let it go on for a while, and until so many are in flight; the most requests that were seen at once."""
        most = 0
        began = time.monotonic()
        while self._failure is None:
            passed = time.monotonic() - began
            if passed > seconds and (most >= until or passed > PATIENCE):
                break
            most = max(most, int(self.metric("requests-in-flight")))
            time.sleep(0.02)
        return most

    def metric(self, name: str) -> float:
        """A number of the producer's."""
        return float(self.producer.metrics()["producer-metrics"][name])

    def finish(self) -> list[bytes]:
        """Stop sending, and wait until each record has its outcome; what a reader must find, in this order."""
        self._stop.set()
        self._thread.join(PATIENCE)
        self.producer.flush(PATIENCE)
        if self._failure is not None:
            raise self._failure
        assert self.acknowledged == self._sent
        return [b"%d" % number for number in range(self._sent)]

    def _run(self) -> None:
        try:
            if self._transactional:
                self.producer.init_transactions()
            while not self._stop.is_set():
                self._transact() if self._transactional else self._send(self._count)
                self._rest()
        except BaseException as error:
            self._failure = error

    def _rest(self) -> None:
        if not self._eager:
            time.sleep(_REST)
        while self._eager and self._sent - self.acknowledged >= _MOST_OPEN and not self._stop.is_set():
            time.sleep(_REST)

    def _transact(self) -> None:
        self.producer.begin_transaction()
        count = _PER_TRANSACTION * (20 if self._eager else 1)
        for _ in range(count):
            self._send(None)
        while True:
            try:
                self.producer.commit_transaction()
                break
            except AuthenticationError:  # told at once; the same call goes on
                if self._stop.wait(_REST):
                    raise
        self.acknowledged += count

    def _send(self, on_delivery: Callable[[Any, Any], None] | None) -> None:
        self.producer.send(self._topic, b"%d" % self._sent, partition=0, on_delivery=on_delivery)
        self._sent += 1

    def _count(self, _: object, error: BaseException | None) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._failure = error
