# SPDX-License-Identifier: Apache-2.0
"""What is agreed with a broker before the first request of the layers above.

A handshake is a dialogue: a request, its answer, perhaps another request, until it is satisfied or raises. Every
connection starts with ApiVersions; SASL is a second one that follows where it is configured.

ApiVersions is peculiar: a broker that does not know the version asked answers nevertheless, in version 0, with
UNSUPPORTED_VERSION; brokers since 2.4 add which versions of ApiVersions they know. So the newest version is tried
first, then the one the broker named, else version 0, which every broker knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from penstock.errors import broker_error
from penstock.network.settings import NetworkSettings
from penstock.network.states import CHECKING_API_VERSIONS, ConnectionState
from penstock.protocol.api_versions import NodeApiVersions
from penstock.protocol.messages import API_VERSIONS
from penstock.protocol.requests import Request, SchemaRequest

UNSUPPORTED_VERSION = 35


class HandshakeStep(NamedTuple):
    """The next request of a handshake, and its version."""

    request: Request
    version: int


class Handshake(Protocol):
    """A dialogue with the broker."""

    state: ConnectionState

    def start(self) -> HandshakeStep:
        """The first request."""
        ...

    def on_answer(self, version: int, body: Any) -> HandshakeStep | None:
        """Take an answer; the next request, or None when all is agreed. Raises KafkaError to give up."""
        ...


class ApiVersionsHandshake:
    """Learns what the broker can do.

    Attributes:
        result: what the broker can do, once it has told.
    """

    __slots__ = ("_request", "result")

    state = CHECKING_API_VERSIONS

    def __init__(self, settings: NetworkSettings) -> None:
        self._request = SchemaRequest.of(
            API_VERSIONS,
            {
                "client_software_name": settings.client_software_name,
                "client_software_version": settings.client_software_version,
            },
        )
        self.result: NodeApiVersions | None = None

    def start(self) -> HandshakeStep:
        """The newest version that we know."""
        return HandshakeStep(self._request, API_VERSIONS.max_version)

    def on_answer(self, version: int, body: dict[str, Any]) -> HandshakeStep | None:
        """Be satisfied, or ask again with an older version.

        Raises:
            BrokerError: the broker refuses to answer.
        """
        code = body["error_code"]
        if code == 0:
            self.result = NodeApiVersions.from_response(body)
            return None
        if code == UNSUPPORTED_VERSION and version > 0:
            return HandshakeStep(self._request, _listed_version(body, version))
        raise broker_error(code, "the broker refused the ApiVersions request")


def _listed_version(body: dict[str, Any], refused: int) -> int:
    for row in body["api_keys"]:
        if row["api_key"] == API_VERSIONS.key:
            # A broker that lists what it has just refused must not be asked for it for ever.
            return max(0, min(int(row["max_version"]), refused - 1))
    return 0
