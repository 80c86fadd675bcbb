# SPDX-License-Identifier: Apache-2.0
"""What the network layer needs to know of the configuration.

The layers above hand over these few values; the network never sees the producer's whole configuration. The defaults are
those of the options with the same names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        max_response_bytes: a larger size prefix is taken for garbage.
        cluster_check: tell a broker which cluster and node is meant, so that it can refuse what was not for it.
        client_software_name: told to the brokers, for their metrics.
        client_software_version: likewise.

    Raises:
        ValueError: a value that a broker or the operating system would refuse later, with an obscure error.
    """

    client_id: str | None = "penstock"
    max_in_flight: int = 5
    reconnect_backoff_ms: float = 50
    reconnect_backoff_max_ms: float = 1000
    connection_setup_timeout_ms: float = 10_000
    connection_setup_timeout_max_ms: float = 30_000
    request_timeout_ms: float = 30_000
    connections_max_idle_ms: float = 540_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = 32_768
    client_dns_lookup: str = "use_all_dns_ips"
    max_response_bytes: int = 100 * 1024 * 1024
    cluster_check: bool = True
    client_software_name: str = "penstock"
    client_software_version: str = "unknown"

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1: {self.max_in_flight}")
        for name in ("client_software_name", "client_software_version"):
            text = getattr(self, name)
            if not _SOFTWARE_PATTERN.fullmatch(text):
                raise ValueError(f"{name} may hold letters, digits, '-' and '.' only: {text!r}")
