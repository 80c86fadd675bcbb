# SPDX-License-Identifier: Apache-2.0
"""The two interfaces of the network client: to the operating system, and to the layer above.

`NetworkBackend` waits, connects, resolves names, and runs work on other threads. A simulator replaces it, and so runs
the client in virtual time. `MetadataUpdater` owns the cluster's metadata: the network layer knows nothing else of the
layer above.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from penstock._events import Event, tell
from penstock._quiet_cy import QuietTime
from penstock.errors import BootstrapError, KafkaError
from penstock.network._sockets_cy import Selector, SocketSelector, TcpTransport
from penstock.network.handshake import Handshake
from penstock.network.resolver import Resolve, RunAside, run_on_daemon_thread, system_resolve
from penstock.network.settings import NetworkSettings
from penstock.network.transport import Address, Endpoint, TransportFactory
from penstock.protocol.requests import NodeApiVersions, Request
from penstock.types import Node

logger = logging.getLogger("penstock.network")

Authenticate = Callable[[Node, NodeApiVersions], Handshake]


class NetworkBackend(NamedTuple):
    """The operating system, as the client sees it.

    Attributes:
        selector: waits, and is woken.
        connect: starts a connection to an address of an endpoint.
        resolve: finds the addresses of a host.
        authenticate: makes the handshake that follows ApiVersions (SASL); None where there is none.
        run_aside: runs a function that may block, away from the I/O thread.
        close_security: ends what `authenticate` has in the background; None where there is nothing.
    """

    selector: Selector
    connect: TransportFactory
    resolve: Resolve
    authenticate: Authenticate | None = None
    run_aside: RunAside = run_on_daemon_thread
    close_security: Callable[[], None] | None = None

    @classmethod
    def tcp(cls, settings: NetworkSettings, resolve: Resolve = system_resolve) -> NetworkBackend:
        """Plain TCP on this machine."""

        def connect(address: Address, endpoint: Endpoint) -> TcpTransport:
            del endpoint  # the address is enough
            return TcpTransport.connect(address, settings)

        return cls(SocketSelector(), connect, resolve)

    def close(self) -> None:
        """Release what is held; connections are closed before, by their owner."""
        self.selector.close()
        if self.close_security is not None:
            try:
                self.close_security()
            except Exception as error:  # noqa: BLE001 - the client is closed all the same
                # Without its text, which may hold a secret.
                tell(
                    logger, logging.ERROR, Event.SECURITY_WORK_FAILED, "Authentication could not be ended: %s",
                    type(error).__name__,
                    error=error,
                )  # fmt: skip


class MetadataUpdater(Protocol):
    """Keeps the view of the cluster; the client fetches for it. All methods are called on the I/O thread.

    The client decides when and where a Metadata request is sent, because only it knows the connections; what to ask and
    what to make of the answer is decided above.
    """

    @property
    def quiet(self) -> QuietTime:
        """Before its end neither `seconds_to_update` nor `rebootstrap_due` has anything to tell: they are not asked."""
        ...

    def nodes(self) -> Sequence[Node]:
        """The known nodes; the bootstrap ones (ids -1, -2, ...) until the first answer."""
        ...

    def cluster_id(self) -> str | None:
        """The cluster that this client belongs to, as a broker told it; None while that is not known."""
        ...

    def on_bootstrap(self, nodes: Sequence[Node]) -> None:
        """The bootstrap servers were resolved after the client was made; `nodes` had none until now."""
        ...

    def on_bootstrap_delayed(self, error: BootstrapError) -> None:
        """They could not be resolved, and are tried again; remembered, so that a time-out can name the cause."""
        ...

    def seconds_to_update(self, now: float) -> float:
        """Seconds until an update is due: 0.0 is now, infinity is never."""
        ...

    def build_request(self, now: float) -> Request:
        """The Metadata request to send; the update is in progress until `on_response` or `on_failure`."""
        ...

    def on_response(self, request: Request, body: Any, version: int, now: float) -> Iterator[None] | None:
        """The answer to the request made by `build_request`: what its `decode_response` gave.

        A large answer may be taken in pieces: the client takes a step of the iterator in each poll. Before its end it
        neither asks again nor starts again from the bootstrap servers. A ProtocolError says that the answer cannot be
        decoded: the connection is closed.
        """
        ...

    def on_failure(self, error: KafkaError, now: float) -> None:
        """The request in progress failed: disconnected, timed out, or not understood."""
        ...

    def on_fatal(self, error: KafkaError) -> None:
        """No update can succeed (authentication, no common version); waiting senders are woken with the error.

        A refused authentication is reported here when every known node has refused it, or could not be reached, or when
        no node has accepted it a second later. Until then it is only the reason of a failed connection.

        After a BootstrapError none ever will: it also meets everyone who would wait later.
        """
        ...

    def on_connection_failed(self, node: Node, error: KafkaError, now: float) -> None:
        """A connection could not be made, or broke; remembered, so that a time-out can name the cause.

        It may be that the node is gone, and others lead its partitions now: a reason to ask for metadata.

        A broker that refuses a connection with REBOOTSTRAP_REQUIRED is told here too, as the BrokerError of that code.
        """
        ...

    def keep_nodes(self, kept: Container[int]) -> None:
        """The client has forgotten all nodes but these, by id, since they are not used any more.

        Called now and then, also when nothing was forgotten. One of `nodes`, or with a connection, is never forgotten.
        """
        ...

    def rebootstrap_due(self, now: float) -> bool:
        """Whether the view of the cluster must be dropped in favour of the bootstrap servers."""
        ...

    def rebootstrap(self, now: float) -> None:
        """Go back to the bootstrap nodes, where metadata.recovery.strategy allows it.

        Called when `rebootstrap_due`, and when an update is due but no known node can be used or connected to. All
        connections were closed before.
        """
        ...
