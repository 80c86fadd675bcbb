# SPDX-License-Identifier: Apache-2.0
"""Waits for a broker that takes telemetry, and costs nothing once it is known that there is none.

A TelemetryWatch gets turns of the I/O thread while it is the sender's `telemetry`: until the versions of a broker are
known, and afterwards if one of the brokers takes telemetry. Otherwise it needs no turns until there is a new
connection, or a caller waits for the instance id. An unexpected error switches it off for good.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock._events import Event, tell_error
from penstock._locks import new_lock
from penstock._ticket import Ticket
from penstock._time import FOREVER
from penstock.errors import KafkaError, ProducerClosedError, UnsupportedVersionError

if TYPE_CHECKING:
    from penstock.telemetry.pushing import TelemetryPusher

log = logging.getLogger("penstock.telemetry")

_PUSH_TELEMETRY = 72  # the messages are loaded with what sends them
_FAILED = "telemetry failed"


class TelemetryWatch:
    """The telemetry of one producer. I/O thread, but for `instance_id`.

    Args:
        sender: gives it turns while it is the sender's `telemetry`.
        client: the network.
        nodes: gives the brokers that are known.
        make_pusher: makes what pushes; called with what is to be told the instance id.
    """

    def __init__(
        self,
        sender: Any,
        client: Any,
        nodes: Callable[[], Any],
        make_pusher: Callable[[Callable[[uuid.UUID], object]], TelemetryPusher],
    ) -> None:
        self._sender = sender
        self._client = client
        self._nodes = nodes
        self._make_pusher = make_pusher
        self._pusher: TelemetryPusher | None = None
        self._connections = -1  # how many had been made when it gave up its turns
        self._lock: Any = new_lock()  # guards the four below
        self._instance_id: uuid.UUID | None = None
        self._waiting: list[Ticket[uuid.UUID]] = []
        self._ended = False  # no Ticket will be completed any more
        self._has_failed = False  # an unexpected error has switched it off
        sender.telemetry = self

    # ------------------------------------------------------------------------------------------ any thread

    def instance_id(self) -> Ticket[uuid.UUID]:
        """The id that a broker gives this client."""
        ticket: Ticket[uuid.UUID] = Ticket("the client instance id")
        with self._lock:
            known, ended, has_failed = self._instance_id, self._ended, self._has_failed
            if known is None and not ended and not has_failed:
                # Callers that have given up are forgotten: no connection is made for them.
                self._waiting = [one for one in self._waiting if not one.done] + [ticket]
                # Under the lock, or the I/O thread may give up the turns in between.
                self._sender.telemetry = self
        if known is not None:
            ticket.complete(known)
        elif ended:
            ticket.fail(_closed())
        elif has_failed:
            ticket.fail(_no_id(_FAILED))
        else:
            self._client.wakeup()
        return ticket

    def stop(self) -> None:
        """Fail all callers that wait for the id, now and later. Called when the I/O thread ends; twice is harmless."""
        with self._lock:
            self._ended = True
        self._fail_waiting(_closed())

    # ------------------------------------------------------------------------------------------ I/O thread

    def advance(self, now: float) -> float:
        """Do what is due; seconds until more will be. Called in each turn, while it is the sender's `telemetry`."""
        try:
            return self._look(now)
        except Exception as error:  # noqa: BLE001 - it is logged
            text = "telemetry failed, and is switched off"
            tell_error(log, Event.TELEMETRY_FAILED, text, error=error)
            with self._lock:
                self._has_failed = True
            self._give_up_turns(_FAILED)
            return FOREVER

    def push_last(self, forced: Callable[[], bool]) -> None:
        """Push once more before the producer ends; the connections are still there."""
        if self._pusher is None or self._sender.telemetry is not self:
            return
        try:
            self._pusher.push_last(forced)
        except Exception as error:  # noqa: BLE001 - it is logged
            text = "the last telemetry could not be pushed"
            tell_error(log, Event.TELEMETRY_FAILED, text, error=error)

    def look_again(self, connections: int) -> None:
        """Called once a second with the number of connections made so far: new ones may be to other brokers."""
        if self._sender.telemetry is self or self._pusher is not None or self._has_failed:
            return
        if connections != self._connections:
            self._sender.telemetry = self

    # ------------------------------------------------------------------------------------------ inside

    def _look(self, now: float) -> float:
        if self._pusher is None:
            told = [versions for node in self._nodes() if (versions := self._client.api_versions(node.id))]
            if any(versions.range(_PUSH_TELEMETRY) is not None for versions in told):
                self._pusher = self._make_pusher(self._on_instance_id)
            elif told:
                self._connections = self._client.metrics.connections_created
                self._give_up_turns("the brokers take no telemetry")
                return FOREVER
            else:
                return self._connect(now) if self._is_awaited() else FOREVER
        delay = self._pusher.advance(now)
        if self._pusher.stopped:
            self._give_up_turns(self._pusher.stopped)
        elif delay == FOREVER and self._is_awaited():
            delay = self._connect(now)
        return delay

    def _is_awaited(self) -> bool:
        return any(not ticket.done for ticket in self._waiting)

    def _connect(self, now: float) -> float:
        """Connect to a broker, because a caller waits for the id; perhaps nothing else needs a connection."""
        node = self._client.least_loaded_node(now)
        if node is None:
            delay: float = self._client.shortest_delay(now)
            return delay
        self._client.ready(node, now)
        delay = self._client.connection_delay(node, now)
        return delay if delay > 0 else FOREVER

    def _give_up_turns(self, why: str) -> None:
        self._fail_waiting(_no_id(why))

    def _fail_waiting(self, error: KafkaError) -> None:
        """Give up the turns, and fail the Tickets of all callers that wait."""
        with self._lock:
            self._sender.telemetry = None
            waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.fail(error)

    def _on_instance_id(self, given: uuid.UUID) -> None:
        with self._lock:
            self._instance_id = given
            waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.complete(given)


def _no_id(why: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"there is no client instance id: {why}")


def _closed() -> ProducerClosedError:
    return ProducerClosedError("the producer was closed before a broker gave a client instance id")
