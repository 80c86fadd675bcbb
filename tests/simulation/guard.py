# SPDX-License-Identifier: Apache-2.0
"""Brokers that authenticate clients: SASL between the network and the fake cluster, with all that can go wrong.

A `Guard` stands before every broker. It answers SaslHandshake and SaslAuthenticate, in the order of the requests, and
lets nothing else through without. What goes wrong, as its random source decides: an identity is refused, an answer
takes longer than a connection may, the connection is cut in the middle, a session is over before its time.

Rules that are checked here:
1. Nothing is asked before the client is authenticated, and nothing while it authenticates anew.
2. ApiVersions comes before that, and not again.
3. A session is not renewed within a second of the last time, which brokers do not take.

A session may end for a request that is on its way: the client counts from when it has the answer. Such a connection is
closed without an answer.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import AuthenticationError
from penstock.network.handshake import Aside, HandshakeStep
from penstock.network.states import AUTHENTICATING
from penstock.protocol.codec import encode_response_body
from penstock.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.requests import NodeApiVersions, SchemaRequest
from penstock.types import Node

if TYPE_CHECKING:
    from simulation.wire import Link

_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 2  # flexible
_BUSY = 0.001  # seconds until it is worth looking again whether the requests before are answered
_REFUSED = 58
_SHORTEST_SESSION = 1.0
SASL_KEYS = frozenset({SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key})


class TokenHandshake:
    """The client's part: names a mechanism, finds a token aside, and takes the answer."""

    state = AUTHENTICATING

    def __init__(self) -> None:
        self.session_lifetime_ms = 0

    def start(self) -> HandshakeStep:
        return HandshakeStep(SchemaRequest.of(SASL_HANDSHAKE, {"mechanism": "TOKEN"}), _HANDSHAKE_VERSION)

    def on_answer(self, version: int, body: dict[str, Any]) -> HandshakeStep | Aside | None:
        if "mechanisms" in body:
            token = SchemaRequest.of(SASL_AUTHENTICATE, {"auth_bytes": b"token"})
            return Aside(lambda: HandshakeStep(token, _AUTHENTICATE_VERSION))
        if body["error_code"]:
            raise AuthenticationError("the guard refuses", mechanism="TOKEN")
        self.session_lifetime_ms = body["session_lifetime_ms"]
        return None


def authenticate(node: Node, versions: NodeApiVersions) -> TokenHandshake:
    """Make the handshake of a connection; see `NetworkBackend.authenticate`."""
    del node, versions
    return TokenHandshake()


@dataclass
class ConnectionAuth:
    """What the guard knows of one connection."""

    admitted: bool = False
    in_handshake: bool = False  # between SaslHandshake and the last answer
    admitted_at: float = -math.inf
    ends_at: float = math.inf


class Guard:
    """Stands before all brokers of a world.

    Args:
        rng: what goes wrong.
        lifetime: seconds that a session has, at most; 0: no end.

    Attributes:
        admissions: sessions that were begun or renewed.
        mishaps: authentications that went wrong because the guard wanted it so.
    """

    def __init__(self, rng: random.Random, lifetime: float) -> None:
        self._rng = rng
        self._lifetime = lifetime
        self._connections: dict[Link, ConnectionAuth] = {}
        self.accepts_all = False  # from now on
        self.admissions = 0
        self.renewals = 0
        self.mishaps = 0
        self.refusals = 0

    def lets_through(self, link: Link, frame: bytes) -> bool:
        """Whether a request that has arrived is for the broker; otherwise the guard deals with it."""
        auth = self._connections.setdefault(link, ConnectionAuth())
        key = int.from_bytes(frame[4:6], "big")
        world = link.world
        if key == SASL_HANDSHAKE.key and world.clock.time < auth.admitted_at + _SHORTEST_SESSION:
            world.violate(f"a session with broker {link.broker_id} is renewed too soon")
        if key in SASL_KEYS:
            auth.in_handshake = True
            self._take(link, auth, key, frame)
            return False
        if auth.in_handshake or (not auth.admitted and key != API_VERSIONS.key):
            world.violate(f"API {key} is sent to broker {link.broker_id} while it waits for SASL")
        if key == API_VERSIONS.key:
            if auth.admitted:
                world.violate(f"broker {link.broker_id} is asked for ApiVersions again")
            return True
        if world.clock.time >= auth.ends_at:
            self._hang_up(link, "the session is over")
            return False
        return True

    def _take(self, link: Link, auth: ConnectionAuth, key: int, frame: bytes) -> None:
        session = link.session
        if link.severed or session is None or session.closed:
            return
        if session._requests or session._pending is not None or session._held is not None:
            link.world.after(_BUSY, self._take, link, auth, key, frame)  # brokers answer in order
            return
        link.world.pump()
        mishap = 1.0 if self.accepts_all else self._rng.random()
        if mishap < 0.06:
            self._go_wrong(link)
            link.world.cut(link)
            return
        if mishap < 0.12:
            self._go_wrong(link)
            link.stall_answers(self._rng.random())
        if key == SASL_HANDSHAKE.key:
            self._answer(link, frame, {"error_code": 0, "mechanisms": ["TOKEN"]})
            return
        refused = 0.12 <= mishap < 0.2
        if refused:
            self._go_wrong(link)
            self.refusals += 1
        self._judge(link, auth, frame, refused)

    def _judge(self, link: Link, auth: ConnectionAuth, frame: bytes, refused: bool) -> None:
        lifetime = 0.0 if refused else self._lifetime
        body = {
            "error_code": _REFUSED if refused else 0,
            "error_message": None,
            "auth_bytes": b"",
            "session_lifetime_ms": round(lifetime * 1000),
        }
        self._answer(link, frame, body)
        if refused:
            self._hang_up(link, "the guard refuses")
            return
        self.admissions += 1
        self.renewals += auth.admitted
        auth.admitted, auth.in_handshake = True, False
        auth.admitted_at = link.world.clock.time
        auth.ends_at = link.world.clock.time + lifetime if lifetime else math.inf
        if lifetime and not self.accepts_all and self._rng.random() < 0.05:
            self._go_wrong(link)
            auth.ends_at = link.world.clock.time + lifetime * self._rng.random() * 0.8

    def _answer(self, link: Link, frame: bytes, body: dict[str, Any]) -> None:
        api = SASL_HANDSHAKE if int.from_bytes(frame[4:6], "big") == SASL_HANDSHAKE.key else SASL_AUTHENTICATE
        version = int.from_bytes(frame[6:8], "big")
        tags = b"\0" if api.response_header_version(version) >= 1 else b""
        answer = frame[8:12] + tags + b"".join(encode_response_body(api, version, body))
        link.send_down(len(answer).to_bytes(4, "big") + answer)

    def _hang_up(self, link: Link, reason: str) -> None:
        link.world.note("%s: %s", link, reason)
        link.world.on_trouble(0.0)
        if link.session is not None:
            link.session.close(reason)
        link.world.pump()

    def _go_wrong(self, link: Link) -> None:
        self.mishaps += 1
        link.world.on_trouble(1.5)
