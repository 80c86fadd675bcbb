# SPDX-License-Identifier: Apache-2.0
"""Drives a handshake as a connection does, and has the broker's part of SCRAM independently of our code."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from penstock.network.handshake import Aside, HandshakeStep
from penstock.protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.requests import NodeApiVersions
from penstock.security.sasl.handshake import SaslHandshake
from penstock.security.sasl.mechanism import Mechanism
from penstock.types import Node

NODE = Node(3, "broker-3.example", 9093)
MODERN = NodeApiVersions({17: (0, 1), 36: (0, 2)})
OLD = NodeApiVersions({17: (0, 0)})

Reply = tuple[int, Any]


def settle(step: HandshakeStep | Aside | None) -> HandshakeStep | None:
    """What comes out, whether it is found aside or not."""
    return step.work() if isinstance(step, Aside) else step


def authenticated(
    auth_bytes: bytes = b"", *, lifetime: int = 0, code: int = 0, text: str | None = ""
) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": text,
        "auth_bytes": auth_bytes,
        "session_lifetime_ms": lifetime,
    }


def begin(mechanism: Mechanism, versions: NodeApiVersions = MODERN) -> tuple[SaslHandshake, HandshakeStep]:
    """The handshake up to the first token."""
    handshake = SaslHandshake(NODE, versions, mechanism)
    step = handshake.start()
    assert step.request is not None
    assert step.request.api is SASL_HANDSHAKE
    first = settle(handshake.on_answer(step.version, {"error_code": 0, "mechanisms": [mechanism.name]}))
    assert first is not None
    return handshake, first


def token_of(step: HandshakeStep | None) -> bytes:
    assert step is not None
    if step.raw is not None:
        assert step.request is None
        return step.raw
    assert step.request is not None
    assert step.request.api is SASL_AUTHENTICATE
    body = step.request.body  # type: ignore[attr-defined]
    return bytes(body["auth_bytes"])


def run(
    mechanism: Mechanism, broker: Callable[[bytes], bytes], versions: NodeApiVersions = MODERN
) -> tuple[SaslHandshake, list[bytes]]:
    """The whole dialogue; the tokens that the client sent."""
    handshake, step = begin(mechanism, versions)
    sent = []
    following: HandshakeStep | None = step
    while following is not None:
        sent.append(token_of(following))
        answer = broker(sent[-1])
        if following.raw is not None:
            following = settle(handshake.on_answer(-1, answer))
        else:
            following = settle(handshake.on_answer(following.version, authenticated(answer, lifetime=5000)))
    return handshake, sent


class ScramServer:
    """The broker's side, written from RFC 5802 for the tests."""

    def __init__(self, hash_name: str, users: dict[str, str], *, iterations: int = 4096) -> None:
        self.hash_name = hash_name
        self.users = users
        self.iterations = iterations
        self.salt = b"salt-of-the-user"
        self.seen_bare = ""
        self._first = ""
        self._user = ""
        self._nonce = ""

    def __call__(self, token: bytes) -> bytes:
        text = token.decode("ascii")
        return self.on_first(text) if text.startswith("n,") else self.on_final(text)

    def on_first(self, text: str) -> bytes:
        assert text.startswith("n,,n=")
        self.seen_bare = text[3:]
        fields = self.seen_bare.split(",")
        self._user = fields[0][2:].replace("=2C", ",").replace("=3D", "=")
        self._nonce = fields[1][2:] + "server-part"
        salt = base64.b64encode(self.salt).decode("ascii")
        self._first = f"r={self._nonce},s={salt},i={self.iterations}"
        return self._first.encode("ascii")

    def on_final(self, text: str) -> bytes:
        without_proof, _, proof = text.rpartition(",p=")
        assert without_proof == f"c=biws,r={self._nonce}"
        salted = hashlib.pbkdf2_hmac(
            self.hash_name, self.users[self._user].encode(), self.salt, self.iterations
        )
        message = f"{self.seen_bare},{self._first},{without_proof}".encode("ascii")
        client_key = hmac.new(salted, b"Client Key", self.hash_name).digest()
        stored = hashlib.new(self.hash_name, client_key).digest()
        signature = hmac.new(stored, message, self.hash_name).digest()
        found = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, found).digest() != stored:
            return b"e=invalid-proof"
        server_key = hmac.new(salted, b"Server Key", self.hash_name).digest()
        return b"v=" + base64.b64encode(hmac.new(server_key, message, self.hash_name).digest())
