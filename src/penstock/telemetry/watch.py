# SPDX-License-Identifier: Apache-2.0
"""Waits for a broker that takes telemetry, and costs nothing once it is known that there is none.

The sender asks one object before each wait whether there is news: `UnseenFailures`. A TelemetryWatch stands in front of
it as long as it has something to do: until a broker has told its versions, and afterwards if one of them takes
telemetry. Otherwise it steps aside, and looks again only when there is a new connection.
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


class TelemetryWatch:
    """The telemetry of one producer. I/O thread, but for `instance_id` and `stop`.

    Args:
        sender: whose `unseen` it stands in front of.
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
        self._behind = sender.unseen
        self._client = client
        self._nodes = nodes
        self._make_pusher = make_pusher
        self._pusher: TelemetryPusher | None = None
        self._connections = -1  # how many had been made when it stepped aside
        self._lock: Any = new_lock()  # guards the three below
        self._instance_id: uuid.UUID | None = None
        self._waiting: list[Ticket[uuid.UUID]] = []
        self._ended = False  # nobody completes a Ticket any more
        sender.unseen = self

    # ------------------------------------------------------------------------------------------ any thread

    def instance_id(self) -> Ticket[uuid.UUID]:
        """The id that a broker gives this client."""
        ticket: Ticket[uuid.UUID] = Ticket("the client instance id")
        with self._lock:
            known, ended = self._instance_id, self._ended
            if known is None and not ended:
                # Who has given up is forgotten: no connection is made for him.
                self._waiting = [one for one in self._waiting if not one.done] + [ticket]
                self._sender.unseen = self  # together, or the I/O thread steps aside in between
        if known is not None:
            ticket.complete(known)
        elif ended:
            ticket.fail(_closed())
        else:
            self._client.wakeup()
        return ticket

    def stop(self) -> None:
        """Nobody asks for an id any more: who waits for it has failed, and who comes later fails at once.

        At the end of the I/O thread, whoever stands in front then. Twice is harmless.
        """
        with self._lock:
            self._ended = True
        self._fail_waiting(_closed())

    # ------------------------------------------------------------------------------------------ asked by the sender

    @property
    def has_news(self) -> bool:
        """Always: it is asked in each turn, as long as it stands in front."""
        return True

    def maybe_tell(self, now: float) -> float:
        """Do what is due, of the telemetry and of what is behind; seconds until there will be more."""
        delay: float = self._behind.maybe_tell(now) if self._behind.has_news else FOREVER
        try:
            return min(delay, self._look(now))
        except Exception as error:  # noqa: BLE001 - it is logged
            text = "telemetry failed, and is switched off"
            tell_error(log, Event.TELEMETRY_FAILED, text, error=error)
            self._step_aside("telemetry failed")
            return delay

    def before_end(self, forced: Callable[[], bool]) -> None:
        """The producer closes, and the connections are still there."""
        if self._pusher is not None:
            try:
                self._pusher.push_last(forced)
            except Exception as error:  # noqa: BLE001 - it is logged
                text = "the last telemetry could not be pushed"
                tell_error(log, Event.TELEMETRY_FAILED, text, error=error)

    def end(self) -> None:
        """The connections are closed."""
        try:
            self.stop()
        finally:
            self._behind.end()

    def look_again(self, connections: int) -> None:
        """Once a second, with the number of connections made so far: new ones may be to other brokers."""
        if self._sender.unseen is not self and connections != self._connections and self._pusher is None:
            self._connections = connections
            self._sender.unseen = self

    # ------------------------------------------------------------------------------------------ inside

    def _look(self, now: float) -> float:
        if self._pusher is None:
            told = [versions for node in self._nodes() if (versions := self._client.api_versions(node.id))]
            if any(versions.range(_PUSH_TELEMETRY) is not None for versions in told):
                self._pusher = self._make_pusher(self._on_instance_id)
            elif told:
                self._connections = self._client.metrics.connections_created
                self._step_aside("the brokers take no telemetry")
                return FOREVER
            else:
                return self._connect(now) if self._is_awaited() else FOREVER
        delay = self._pusher.advance(now)
        if self._pusher.stopped:
            self._step_aside(self._pusher.stopped)
        elif delay == FOREVER and self._is_awaited():
            delay = self._connect(now)
        return delay

    def _is_awaited(self) -> bool:
        return any(not ticket.done for ticket in self._waiting)

    def _connect(self, now: float) -> float:
        """Somebody waits for the id, and nobody else may need a connection."""
        node = self._client.least_loaded_node(now)
        if node is None:
            delay: float = self._client.shortest_delay(now)
            return delay
        self._client.ready(node, now)
        delay = self._client.connection_delay(node, now)
        return delay if delay > 0 else FOREVER

    def _step_aside(self, why: str) -> None:
        self._fail_waiting(UnsupportedVersionError(f"there is no client instance id: {why}"))

    def _fail_waiting(self, error: KafkaError) -> None:
        """Stand in front no longer, and fail the Tickets of all who wait."""
        with self._lock:
            self._sender.unseen = self._behind
            waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.fail(error)

    def _on_instance_id(self, given: uuid.UUID) -> None:
        with self._lock:
            self._instance_id = given
            waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.complete(given)


def _closed() -> ProducerClosedError:
    return ProducerClosedError("the producer was closed before a broker gave a client instance id")
