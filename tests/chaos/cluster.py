# SPDX-License-Identifier: Apache-2.0
"""Three brokers whose clients come through proxies, while the brokers talk to each other directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.proxy import HOST, Proxy, ProxyLoop
from penstock.devbroker import DevCluster
from penstock.devbroker.machine import free_ports
from penstock.devbroker.node import Node
from penstock.devbroker.settings import QUICK_JVM, server_properties

_FEATURES = "org.apache.kafka.tools.FeatureCommand"
# Leaders move when a fault or an election moves them, so that each move can be counted.
_PROPERTIES = {
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    # Whoever falls behind leaves the in-sync set soon, and whoever is back joins it soon.
    "replica.lag.time.max.ms": 6000,
}


class ProxiedCluster(DevCluster):
    """A DevCluster with a second listener on each broker, advertised at the port of a proxy.

    Attributes:
        proxies: by node id.
    """

    def __init__(
        self, nodes: int = 3, *, heap_mb: int = 256, properties: Mapping[str, object] | None = None
    ) -> None:
        self._extra = {**_PROPERTIES, **(properties or {})}
        super().__init__(nodes, heap_mb=heap_mb, properties=self._extra)
        self.proxies: dict[int, Proxy] = {}
        self._proxy_loop: ProxyLoop | None = None

    @property
    def proxied_servers(self) -> str:
        """Where clients that are to be troubled connect; `bootstrap_servers` leads past the proxies."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies.values())

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
        taken = [port for address in addresses for port in (address.port, address.controller_port)]
        behind = free_ports(len(addresses), avoid=taken)
        self.proxies = {
            node.node_id: Proxy(self._proxy_loop, port) for node, port in zip(self.nodes, behind, strict=True)
        }
        for node, port in zip(self.nodes, behind, strict=True):
            own = node.address
            listeners = {
                "listeners": f"PLAINTEXT://{HOST}:{own.port},TROUBLED://{HOST}:{port},"
                f"CONTROLLER://{HOST}:{own.controller_port}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{own.port},"
                f"TROUBLED://{HOST}:{self.proxies[node.node_id].port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TROUBLED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            }
            node.configure(server_properties(own, addresses, node.log_dir, {**self._extra, **listeners}))
