# SPDX-License-Identifier: Apache-2.0
"""The one place where troubles of the network become errors of this package, with texts that name host, port and cause.

It also chooses the level of the log: the first failure of a kind is a warning with advice, and its repetitions are not.
Otherwise a broker that is down for an hour would fill the log.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from penstock._events import Event, tell
from penstock.errors import (
    AuthenticationError,
    BootstrapError,
    BrokerError,
    KafkaError,
    NetworkError,
    NotKafkaError,
    ProtocolError,
    RequestTimedOutError,
    broker_error,
)
from penstock.network.states import (
    AUTHENTICATING,
    CHECKING_API_VERSIONS,
    MADE,
    REAUTHENTICATING,
    ConnectionState,
    NodeState,
)
from penstock.network.transport import Address, Endpoint, RefusedError, Transport
from penstock.types import Node

logger = logging.getLogger("penstock.network")

# How often in a row a broker must close the connection after the first request, before that is taken for a refusal.
_TIMES_TO_BELIEVE = 3
_REFUSED_ADVICE = "Is the broker running, and is it listening at that port?"
_FIRST_EXCHANGE_ADVICE = "Is it a Kafka broker, and does the listener speak this security.protocol?"

_LONGEST_TEXT = 500  # characters of an error that is kept for those who watch

TellUpdater = Callable[[Node, KafkaError, float], None]


class PastError(NamedTuple):
    """The last error of a node, also of one that is connected since. Not the exception, which holds frames."""

    at: float
    text: str


def describe(node: Node) -> str:
    """The node in a sentence: "broker 3 at host:9092"."""
    endpoint = Endpoint(node.host, node.port)
    return f"bootstrap server {endpoint}" if node.id < 0 else f"broker {node.id} at {endpoint}"


def cause_of(error: BaseException) -> str:
    """An exception's text without decoration."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error) or type(error).__name__


def resolve_error(node: Node, cause: Exception) -> KafkaError:
    """The name of a node cannot be resolved."""
    text = f"the name of {describe(node)} cannot be resolved: {cause_of(cause)}"
    error: KafkaError = BootstrapError(text) if node.id < 0 else NetworkError(text)
    error.__cause__ = cause
    return error


def connect_error(node: Node, address: Address, cause: Exception) -> KafkaError:
    """No connection can be made."""
    if isinstance(cause, RefusedError):
        return _identity_error(node, cause)
    via = "" if address.ip == node.host else f" (address {address})"
    asked = f". {_REFUSED_ADVICE}" if _is_refused_bootstrap(node, cause) else ""
    error = NetworkError(f"cannot connect to {describe(node)}{via}: {_with_advice(cause)}{asked}")
    error.__cause__ = cause
    return error


def _identity_error(node: Node, cause: RefusedError) -> KafkaError:
    error = AuthenticationError(
        f"no connection to {describe(node)}: {_with_advice(cause)}", broker=describe(node)
    )
    error.__cause__ = cause
    return error


def _with_advice(cause: Exception) -> str:
    advice = getattr(cause, "advice", "")
    return f"{cause_of(cause)}. {advice}" if advice else cause_of(cause)


def setup_timeout_error(known: NodeState, now: float, transport: Transport) -> KafkaError:
    """The set-up of a connection took too long. A transport of several layers knows which of them waits (`delay`)."""
    node = describe(known.node)
    if known.state is REAUTHENTICATING:
        return NetworkError(f"re-authentication with {node} took too long; a new connection is made")
    waited = f"within {(now - known.last_attempt_at) * 1000:.0f} ms"
    if known.state is AUTHENTICATING:
        return NetworkError(f"cannot connect to {node}: authentication did not finish {waited}")
    if known.state is CHECKING_API_VERSIONS:
        late = NetworkError(
            f"cannot connect to {node}: it does not answer ApiVersions {waited}. It may be overloaded, or stopped; or "
            "it is older than Kafka 0.10: then set broker.version.fallback to its release"
        )
        late.__cause__ = RequestTimedOutError("the connection was made, and ApiVersions was not answered")
        return late
    delay = getattr(transport, "delay", "")
    return NetworkError(f"cannot connect to {node}: no answer {waited}{f': {delay}' if delay else ''}")


def unproven_error(node: Node, cause: AuthenticationError) -> KafkaError:
    """The authentication of the client or of the broker failed; the cause says which.

    The text does not say that the broker refused: if no token could be fetched, or the credentials were not found in
    time, the broker has not even been asked.
    """
    text = f"no connection to {describe(node)}: {cause}"
    error = AuthenticationError(text, mechanism=cause.mechanism, user=cause.user, broker=describe(node))
    error.__cause__ = cause
    return error


def broken_error(node: Node, cause: Exception, state: ConnectionState) -> KafkaError:
    """An existing connection broke."""
    if isinstance(cause, RefusedError) and state not in MADE:
        return _identity_error(node, cause)
    text = f"the connection to {describe(node)} broke: {_with_advice(cause)}"
    if state is CHECKING_API_VERSIONS and not getattr(cause, "advice", ""):
        text += f". {_FIRST_EXCHANGE_ADVICE}"
    error = NetworkError(text)
    error.__cause__ = cause
    return error


def renewal_error(node: Node, cause: KafkaError) -> KafkaError:
    """The broker did not take a second authentication on the same connection."""
    error = NetworkError(
        f"the session with {describe(node)} could not be renewed, so a new connection is made: {cause}"
    )
    error.__cause__ = cause
    return error


def unexpected_error(node: Node, cause: Exception) -> KafkaError:
    """This client failed, not the broker, before the connection could be used."""
    error = NetworkError(f"the connection to {describe(node)} could not be set up: {cause!r}")
    error.__cause__ = cause
    return error


def closed_by_peer_error(node: Node) -> KafkaError:
    return NetworkError(f"{describe(node)} closed the connection")


def closed_in_handshake_error(node: Node, state: ConnectionState, handshake: Any) -> KafkaError:
    """The peer closed the connection in the middle of a handshake, which may know what that means."""
    explain = getattr(handshake, "closed_error", None)
    meaning = None if explain is None else explain()
    if meaning is not None:
        return refused_error(node, meaning)
    if state is AUTHENTICATING:
        return NetworkError(f"{describe(node)} closed the connection during authentication")
    if state is REAUTHENTICATING:
        return NetworkError(f"{describe(node)} closed the connection when its session was to be renewed")
    return NetworkError(
        f"{describe(node)} closed the connection during the first exchange. {_FIRST_EXCHANGE_ADVICE}"
    )


def unanswered_error(node: Node, times: int, *, answered_before: bool) -> KafkaError:
    """The peer said what it can do, and closed the connection when it was asked for something.

    A listener with SASL does so when the client does not authenticate; so does a broker that is just going down, but
    not again and again. A listener that has answered this client before did not want SASL, so this guess is not made.

    Args:
        node: the broker.
        times: how often it did so, in a row.
        answered_before: whether a broker at this address has answered a request of this client.
    """
    text = f"{describe(node)} closed the connection instead of answering the first request"
    if answered_before:
        often = "" if times < _TIMES_TO_BELIEVE else f", {times} times, although it has answered before"
        return NetworkError(f"{text}{often}. The broker's log may say why")
    if times < _TIMES_TO_BELIEVE:
        return NetworkError(f"{text}. A listener that wants SASL does that: check security.protocol")
    error = AuthenticationError(
        f"{text}, {times} times. A listener that wants SASL does that: set security.protocol to SASL_SSL "
        "(SASL_PLAINTEXT without TLS), with sasl.mechanism and credentials, or check the port in bootstrap.servers",
        broker=describe(node),
    )
    error.guessed = True
    return error


def refused_error(node: Node, cause: KafkaError) -> KafkaError:
    """The first exchange ended with an error; its type and code are kept, as they say what to do."""
    error: KafkaError
    if isinstance(cause, BrokerError):
        error = broker_error(cause.code, f"{describe(node)} refused the connection: {cause.message}")
    elif isinstance(cause, AuthenticationError):
        return unproven_error(node, cause)
    elif cause.retriable:
        error = NetworkError(f"the connection to {describe(node)} could not be set up: {cause}")
    else:
        return malformed_error(node, cause)
    error.__cause__ = cause
    return error


def malformed_error(node: Node, cause: Exception) -> KafkaError:
    """The peer sent what a broker would not send, or what cannot be read."""
    error: KafkaError
    if isinstance(cause, NotKafkaError) and cause.wants_tls:
        error = AuthenticationError(
            f"{describe(node)} expects TLS at this port: set security.protocol to SSL, or to SASL_SSL where it wants "
            "SASL as well, or check the port",
            broker=describe(node),
        )
    elif isinstance(cause, NotKafkaError):
        error = NotKafkaError(f"what listens at {describe(node)} does not speak Kafka: {_with_advice(cause)}")
    else:
        error = ProtocolError(f"{describe(node)} sent data that cannot be read: {cause_of(cause)}")
    error.__cause__ = cause
    return error


class FailureReporter:
    """Remembers failures of connections, tells the MetadataUpdater of them, and logs them. Owned by the I/O thread.

    Attributes:
        refusal: the latest refused authentication, by any node; None since a connection was made.
        refused_at: when that was.
    """

    def __init__(self, tell_updater: TellUpdater) -> None:
        self.refusal: KafkaError | None = None
        self.refused_at = -math.inf
        self._tell_updater = tell_updater
        self._last: dict[int, KafkaError] = {}
        self._past: dict[int, PastError] = {}
        self._warned: set[tuple[int, str]] = set()

    def last_error(self, node_id: int) -> KafkaError | None:
        """Why there is no connection to the node; None when there is one, or when none was tried. From any thread."""
        return self._last.get(node_id)

    def past_error(self, node_id: int) -> PastError | None:
        """The last error of a node, which stays when there is a connection again. From any thread."""
        return self._past.get(node_id)

    def connected(self, node_id: int, *, lasting: bool = True) -> None:
        """The node is connected. If its connections do not last (not `lasting`), earlier warnings are not repeated."""
        self._last.pop(node_id, None)
        if not lasting:
            return
        self.refusal = None
        self._warned = {entry for entry in self._warned if entry[0] != node_id}

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget all other nodes; the first failure of one that comes back is news."""
        self._last = {node_id: error for node_id, error in self._last.items() if node_id in kept}
        self._past = {node_id: error for node_id, error in self._past.items() if node_id in kept}
        self._warned = {entry for entry in self._warned if entry[0] in kept}

    def attempt_failed(self, node: Node, error: KafkaError, now: float, *, ever_ready: bool) -> None:
        """A connection could not be made."""
        refused = isinstance(error, AuthenticationError)
        # For a bootstrap server each new cause is logged; for a broker only the first failure, whatever its cause.
        kind = (node.id, _kind(error) if node.id < 0 or refused else "")
        repeated = kind in self._warned
        if not repeated:
            self._warned.add(kind)
        event = Event.AUTHENTICATION_FAILED if refused else Event.CONNECTION_FAILED

        def say(level: int, text: str, *args: object) -> None:
            # Each call may be a first failure, if a broker comes and goes: so there is a limit for each kind.
            tell(logger, level, event, text, *args, each=kind, node=node, error=error.__cause__ or error)

        if repeated:
            say(logging.DEBUG, "Still no connection: %s", error)
        elif refused:
            advice = "%s. Penstock retries, and continues when the cause is fixed."
            say(logging.ERROR, advice, str(error).rstrip("."))
        elif node.id < 0:
            # Some errors have their advice in their text, which is also what the application sees.
            told = _is_refused_bootstrap(node, error.__cause__) or _is_advised(error.__cause__)
            advice = "" if told else f". {_bootstrap_advice(error)}"
            say(logging.WARNING, "No connection to a bootstrap server: %s%s", error, advice)
        elif ever_ready:
            say(logging.WARNING, "No connection to broker %d any more: %s", node.id, error)
        elif isinstance(error.__cause__, KafkaError):  # so that it was reached
            say(logging.WARNING, "No connection to broker %d: %s", node.id, error)
        else:
            say(
                logging.WARNING,
                "The advertised listener %s of broker %d cannot be reached: %s. Check advertised.listeners of the "
                "broker, and that this machine can resolve that name and reach that port (firewall, port mapping).",
                Endpoint(node.host, node.port),
                node.id,
                error,
            )
        self._remember(node, error, now)

    def connection_lost(self, node: Node, error: KafkaError, now: float) -> None:
        """A connection that had been made is gone."""
        cause = error.__cause__ or error
        tell(
            logger, logging.INFO, Event.CONNECTION_LOST, "Connection lost: %s", error,
            each=node.id, node=node, error=cause,
        )  # fmt: skip
        self._remember(node, error, now)

    def _remember(self, node: Node, error: KafkaError, now: float) -> None:
        self._last[node.id] = error
        text = str(error)
        self._past[node.id] = PastError(
            now, text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
        )
        if isinstance(error, AuthenticationError):
            self.refusal, self.refused_at = error, now
        self._tell_updater(node, error, now)


def _kind(error: KafkaError) -> str:
    # Not the text: it may hold a number that is different each time. Advice is one of a few texts: another advice is
    # another cause, such as a client's certificate that is refused once the broker's is trusted.
    cause = error.__cause__ or error
    said = getattr(cause, "advice", "")
    if not said and isinstance(cause, AuthenticationError):
        # SASL has no such texts. Another place of the code that found the cause is another cause.
        said = _raised_at(cause)
    return f"{type(cause).__name__} {getattr(cause, 'errno', '')} {said}"


def _raised_at(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _is_refused_bootstrap(node: Node, cause: BaseException | None) -> bool:
    return node.id < 0 and isinstance(cause, ConnectionRefusedError)


def _is_advised(cause: BaseException | None) -> bool:
    return isinstance(cause, NotKafkaError) and bool(cause.advice)


def _bootstrap_advice(error: KafkaError) -> str:
    cause = error.__cause__
    if isinstance(cause, socket.gaierror):
        return "Check the name in bootstrap.servers, and the DNS."
    if isinstance(cause, NotKafkaError):
        return "Check the port in bootstrap.servers, and security.protocol."
    return "Check bootstrap.servers."
