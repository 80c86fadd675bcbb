# SPDX-License-Identifier: Apache-2.0
"""What is agreed with a broker before the first request of the layers above.

A handshake is a dialogue: a request, its answer, perhaps another request, until it is satisfied or raises. Every
connection starts with ApiVersions; SASL is a second one that follows where it is configured, and comes again on the
same connection before the session that it began is over.

What may block (asking somebody for a token, deriving a key) is a step of its own, an `Aside`: it runs on another
thread, and the dialogue goes on with what it gives.

ApiVersions is peculiar: a broker that does not know the version asked answers nevertheless, in version 0, with
UNSUPPORTED_VERSION; brokers since 2.4 add which versions of ApiVersions they know. So a new version is tried first,
then the one the broker named, else version 0, which every broker since 0.10 knows. Before 0.10 there is no such
request: `old_brokers` has the rules.

Version 5 carries the cluster and the node that the client means to reach; a broker that is another one (its address was
given to a new cluster, a proxy chose wrongly) refuses with REBOOTSTRAP_REQUIRED. To a broker that does not know version
5 it would cost a round trip on each connection, so it is used only once a broker of the cluster has listed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from penstock.error_codes import ErrorCode
from penstock.errors import ProtocolError, broker_error
from penstock.network.old_brokers import Approach, OldBrokers, OpeningMode
from penstock.network.settings import NetworkSettings
from penstock.network.states import CHECKING_API_VERSIONS, ConnectionState
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import API_VERSIONS, METADATA, SASL_AUTHENTICATE
from penstock.protocol.requests import NodeApiVersions, Request, SchemaRequest
from penstock.protocol.schema import ApiSchema, Buffer
from penstock.types import Node

# From here on ApiVersions says which cluster and node is meant.
CLUSTER_CHECK_VERSION = 5

# After these, ApiVersions is asked for in an older version: the broker does not know the version, or it does not like
# what only newer versions say, such as the name of the client.
_ASK_OTHERWISE = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST})

# Asks a broker of any age for the brokers. An empty list would ask for all topics, and a good name might create a
# topic: this one is refused by all releases.
_ASK_FOR_BROKERS = SchemaRequest.of(METADATA, {"topics": [{"name": "not a topic"}]}, max_version=0)


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


class Pause(NamedTuple):
    """In place of a step: send nothing now, and wait for the next answer of the broker."""


class StartAgain(Exception):
    """The dialogue needs a new connection; its text says why."""


class Handshake(Protocol):
    """A dialogue with the broker.

    The first one of a connection may have more:

        patience   seconds without an answer, after which `on_silence` gives a request to send meanwhile.
        on_silence()   that request.
        on_lost(closed, now)   the connection is given up; `closed`: by the broker.

    One that authenticates may have more:

        session_lifetime_ms   when it is done: how long the broker takes requests before the client must authenticate
            again; 0 or none is for ever.
        renew()   in place of `start`, where it is to renew the session of a connection that is in use.
        closed_error()   what it means that the broker closes the connection now; None where it means nothing.
        late_error(seconds)   what it means that an `Aside` of it has not ended for so long.
    """

    state: ConnectionState

    def start(self) -> HandshakeStep | Aside:
        """The first request."""
        ...

    def on_answer(self, version: int, body: Any) -> HandshakeStep | Aside | Pause | None:
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


class AskForVersions:
    """The ApiVersions request, with more patience for odd answers than other requests have.

    Args:
        body: what is said to the broker, as far as the version has room for it.
    """

    __slots__ = ("_body",)

    api = API_VERSIONS
    min_version = API_VERSIONS.min_version
    max_version = API_VERSIONS.max_version
    expects_response = True

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version."""
        return encode_request_body(API_VERSIONS, version, self._body)

    def decode_response(self, version: int, body: memoryview) -> dict[str, Any]:
        """The answer as a dict.

        A refusal may come in version 0, whatever was asked. Servers that are not Kafka refuse in forms that are no
        version at all: librdkafka's mock cluster does. Then the code is enough to ask in another version.

        Raises:
            ProtocolError: the bytes are not an answer in that version, nor a refusal.
        """
        try:
            return decode_response_body(API_VERSIONS, version, body)
        except ProtocolError:
            code = int.from_bytes(body[:2], "big", signed=True)
            if code not in _ASK_OTHERWISE:
                raise
            return {"error_code": code, "api_keys": []}


class ApiVersionsHandshake:
    """Learns what the broker can do.

    Args:
        node: the broker.
        body: what is said to the broker, as far as the version has room for it.
        version: the version of ApiVersions to be tried first.
        approach: how to begin, and how long to wait.
        old_brokers: remembers what the broker did.
        on_result: told what the broker can do, when it has told so itself.

    Attributes:
        result: what the broker can do, once that is known.
    """

    __slots__ = (
        "_approach",
        "_node",
        "_old_brokers",
        "_on_result",
        "_request",
        "_unanswered",
        "_version",
        "_versions_asked",
        "result",
    )

    state = CHECKING_API_VERSIONS

    def __init__(
        self,
        node: Node,
        body: dict[str, Any],
        version: int,
        approach: Approach,
        old_brokers: OldBrokers,
        on_result: Callable[[NodeApiVersions], None],
    ) -> None:
        self._node = node
        self._request = AskForVersions(body)
        self._version = version
        self._approach = approach
        self._old_brokers = old_brokers
        self._on_result = on_result
        self._unanswered: list[ApiSchema] = []  # what was asked, the oldest first
        self._versions_asked = False
        self.result: NodeApiVersions | None = None

    @property
    def patience(self) -> float:
        """Seconds of silence until `on_silence` is called; infinity is never."""
        return self._approach.patience if self._unanswered == [API_VERSIONS] else math.inf

    def start(self) -> HandshakeStep | None:
        """The first request; None where the broker is asked nothing."""
        if self._approach.mode is OpeningMode.ASSUME:
            self.result = self._old_brokers.assumed(self._node)
            return None
        return (
            self._ask_for_brokers() if self._approach.mode is OpeningMode.PROBE else self._ask_for_versions()
        )

    def on_answer(self, version: int, body: dict[str, Any]) -> HandshakeStep | Pause | None:
        """Be satisfied, or ask again with an older version.

        Raises:
            BrokerError: the broker refuses to answer.
            StartAgain: another connection must tell whether the broker is an old one.
        """
        # Brokers answer in order: what was asked before, and is passed over, was dropped.
        answered = METADATA if "brokers" in body else API_VERSIONS
        place = self._unanswered.index(answered)
        dropped = self._unanswered[:place]
        del self._unanswered[: place + 1]
        if dropped:
            return self._on_dropped()
        if answered is METADATA:
            return Pause() if self._versions_asked else self._ask_for_versions()
        return self._on_versions(version, body)

    def on_silence(self) -> HandshakeStep:
        """Ask for something else: a broker that answers this has dropped what was asked before."""
        return self._ask_for_brokers()

    def on_lost(self, now: float, *, closed: bool) -> None:
        """The connection is given up, or closed by the broker, before anything was agreed."""
        if closed and API_VERSIONS in self._unanswered:
            mode = self._approach.mode
            self._old_brokers.on_closed(self._node, mode, now, after_metadata=mode is OpeningMode.PROBE)
        elif closed and self._unanswered:
            self._old_brokers.on_closed(self._node, self._approach.mode, now, after_metadata=False)
        else:
            self._old_brokers.on_silent(self._node)

    # ---- inside

    def _ask_for_versions(self) -> HandshakeStep:
        self._versions_asked = True
        self._unanswered.append(API_VERSIONS)
        return HandshakeStep(self._request, self._version)

    def _ask_for_brokers(self) -> HandshakeStep:
        self._unanswered.append(METADATA)
        return HandshakeStep(_ASK_FOR_BROKERS, 0)

    def _on_dropped(self) -> HandshakeStep | None:
        self.result = self._old_brokers.on_dropped(self._node, self._approach.mode)
        if self.result is None:
            raise StartAgain("it does not answer ApiVersions, and a second connection is to confirm it")
        return None

    def _on_versions(self, version: int, body: dict[str, Any]) -> HandshakeStep | None:
        code = body["error_code"]
        if code == 0:
            self._old_brokers.on_answered(self._node)
            self.result = NodeApiVersions.from_response(body)
            self._on_result(self.result)
            return None
        if version > 0 and code in _ASK_OTHERWISE:
            self._version = _listed_version(body, version)
            return self._ask_for_versions()
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
        self._old_brokers = OldBrokers(settings.broker_version_fallback)
        self._brokers_can_check = False  # the broker that answered last lists version 5

    def make(self, node: Node, now: float, *, authenticates: bool) -> ApiVersionsHandshake:
        """The handshake with that node.

        Args:
            node: the broker.
            now: the time.
            authenticates: the client will tell the broker who it is.
        """
        body: dict[str, Any] = {
            "client_software_name": self._settings.client_software_name,
            "client_software_version": self._settings.client_software_version,
        }
        approach = self._old_brokers.approach(node, now, authenticates=authenticates)
        version = 0 if approach.oldest else CLUSTER_CHECK_VERSION - 1
        # A bootstrap server may be any broker of any cluster: there is nothing to check yet.
        if version and self._settings.cluster_check and self._brokers_can_check and node.id >= 0:
            cluster_id = self._cluster_id()
            if cluster_id is not None:
                body |= {"cluster_id": cluster_id, "node_id": node.id}
                version = CLUSTER_CHECK_VERSION
        return ApiVersionsHandshake(node, body, version, approach, self._old_brokers, self._on_result)

    def keep_nodes(self, kept: Iterable[Node]) -> None:
        """Forget what all other brokers have shown."""
        self._old_brokers.keep_nodes(kept)

    def _on_result(self, versions: NodeApiVersions) -> None:
        offered = versions.range(API_VERSIONS.key)
        self._brokers_can_check = offered is not None and offered[1] >= CLUSTER_CHECK_VERSION


def _listed_version(body: dict[str, Any], refused: int) -> int:
    for row in body["api_keys"]:
        if row["api_key"] == API_VERSIONS.key:
            # A broker that lists what it has just refused must not be asked for it for ever.
            return max(0, min(int(row["max_version"]), refused - 1))
    return 0
