# SPDX-License-Identifier: Apache-2.0
"""Three brokers whose clients come through proxies, while the brokers connect to each other directly."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.proxy import HOST, Proxy, ProxyLoop, ProxyTls
from penstock.devbroker import DevCluster
from penstock.devbroker.machine import free_ports
from penstock.devbroker.node import Node
from penstock.devbroker.settings import QUICK_JVM, NodeAddress, server_properties

_FEATURES = "org.apache.kafka.tools.FeatureCommand"
# Leaders move when a fault or an election moves them, so that each move can be counted.
_PROPERTIES = {
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    # A replica that falls behind leaves the in-sync set soon, and one that is back joins it soon.
    "replica.lag.time.max.ms": 6000,
}


# With TLS and SASL: how clients connect, and how long they stay known.
ACCESS = "sasl_ssl-scram-sha-256"
_SECURED = {"connections.max.reauth.ms": 2000}
_TLS_LISTENER = "SASLTLS"


class ProxiedCluster(DevCluster):
    """A DevCluster with a second listener on each broker, advertised at the port of a proxy.

    Args:
        nodes: how many brokers.
        heap_mb: heap of each.
        properties: of the brokers; they win.
        secured: that listener wants TLS and SCRAM, and an authentication is good for two seconds.

    Attributes:
        proxies: by node id.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        heap_mb: int = 256,
        properties: Mapping[str, object] | None = None,
        secured: bool = False,
    ) -> None:
        self._is_secured = secured
        self._extra = {**_PROPERTIES, **(_SECURED if secured else {}), **(properties or {})}
        super().__init__(
            nodes, heap_mb=heap_mb, properties=self._extra, security="scram" if secured else None
        )
        self.proxies: dict[int, Proxy] = {}
        self._proxy_loop: ProxyLoop | None = None

    @property
    def proxied_servers(self) -> str:
        """Where clients that are to be troubled connect; `bootstrap_servers` leads past the proxies."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies.values())

    def security_options(self) -> dict[str, str]:
        """What clients that are to be troubled set besides `proxied_servers`."""
        if not self._is_secured:
            return {}
        options = self.client_options(ACCESS)
        del options["bootstrap.servers"]
        return options

    def stop(self) -> None:
        super().stop()
        loop, self._proxy_loop = self._proxy_loop, None
        if loop is not None:
            for proxy in self.proxies.values():
                proxy.close()
            self.proxies = {}
            loop.close()

    def set_transaction_version(self, level: int, *, upgrade: bool) -> None:
        """Finalize the feature that chooses the transaction protocol: 0 or 1 is v1, 2 is v2."""
        done = self.run_tool(
            _FEATURES,
            *("--bootstrap-server", self.bootstrap_servers),
            *("upgrade" if upgrade else "downgrade", "--feature", f"transaction.version={level}"),
            jvm=QUICK_JVM,
        )
        if done.returncode != 0:
            raise RuntimeError(f"transaction.version={level} was refused: {done.stdout}{done.stderr}")

    def _format(self, nodes: Sequence[Node], cluster_id: str) -> None:
        # Called when every node has its ports and its configuration, and none runs yet.
        self._route_clients_through_proxies()
        super()._format(nodes, cluster_id)

    def _route_clients_through_proxies(self) -> None:
        if self._proxy_loop is None:
            self._proxy_loop = ProxyLoop()
        for proxy in self.proxies.values():
            proxy.close()
        addresses = [node.address for node in self.nodes]
        if self._is_secured:
            behind = [address.secured_ports[_TLS_LISTENER] for address in addresses]
            tls = self._proxy_tls()
        else:
            taken = [port for address in addresses for port in (address.port, address.controller_port)]
            behind = free_ports(len(addresses), avoid=taken)
            tls = None
        self.proxies = {
            node.node_id: Proxy(self._proxy_loop, port, tls)
            for node, port in zip(self.nodes, behind, strict=True)
        }
        for node, port in zip(self.nodes, behind, strict=True):
            own, told = node.address, f"{HOST}:{self.proxies[node.node_id].port}"
            changed = self._secured_listeners(own, told) if self._is_secured else _listeners(own, port, told)
            node.configure(server_properties(own, addresses, node.log_dir, {**self._extra, **changed}))

    def _secured_listeners(self, own: NodeAddress, told: str) -> dict[str, object]:
        properties = self._secured(own, self.data_dir)
        plain = f"PLAINTEXT://{HOST}:{own.port}"
        return {**properties, "advertised.listeners": f"{plain},{_TLS_LISTENER}://{told}"}

    def _proxy_tls(self) -> ProxyTls:
        options = self.client_options(ACCESS)
        authority = options["ssl.truststore.location"]
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(Path(authority).with_name("broker.pem"))
        return ProxyTls(server, ssl.create_default_context(cafile=authority))


def _listeners(own: NodeAddress, port: int, told: str) -> dict[str, object]:
    plain = f"PLAINTEXT://{HOST}:{own.port}"
    return {
        "listeners": f"{plain},TROUBLED://{HOST}:{port},CONTROLLER://{HOST}:{own.controller_port}",
        "advertised.listeners": f"{plain},TROUBLED://{told}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TROUBLED:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
