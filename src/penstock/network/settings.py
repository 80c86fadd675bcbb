# SPDX-License-Identifier: Apache-2.0
"""What the network layer needs to know of the configuration.

The layers above hand over these few values; the network never sees the producer's whole configuration. The default of
an option is in the table of options, and not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from penstock._version import __version__

# The options that every client has for its connections, each with the field that it becomes.
CONNECTION_OPTIONS: Final = MappingProxyType(
    {
        "reconnect.backoff.ms": "reconnect_backoff_ms",
        "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
        "socket.connection.setup.timeout.ms": "connection_setup_timeout_ms",
        "socket.connection.setup.timeout.max.ms": "connection_setup_timeout_max_ms",
        "request.timeout.ms": "request_timeout_ms",
        "connections.max.idle.ms": "connections_max_idle_ms",
        "send.buffer.bytes": "send_buffer_bytes",
        "receive.buffer.bytes": "receive_buffer_bytes",
        "client.dns.lookup": "client_dns_lookup",
        "broker.version.fallback": "broker_version_fallback",
    }
)

# What brokers accept as client software name and version (KIP-511); anything else is answered with INVALID_REQUEST.
_SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Settings of the connections of one client.

    Attributes:
        client_id: sent in every request header; None sends a null.
        max_in_flight: requests per connection that may wait for their answer.
        reconnect_backoff_ms: wait before the second attempt to reach a node; doubles up to the maximum.
        reconnect_backoff_max_ms: the longest such wait.
        connection_setup_timeout_ms: how long one attempt to connect may take; doubles up to the maximum.
        connection_setup_timeout_max_ms: the longest such time.
        request_timeout_ms: time-out of the requests that the client sends by itself (ApiVersions, Metadata).
        connections_max_idle_ms: an unused connection is closed after this time; negative means never.
        send_buffer_bytes: SO_SNDBUF, -1 leaves the system's value.
        receive_buffer_bytes: SO_RCVBUF, -1 leaves the system's value.
        client_dns_lookup: how bootstrap names become addresses.
        broker_version_fallback: the release of brokers that do not answer ApiVersions; None to find it out.
        cluster_check: tell a broker which cluster and node is meant, so that it can refuse what was not for it.
        max_response_bytes: a larger size prefix is taken for garbage.
        client_software_name: told to the brokers, for their metrics.
        client_software_version: likewise.

    Raises:
        ValueError: a value that a broker or the operating system would refuse later, with an obscure error.
    """

    client_id: str | None
    max_in_flight: int
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    connection_setup_timeout_ms: float
    connection_setup_timeout_max_ms: float
    request_timeout_ms: float
    connections_max_idle_ms: float
    send_buffer_bytes: int
    receive_buffer_bytes: int
    client_dns_lookup: str
    broker_version_fallback: str | None
    cluster_check: bool
    max_response_bytes: int = 100 * 1024 * 1024
    client_software_name: str = "penstock"
    client_software_version: str = __version__

    @classmethod
    def from_options(
        cls, values: Mapping[str, Any], *, client_id: str | None, max_in_flight: int, cluster_check: bool
    ) -> Self:
        """Take what concerns connections from the checked values of options, which stand under their dotted names."""
        fields = {field: values[option] for option, field in CONNECTION_OPTIONS.items()}
        return cls(client_id=client_id, max_in_flight=max_in_flight, cluster_check=cluster_check, **fields)

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1: {self.max_in_flight}")
        for name in ("client_software_name", "client_software_version"):
            text = getattr(self, name)
            if not _SOFTWARE_PATTERN.fullmatch(text):
                raise ValueError(f"{name} may hold letters, digits, '-' and '.' only: {text!r}")
