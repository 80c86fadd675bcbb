# SPDX-License-Identifier: Apache-2.0
"""Runs the handshakes of all connections, step by step. A step that may block runs on another thread ("aside").

Rules:
1. On a new connection ApiVersions comes first, then the authentication, where the backend authenticates. Before a
   session ends, the connection authenticates again.
2. Nothing but the handshake is written on a connection while it goes on. One that renews a session is sent behind the
   requests in flight: brokers answer in order, so that these are answered first.
3. What runs aside only leaves its result, and wakes the I/O thread, which goes on. The result for a connection that has
   been closed meanwhile is dropped.
4. For one node one thing runs aside at a time. When a connection is given up while its work aside goes on, the work of
   the next connection waits for it, for a minute at most: then it is taken for lost. So work that hangs does not pile
   up. The error names the work that hangs, and does not say that the broker cannot be reached.
5. During the authentication, the text of an error that is no KafkaError may contain a secret: only the type and the
   place of the error are logged.

Owned by the I/O thread, but for `finished`, to which others append.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock._escaping import told
from penstock._events import Event, tell, tell_error
from penstock.errors import AuthenticationError, IllegalStateError, KafkaError
from penstock.network import failures
from penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
from penstock.network.backend import NetworkBackend
from penstock.network.failures import describe
from penstock.network.handshake import (
    Aside,
    BareToken,
    Handshake,
    HandshakeFactory,
    HandshakeStep,
    Pause,
    StartAgain,
)
from penstock.network.settings import NetworkSettings
from penstock.network.states import AUTHENTICATING, CHECKING_API_VERSIONS, REAUTHENTICATING
from penstock.types import Node

logger = logging.getLogger("penstock.network")

# The version of a request that has none.
BARE = -1
# Rule 4.
GIVEN_UP_SECONDS = 60.0


class ConnectionOwner(Protocol):
    """The owner of the connections."""

    def start_request(
        self, connection: Connection, asked: ClientRequest, version: int, now: float, internal: bool
    ) -> Any:
        """Write a request on a connection."""
        ...

    def agreed(self, connection: Connection, now: float) -> None:
        """A handshake has succeeded: the connection can be used."""
        ...

    def fail(self, connection: Connection, error: KafkaError, now: float) -> None:
        """A handshake has failed: close the connection, and tell everyone concerned."""
        ...

    def watch_setup(self, connection: Connection, deadline: float) -> None:
        """If the handshake has not gone on by then: call `prompt`, and fail the connection if it returns False."""
        ...

    def close_connection(self, node_id: int, now: float, reason: str) -> None:
        """Close a connection that is not needed any more."""
        ...


class AsideTask(NamedTuple):
    """Work aside, and the handshake that it belongs to."""

    connection: Connection
    handshake: Handshake
    work: Callable[[], HandshakeStep | None]
    began_at: float

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the result."""
        return not self.connection.closed and self.connection.handshake is self.handshake


class Result(NamedTuple):
    """What work aside has come to."""

    task: AsideTask
    take: Callable[[], HandshakeStep | None]


class Dialogues:
    """The handshakes of one client's connections.

    Args:
        settings: time-outs.
        backend: authenticates, and runs work aside.
        handshakes: makes the first handshake of each connection.
        owner: owns the connections.

    Attributes:
        finished: results of work aside that nobody has taken yet; `take_finished` does.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        backend: NetworkBackend,
        handshakes: HandshakeFactory,
        owner: ConnectionOwner,
    ) -> None:
        self.finished: list[Result] = []
        self._timeout = settings.request_timeout_ms / 1000
        self._backend = backend
        self._handshakes = handshakes
        self._owner = owner
        self._under_way: dict[int, AsideTask] = {}  # by node id
        self._waiting: dict[int, AsideTask] = {}  # for the one that is under way
        self._logged: set[str] = set()  # places of errors

    @property
    def authenticates(self) -> bool:
        """Whether connections authenticate."""
        return self._backend.authenticate is not None

    def keep_nodes(self, kept: Iterable[Node]) -> None:
        """Forget what all other brokers have shown."""
        self._handshakes.keep_nodes(kept)

    def begin(self, connection: Connection, now: float) -> None:
        """Start the dialogue on a new connection, which is CHECKING_API_VERSIONS."""
        self._go_on(connection, lambda: self._ask_versions(connection, now), now)

    def renew(self, connection: Connection, now: float) -> None:
        """Authenticate anew on a connection that is REAUTHENTICATING, with nothing partly written."""
        self._go_on(connection, lambda: self._authenticate(connection), now)

    def prompt(self, connection: Connection, now: float) -> bool:
        """Go on with a first exchange although the broker is silent; False if the connection must be given up."""
        known = connection.known
        if known.state is not CHECKING_API_VERSIONS or now >= known.setup_deadline:
            return False
        self._owner.watch_setup(connection, known.setup_deadline)
        handshake = connection.handshake
        if getattr(handshake, "patience", math.inf) < math.inf and not connection.unsent_bytes:
            self._go_on(connection, handshake.on_silence, now)
        return True

    def lost(self, connection: Connection, now: float) -> None:
        """Tell a first exchange that its connection is given up: that may say something about the broker."""
        if connection.known.state is CHECKING_API_VERSIONS and connection.handshake is not None:
            closed = connection.peer_closed or isinstance(connection.read_error, ConnectionError)
            connection.handshake.on_lost(now, closed=closed)

    def take_finished(self, now: float) -> None:
        """Go on where work aside has come to its end."""
        while self.finished:
            task, take = self.finished.pop(0)
            node_id = task.connection.known.node.id
            if self._under_way.get(node_id) is task:
                del self._under_way[node_id]
                following = self._waiting.pop(node_id, None)
                if following is not None and following.wanted:
                    self._go_on(following.connection, partial(Aside, following.work), now)
            if task.wanted:
                self._go_on(task.connection, take, now)

    def late_error(self, connection: Connection, now: float) -> KafkaError | None:
        """Why a connection is late, where it waits for work aside that has taken most of the time; else None."""
        known = connection.known
        under_way = self._under_way.get(known.node.id)
        mine = self._waiting.get(known.node.id) or under_way
        explain = getattr(connection.handshake, "late_error", None)
        if under_way is None or mine is None or mine.connection is not connection or explain is None:
            return None
        seconds = now - under_way.began_at
        return (
            failures.unproven_error(known.node, explain(seconds))
            if 2 * seconds >= known.setup_timeout
            else None
        )

    # ---- inside

    def _ask_versions(self, connection: Connection, now: float) -> HandshakeStep | None:
        node = connection.known.node
        connection.handshake = self._handshakes.make(node, now, authenticates=self.authenticates)
        return connection.handshake.start()  # type: ignore[no-any-return]

    def _authenticate(self, connection: Connection) -> HandshakeStep | Aside | None:
        if self._backend.authenticate is None or connection.api_versions is None:
            return None
        handshake = self._backend.authenticate(connection.known.node, connection.api_versions)
        connection.handshake = handshake
        if connection.known.state is REAUTHENTICATING:
            renew: Callable[[], HandshakeStep | Aside] = getattr(handshake, "renew", handshake.start)
            return renew()
        return handshake.start()

    def _go_on(
        self, connection: Connection, ask: Callable[[], HandshakeStep | Aside | Pause | None], now: float
    ) -> None:
        """Take the next step, whatever it is: a request, work aside, a pause, the end, or a failure."""
        known = connection.known
        try:
            step = ask()
            if step is None and known.state is CHECKING_API_VERSIONS:
                connection.api_versions = connection.handshake.result
                if self.authenticates:
                    known.move_to(AUTHENTICATING)
                    step = self._authenticate(connection)
            if step is not None:
                self._take(connection, step, now)
                return
        except StartAgain as why:
            text = "Connecting anew to %s: %s"
            tell(logger, logging.DEBUG, Event.CONNECTING, text, describe(known.node), why, node=known.node)
            self._owner.close_connection(known.node.id, now, str(why))
        except KafkaError as error:
            self._owner.fail(connection, failures.refused_error(known.node, error), now)
        except Exception as error:  # noqa: BLE001 - else this connection would neither be used nor closed
            self._owner.fail(connection, self._unexpected(connection, error), now)
        else:
            self._owner.agreed(connection, now)

    def _take(self, connection: Connection, step: HandshakeStep | Aside | Pause, now: float) -> None:
        if isinstance(step, Pause):
            return
        if isinstance(step, Aside):
            if connection.known.state is REAUTHENTICATING:
                # No request is on its way whose time-out would end this.
                self._owner.watch_setup(connection, now + self._timeout)
            self._start_aside(AsideTask(connection, connection.handshake, step.work, now))
            return
        request = BareToken(step.raw) if step.raw is not None else step.request
        if request is None:
            raise IllegalStateError(f"a step of a handshake with nothing to send: {step!r}")
        version = BARE if step.raw is not None else step.version
        on_response = partial(self._on_response, connection, connection.handshake)
        asked = ClientRequest(connection.known.node, request, self._timeout, on_response)
        self._owner.start_request(connection, asked, version, now, True)
        if connection.known.state is CHECKING_API_VERSIONS:
            self._owner.watch_setup(connection, self._next_look(connection, now))

    def _next_look(self, connection: Connection, now: float) -> float:
        """When to do something about a silent broker: before anything else gives up."""
        known = connection.known
        deadline: float = known.setup_deadline
        patience: float = getattr(connection.handshake, "patience", math.inf)
        if patience == math.inf:
            return deadline
        setup_timeout: float = known.setup_timeout
        return min(deadline, now + min(patience, self._timeout / 2, setup_timeout / 2))

    def _on_response(self, connection: Connection, handshake: Handshake, response: InFlightRequest) -> None:
        if response.error is not None:
            return  # the connection has failed, and everyone was told
        if connection.handshake is not handshake:
            return  # it was over before this answer came, which nobody needs any more
        self._go_on(
            connection, lambda: handshake.on_answer(response.version, response.body), response.received_at
        )

    def _unexpected(self, connection: Connection, error: Exception) -> KafkaError:
        node, place = connection.known.node, told(error)
        if connection.known.state is not CHECKING_API_VERSIONS:
            return failures.unexpected_error(node, KafkaError(place))
        if place not in self._logged:
            self._logged.add(place)
            tell_error(
                logger, Event.CONNECTION_ERROR, "The first exchange with %s could not go on", describe(node),
                node=node, error=error,
            )  # fmt: skip
        return failures.unexpected_error(node, error)

    # ---- aside

    def _start_aside(self, task: AsideTask) -> None:
        node_id = task.connection.known.node.id
        under_way = self._under_way.get(node_id)
        if under_way is not None and task.began_at - under_way.began_at < GIVEN_UP_SECONDS:
            self._waiting[node_id] = task
            return
        self._waiting.pop(node_id, None)
        self._under_way[node_id] = task
        try:
            self._backend.run_aside(partial(self._work, task))
        except BaseException:
            del self._under_way[node_id]
            raise

    def _work(self, task: AsideTask) -> None:
        """The body of the thread aside."""
        take: Callable[[], HandshakeStep | None]
        try:
            step = task.work() if task.wanted else None
        except Exception as error:  # noqa: BLE001 - the I/O thread tells it
            take = partial(_raise, error)
        except BaseException as error:  # noqa: BLE001 - of a mechanism of the user's: it must not end the I/O thread
            take = partial(_raise, AuthenticationError(f"authentication failed: {told(error)}"))
        else:
            take = partial(_give, step)
        self.finished.append(Result(task, take))
        self._backend.selector.wakeup()

    def __repr__(self) -> str:
        return f"<Dialogues: {len(self.finished)} results to be taken>"


def _give(step: HandshakeStep | None) -> HandshakeStep | None:
    return step


def _raise(error: Exception) -> HandshakeStep | None:
    raise error
