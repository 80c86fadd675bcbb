# SPDX-License-Identifier: Apache-2.0
"""The Delivery of a MockProducer: the same methods as the real one, with no batch and no I/O thread behind it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

from penstock._arguments import check_callable, check_timeout
from penstock._latch import Latch
from penstock._locks import forbid_reentry
from penstock.errors import KafkaError, KafkaTimeoutError
from penstock.types import RecordMetadata, TopicPartition

log = logging.getLogger("penstock.testing")

OnDelivery = Callable[[RecordMetadata, Exception | None], object]


class MockDelivery:
    """The future of one record that a MockProducer accepted.

    As with the real one the outcome is set first, then `on_delivery` runs, then `done` turns true and those who wait
    are released.
    """

    __slots__ = ("_done", "_error", "_followers", "_metadata", "_settled_by", "_topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        # Set once, by the thread that settles.
        self._metadata = unknown_metadata(topic_partition)
        self._error: KafkaError | None = None
        self._settled_by: int | None = None
        self._done = Latch()
        self._followers: list[tuple[Callable[[MockDelivery], object]]] = []

    def done(self) -> bool:
        """Whether the outcome is known and its callback has run."""
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; where the record is.

        Raises:
            KafkaTimeoutError: the time is up, and nobody has completed the record.
            KafkaError: the record was not acknowledged, and why.
        """
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._metadata

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the outcome; the error, or None when the record was acknowledged.

        Raises:
            KafkaTimeoutError: the time is up, and nobody has completed the record.
        """
        self._wait(timeout)
        return self._error

    def add_done_callback(self, fn: Callable[[MockDelivery], object]) -> None:
        """Call `fn(delivery)` when it is done: on the thread that completes it, or at once when it is done already."""
        check_callable(fn, "fn")
        # No lock: whichever comes second, this or `settle`, sees the other, and each entry is taken once.
        entry = (fn,)
        self._followers.append(entry)
        if self._done.is_set():
            try:
                self._followers.remove(entry)
            except ValueError:
                return  # `settle` has it
            self._call(fn)

    def _settle(
        self, metadata: RecordMetadata, error: KafkaError | None, on_delivery: OnDelivery | None
    ) -> None:
        """Set the outcome and tell everybody. For the MockProducer, once."""
        self._metadata, self._error = metadata, error
        self._settled_by = threading.get_ident()
        if on_delivery is not None:
            try:
                on_delivery(metadata, error)
            except Exception:
                log.exception("on_delivery callback for %s raised", self._topic_partition)
        self._done.set()
        while self._followers:
            try:
                (follower,) = self._followers.pop(0)
            except IndexError:
                return
            self._call(follower)

    def _wait(self, timeout: float | None) -> None:
        check_timeout(timeout)
        # Inside its own callback a delivery has an outcome and is not done: there it must not wait for itself.
        if self._settled_by == threading.get_ident() or self._done.is_set():
            return
        forbid_reentry("result()")
        if self._done.wait(timeout):
            return
        raise KafkaTimeoutError(
            f"no outcome for a record of {self._topic_partition} within {timeout} s: complete it with complete_next(), "
            "error_next() or flush()"
        )

    def _call(self, follower: Callable[[MockDelivery], object]) -> None:
        try:
            follower(self)
        except Exception:
            log.exception("a done callback of a delivery raised")

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        # Only who awaits has asyncio loaded already.
        import asyncio

        loop = asyncio.get_running_loop()
        released: asyncio.Future[None] = loop.create_future()

        def release() -> None:
            if not released.done():
                released.set_result(None)

        self.add_done_callback(lambda _: loop.call_soon_threadsafe(release))
        yield from released
        return self.result(0)

    def __repr__(self) -> str:
        if not self.done():
            return f"<MockDelivery {self._topic_partition} pending>"
        return (
            f"<MockDelivery {self._topic_partition} {self._error!r}>"
            if self._error
            else f"<MockDelivery {self._metadata}>"
        )


def unknown_metadata(topic_partition: TopicPartition) -> RecordMetadata:
    """What callbacks of a failed record get: its partition, and -1 for all the rest."""
    return RecordMetadata(topic_partition.topic, topic_partition.partition, -1, -1, -1, -1)
