# SPDX-License-Identifier: Apache-2.0
"""What is agreed with a broker before the first request of the layers above.

A handshake is a dialogue: a request, its answer, perhaps another request, until it is satisfied or raises. Every
connection starts with ApiVersions; SASL is a second one that follows where it is configured, and comes again on the
same connection before the session that it began is over.

What may block (asking somebody for a token, deriving a key) is a step of its own, an `Aside`: it runs on another
thread, and the dialogue goes on with what it gives.

ApiVersions is peculiar: a broker that does not know the version asked answers nevertheless, in version 0, with
UNSUPPORTED_VERSION; brokers since 2.4 add which versions of ApiVersions they know. So a new version is tried first,
then the one the broker named, else version 0, which every broker knows.

Version 5 carries the cluster and the node that the client means to reach; a broker that is another one (its address was
given to a new cluster, a proxy chose wrongly) refuses with REBOOTSTRAP_REQUIRED. To a broker that does not know version
5 it would cost a round trip on each connection, so it is used only once a broker of the cluster has listed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock.error_codes import ErrorCode
from penstock.errors import broker_error
from penstock.network.settings import NetworkSettings
from penstock.network.states import CHECKING_API_VERSIONS, ConnectionState
from penstock.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE
from penstock.protocol.requests import NodeApiVersions, Request, SchemaRequest
from penstock.protocol.schema import Buffer
from penstock.types import Node

# From here on ApiVersions says which cluster and node is meant.
CLUSTER_CHECK_VERSION = 5


class HandshakeStep(NamedTuple):
    """The next request of a handshake, and its version.

    Attributes:
        request: what to ask; None with `raw`.
        version: its version; -1 with `raw`.
        raw: a token to be sent bare, with its length and nothing else; the answer is bare, too, and `on_answer` gets
            its bytes with the version -1.
    """

    request: Request | None
    version: int
    raw: bytes | None = None

    def __repr__(self) -> str:
        what = "a bare token" if self.request is None else f"{self.request.api.name} v{self.version}"
        return f"<HandshakeStep {what}>"  # a token is a secret


class Aside(NamedTuple):
    """Work that may block, in place of a step. It runs away from the I/O thread.

    Attributes:
        work: gives the next step, or None when all is agreed. Raises KafkaError to give up.
    """

    work: Callable[[], HandshakeStep | None]


class Handshake(Protocol):
    """A dialogue with the broker.

    One that authenticates may have more:

        session_lifetime_ms   when it is done, how long the broker will take requests before it wants to be convinced
            again; 0 or none is for ever.
        renew()   in place of `start`, where it is to renew the session of a connection that is in use.
        closed_error()   what it means that the broker closes the connection now; None where it means nothing.
        late_error(seconds)   what it means that an `Aside` of it has not ended for so long.
    """

    state: ConnectionState

    def start(self) -> HandshakeStep | Aside:
        """The first request."""
        ...

    def on_answer(self, version: int, body: Any) -> HandshakeStep | Aside | None:
        """Take an answer; the next request, or None when all is agreed. Raises KafkaError to give up."""
        ...


class BareToken:
    """A token as brokers want it after version 0 of SaslHandshake: without header, number or version, both ways."""

    __slots__ = ("_token",)

    api = SASL_AUTHENTICATE  # what it stands for; tells in errors what was waited for
    min_version = max_version = -1
    expects_response = True

    def __init__(self, token: bytes) -> None:
        self._token = token

    def encode(self, version: int) -> list[Buffer]:
        """The whole frame."""
        del version
        return [len(self._token).to_bytes(4, "big"), self._token]

    def decode_response(self, version: int, body: memoryview) -> bytes:
        """The broker's token."""
        del version
        return bytes(body)


class ApiVersionsHandshake:
    """Learns what the broker can do.

    Args:
        body: what is said to the broker, as far as the version has room for it.
        version: the first to be tried.
        on_result: told what the broker can do.

    Attributes:
        result: what the broker can do, once it has told.
    """

    __slots__ = ("_on_result", "_request", "_version", "result")

    state = CHECKING_API_VERSIONS

    def __init__(
        self, body: dict[str, Any], version: int, on_result: Callable[[NodeApiVersions], None]
    ) -> None:
        self._request = SchemaRequest.of(API_VERSIONS, body)
        self._version = version
        self._on_result = on_result
        self.result: NodeApiVersions | None = None

    def start(self) -> HandshakeStep:
        """The version to be tried first."""
        return HandshakeStep(self._request, self._version)

    def on_answer(self, version: int, body: dict[str, Any]) -> HandshakeStep | None:
        """Be satisfied, or ask again with an older version.

        Raises:
            BrokerError: the broker refuses to answer.
        """
        code = body["error_code"]
        if code == 0:
            self.result = NodeApiVersions.from_response(body)
            self._on_result(self.result)
            return None
        if code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            return HandshakeStep(self._request, _listed_version(body, version))
        raise broker_error(code, "the broker refused the ApiVersions request")


class HandshakeFactory:
    """Makes the first handshake with each broker, from what other brokers have told. Owned by the I/O thread.

    Args:
        settings: how the client calls itself, and whether brokers shall check what they are taken for.
        cluster_id: the cluster that is meant; None while it is not known.
    """

    def __init__(self, settings: NetworkSettings, cluster_id: Callable[[], str | None]) -> None:
        self._settings = settings
        self._cluster_id = cluster_id
        self._brokers_can_check = False  # the broker that answered last lists version 5

    def make(self, node: Node) -> ApiVersionsHandshake:
        """The handshake with that node."""
        body: dict[str, Any] = {
            "client_software_name": self._settings.client_software_name,
            "client_software_version": self._settings.client_software_version,
        }
        version = CLUSTER_CHECK_VERSION - 1
        # A bootstrap server may be any broker of any cluster: there is nothing to check yet.
        if self._settings.cluster_check and self._brokers_can_check and node.id >= 0:
            cluster_id = self._cluster_id()
            if cluster_id is not None:
                body |= {"cluster_id": cluster_id, "node_id": node.id}
                version = CLUSTER_CHECK_VERSION
        return ApiVersionsHandshake(body, version, self._on_result)

    def _on_result(self, versions: NodeApiVersions) -> None:
        offered = versions.range(API_VERSIONS.key)
        self._brokers_can_check = offered is not None and offered[1] >= CLUSTER_CHECK_VERSION


def _listed_version(body: dict[str, Any], refused: int) -> int:
    for row in body["api_keys"]:
        if row["api_key"] == API_VERSIONS.key:
            # A broker that lists what it has just refused must not be asked for it for ever.
            return max(0, min(int(row["max_version"]), refused - 1))
    return 0
