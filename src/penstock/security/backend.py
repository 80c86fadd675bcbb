# SPDX-License-Identifier: Apache-2.0
"""Puts the network together for a client that uses TLS, SASL or a proxy: what `NetworkBackend.tcp` is for plain TCP.

From the bottom, each where it is configured: TCP, the dialogue with the proxy, TLS; then, on top of the first exchange
with the broker, SASL. Each part is imported only where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.network._sockets_cy import SocketSelector, TcpTransport
from penstock.network.backend import Authenticate, NetworkBackend
from penstock.network.resolver import RESOLVE_CANONICAL, Resolve, RunAside, system_resolve
from penstock.network.settings import NetworkSettings
from penstock.network.transport import Address, Endpoint, Transport, TransportFactory
from penstock.security.aside import Helpers
from penstock.security.settings import SecuritySettings

if TYPE_CHECKING:
    from penstock.security.proxy import ProxySettings
    from penstock.security.tls.settings import TlsSettings

# Brokers tell their addresses, so that there is no end to them but this.
_MOST_LISTENERS: Final = 10_000
# Puts one transport over another one, for a broker.
_Layer = Callable[[Transport, Endpoint], Transport]


def secure_backend(
    network: NetworkSettings, security: SecuritySettings, resolve: Resolve = system_resolve
) -> NetworkBackend:
    """The operating system as a client with these settings sees it.

    Args:
        network: settings of the connections.
        security: how to connect to brokers.
        resolve: finds the addresses of a host.

    Raises:
        ConfigError: a file of certificates or keys cannot be used, a mechanism is not known, or the options contradict
            each other.
    """
    helpers = Helpers()
    layers: list[_Layer] = []
    if security.proxy is not None:
        layers.append(_proxy_layer(network, security.proxy))
        resolve = _resolve_proxy(security.proxy, resolve)
    if security.tls is not None:
        layers.append(_tls_layer(security.tls, helpers.run))
    authenticate: Authenticate | None = None
    with ExitStack() as stack:
        stack.callback(helpers.close)
        if security.sasl is not None:
            from penstock.security.sasl.authenticator import Authenticator

            authenticator = Authenticator(security.sasl)
            stack.callback(authenticator.close)
            authenticate = authenticator.handshake
            helpers.start()
        selector = SocketSelector()
        close = stack.pop_all().close
    return NetworkBackend(selector, _connect(network, layers), resolve, authenticate, helpers.run, close)


def _connect(network: NetworkSettings, layers: Sequence[_Layer]) -> TransportFactory:
    def connect(address: Address, endpoint: Endpoint) -> Transport:
        transport: Transport = TcpTransport.connect(address, network)
        try:
            for layer in layers:
                transport = layer(transport, endpoint)
        except BaseException:
            transport.close()
            raise
        return transport

    return connect


def _proxy_layer(network: NetworkSettings, proxy: ProxySettings) -> _Layer:
    from penstock.security.proxy import ProxyTransport

    if network.client_dns_lookup == RESOLVE_CANONICAL:
        raise ConfigError(
            f"client.dns.lookup={RESOLVE_CANONICAL} cannot be used with proxy.url: the proxy resolves the names"
        )
    return lambda inner, endpoint: ProxyTransport(inner, proxy, endpoint.host, endpoint.port)


def _resolve_proxy(proxy: ProxySettings, resolve: Resolve) -> Resolve:
    """Every host is reached at the proxy's addresses: what its own are, the proxy finds out."""

    def resolve_proxy(host: str, port: int) -> Sequence[Address]:
        del host, port
        try:
            return resolve(proxy.host, proxy.port)
        except OSError as error:
            raise OSError(error.errno or 0, f"{proxy} has no address: {error.strerror or error}") from error

    return resolve_proxy


def _tls_layer(settings: TlsSettings, run_aside: RunAside) -> _Layer:
    from penstock.security.tls._transport_cy import Listener, TlsTransport
    from penstock.security.tls.context import TlsContext

    context = TlsContext(settings, run_aside)
    listeners: dict[Endpoint, Listener] = {}

    def tls(inner: Transport, endpoint: Endpoint) -> Transport:
        if len(listeners) >= _MOST_LISTENERS:
            listeners.clear()
        # Asked for each connection: files that have changed are read then.
        return TlsTransport(
            inner, context.current(), endpoint.host, listeners.setdefault(endpoint, Listener())
        )

    return tls
