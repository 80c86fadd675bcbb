# SPDX-License-Identifier: Apache-2.0
"""`on_delivery` in the event loop that the record was sent from, instead of on the I/O thread."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

from penstock._events import ON_DELIVERY_RAISED, Event, tell
from penstock._loops import Loop, running_loop
from penstock.producer.owner import Owner
from penstock.producer.unseen import UnseenFailures
from penstock.types import OnDelivery, RecordMetadata

log = logging.getLogger("penstock.producer")


class LoopCallbacks:
    """Makes the callbacks of one producer run in the loops that send.

    Args:
        owner: the producer.
        unseen: told of failed records whose callback could not run.
    """

    def __init__(self, owner: Owner, unseen: UnseenFailures) -> None:
        self.owner = owner
        self.unseen = unseen

    def of(self, on_delivery: OnDelivery) -> LoopCallback:
        """What the I/O thread calls in place of a function of the user's.

        Raises:
            RuntimeError: no loop runs on this thread.
        """
        try:
            loop = running_loop()
        except RuntimeError:
            raise RuntimeError(
                "on_delivery is to run in an event loop, and none runs on this thread: send from a loop, or make the "
                'producer with on_delivery_in="io_thread"'
            ) from None
        return LoopCallback(self, on_delivery, loop)


class LoopCallback:
    """Passes the outcome of a record to a loop, where the user's function is called."""

    __slots__ = ("_callbacks", "_context", "_loop", "_on_delivery")

    def __init__(self, callbacks: LoopCallbacks, on_delivery: OnDelivery, loop: Loop) -> None:
        self._callbacks = callbacks
        self._on_delivery = on_delivery
        self._loop = loop
        self._context = contextvars.copy_context()  # of the task that sends

    @property
    def is_look(self) -> bool:
        """Whether the application learns of the outcome."""
        return not self._loop.has_ended()

    def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Called on the I/O thread, in the order of the records of a partition."""
        if not self._loop.has_ended():
            outcome = _Outcome(self._on_delivery, self._context, metadata, error, self._callbacks.unseen)
            self._callbacks.owner.post(self._loop.mailbox, outcome)


class _Outcome:
    """A message to the loop."""

    __slots__ = ("_context", "_error", "_metadata", "_on_delivery", "_unseen")

    def __init__(
        self,
        on_delivery: OnDelivery,
        context: contextvars.Context,
        metadata: RecordMetadata,
        error: Exception | None,
        unseen: UnseenFailures,
    ) -> None:
        self._on_delivery = on_delivery
        self._context = context
        self._metadata = metadata
        self._error = error
        self._unseen = unseen

    def deliver(self) -> None:
        try:
            given: Any = self._context.run(self._on_delivery, self._metadata, self._error)
            if asyncio.iscoroutine(given):
                given.close()
                self._tell(
                    Event.CALLBACK_NOT_AWAITED,
                    "on_delivery callback for %s gave a coroutine, which nobody awaits: it was not run",
                )
        except Exception as raised:  # noqa: BLE001 - it is logged
            self._tell(Event.CALLBACK_FAILED, ON_DELIVERY_RAISED, raised)

    def _tell(self, event: Event, text: str, raised: Exception | None = None) -> None:
        place = self._metadata.topic_partition
        tell(
            log, logging.ERROR, event, text, place,
            of=self._unseen.events, exc_info=raised, each=place.topic, place=place, error=raised,
        )  # fmt: skip

    def drop(self) -> None:
        # The application was to be told, and its loop ended first.
        if self._error is not None:
            self._unseen.note(self._metadata.topic, self._error, 1)
