# SPDX-License-Identifier: Apache-2.0
"""Everything the network client wants from the world, in one value.

Waiting, connecting, resolving names, and doing so aside: a simulator replaces these and has the client in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.network.bootstrap import RunAside, run_on_daemon_thread
from penstock.network.handshake import Handshake
from penstock.network.resolver import Resolve, system_resolve
from penstock.network.selector import Selector, SocketSelector
from penstock.network.settings import NetworkSettings
from penstock.network.transport import TcpTransport, TransportFactory
from penstock.protocol.api_versions import NodeApiVersions
from penstock.types import Node

Authenticate = Callable[[Node, NodeApiVersions], Handshake]


class NetworkBackend(NamedTuple):
    """The operating system, as the client sees it.

    Attributes:
        selector: waits, and is woken.
        connect: starts a connection to an address.
        resolve: finds the addresses of a host.
        authenticate: makes the handshake that follows ApiVersions (SASL); None where there is none.
        run_aside: runs a function that may block, away from the I/O thread.
    """

    selector: Selector
    connect: TransportFactory
    resolve: Resolve
    authenticate: Authenticate | None = None
    run_aside: RunAside = run_on_daemon_thread

    @classmethod
    def tcp(cls, settings: NetworkSettings, resolve: Resolve = system_resolve) -> NetworkBackend:
        """Plain TCP on this machine."""
        return cls(SocketSelector(), partial(TcpTransport.connect, settings=settings), resolve)
