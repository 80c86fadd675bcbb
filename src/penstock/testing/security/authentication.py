# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of one connection, as a broker finds it out by SASL.

Rules, as Kafka 4.3 has them:
1. Before a client is known, only ApiVersions and SaslHandshake are taken; anything else ends the connection.
2. After SaslHandshake come the mechanism's tokens: as SaslAuthenticate after version 1, bare after version 0. Another
   request in between is answered with ILLEGAL_SASL_STATE, and ends the connection.
3. An authentication that has expired ends the connection at the next request, unless that is a SaslHandshake, which
   begins another one. One that is not due is ILLEGAL_SASL_STATE, and the connection stays.
4. The user stays the same for the life of a connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.testing.security.rights import Acl
from penstock.testing.security.settings import FakeSecurity

_SALT: Final = b"salt of the fake cluster"
_SHORTEST_TURN_SECONDS: Final = 1.0  # between two that are repeated on one connection
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Admission(Enum):
    """What is done with a request."""

    TAKEN = auto()
    ILLEGAL = auto()  # answered with ILLEGAL_SASL_STATE, then the connection ends
    CLOSED = auto()  # the connection ends without an answer


class TokenAnswer(NamedTuple):
    """What a broker says to a token.

    Attributes:
        token: for the client.
        error: why it is refused; "" where it is not.
        done: the client is known now.
        code: the error as a number.
    """

    token: bytes = b""
    error: str = ""
    done: bool = False
    code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED


class _State(Enum):
    UNKNOWN = auto()
    TOKENS = auto()
    KNOWN = auto()


_Step = Callable[[bytes], TokenAnswer]


class Authentication:
    """What one connection has proved.

    Attributes:
        user: who it is; "" while that is not known, or where nobody asks.

    Args:
        security: what the cluster wants.
        wall: seconds since the epoch: tokens have an end in it.
    """

    def __init__(self, security: FakeSecurity, wall: Callable[[], float]) -> None:
        self.user = ""
        self._security = security
        self._wall = wall
        self._state = _State.UNKNOWN if security.uses_sasl else _State.KNOWN
        self._is_bare = False
        self._mechanism = ""
        self._step: _Step | None = None
        self._claimed = ""
        self._token_end = math.inf
        self._repeated_at = -math.inf
        self._ends_at = math.inf

    @property
    def acl(self) -> Acl:
        """What the client may do."""
        return self._security.acl(self.user)

    def note_certificate(self, name: str) -> None:
        """The client has shown a certificate of that name. That is the user, unless SASL names another one."""
        if not self._security.uses_sasl:
            self.user = name

    @property
    def expects_bare_token(self) -> bool:
        """Whether the next frame is a token and nothing else."""
        return self._state is _State.TOKENS and self._is_bare

    def admit(self, api_key: int, now: float) -> Admission:
        """Whether a request may be handled."""
        if not self._security.uses_sasl or api_key == SASL_HANDSHAKE.key:
            return Admission.TAKEN
        if self._state is _State.UNKNOWN:
            return Admission.TAKEN if api_key == API_VERSIONS.key else Admission.CLOSED
        if self._state is _State.TOKENS:
            return Admission.TAKEN if api_key == SASL_AUTHENTICATE.key else Admission.ILLEGAL
        return Admission.CLOSED if now >= self._ends_at else Admission.TAKEN

    def begin(self, mechanism: str, version: int, now: float) -> ErrorCode:
        if not self._security.uses_sasl or self._state is _State.TOKENS:
            return ErrorCode.ILLEGAL_SASL_STATE
        is_again = self._state is _State.KNOWN
        if is_again and (self._ends_at == math.inf or now - self._repeated_at < _SHORTEST_TURN_SECONDS):
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self._security.mechanisms:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if is_again:
            self._repeated_at = now
        self._state = _State.TOKENS
        self._is_bare = version == 0
        self._mechanism = mechanism
        self._token_end = math.inf
        if mechanism == "PLAIN":
            self._step = self._plain
        elif mechanism == "OAUTHBEARER":
            self._step = self._bearer
        else:
            self._step = self._scram_first
        return ErrorCode.NONE

    def token(self, token: bytes, now: float) -> TokenAnswer:
        """Take a token of the client. After one that is refused the connection ends."""
        if self._step is None:
            return TokenAnswer(
                error="SaslAuthenticate request received after successful authentication",
                code=ErrorCode.ILLEGAL_SASL_STATE,
            )
        answer = self._step(token)
        if answer.error or not answer.done:
            return answer
        if self.user and self.user != self._claimed:
            return TokenAnswer(
                error="Cannot change principals during re-authentication from "
                f"User.{self.user}: User.{self._claimed}"
            )
        self.user = self._claimed
        self._state = _State.KNOWN
        self._step = None
        self._ends_at = now + self._lifetime_seconds()
        return answer

    def session_lifetime_ms(self, now: float) -> int:
        """As SaslAuthenticate tells it; 0 where there is no end, or the client is not known yet."""
        if self._state is not _State.KNOWN or self._ends_at == math.inf:
            return 0
        return max(1, int((self._ends_at - now) * 1000))

    def _lifetime_seconds(self) -> float:
        limit = self._security.session_seconds or math.inf
        return min(limit, self._token_end - self._wall())

    # ---- mechanisms

    def _plain(self, token: bytes) -> TokenAnswer:
        parts = token.split(b"\0")
        if len(parts) != 3:
            return TokenAnswer(error="Invalid SASL/PLAIN response: expected 3 tokens, got " + str(len(parts)))
        name, password = parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace")
        if not name or not password:
            return TokenAnswer(
                error=f"Authentication failed: {'username' if not name else 'password'} not specified"
            )
        if self._security.users.get(name) != password:
            return TokenAnswer(error="Authentication failed: Invalid username or password")
        self._claimed = name
        return TokenAnswer(done=True)

    def _scram_first(self, token: bytes) -> TokenAnswer:
        found = re.fullmatch(
            r"n,,(n=([^,]+),r=([^,]+)(?:,tokenauth=true)?)", token.decode("ascii", "replace")
        )
        name = "" if found is None else found[2].replace("=2C", ",").replace("=3D", "=")
        if found is None or name not in self._security.users:
            return self._bad_credentials()
        salt = base64.b64encode(_SALT).decode("ascii")
        nonce = found[3] + "fakebroker"
        server_first = f"r={nonce},s={salt},i={self._security.scram_iterations}"

        def final(proof: bytes) -> TokenAnswer:
            return self._scram_final(proof, name, nonce, f"{found[1]},{server_first}")

        self._step = final
        return TokenAnswer(server_first.encode("ascii"))

    def _scram_final(self, token: bytes, name: str, nonce: str, said: str) -> TokenAnswer:
        text = token.decode("ascii", "replace")
        without_proof, mark, proof = text.rpartition(",p=")
        if not mark or without_proof != f"c=biws,r={nonce}":
            return self._bad_credentials()
        hash_name = _HASHES[self._mechanism]
        password = self._security.users.get(name, "").encode()
        # Computed here and not by the client's module, whose mistakes would hide themselves.
        salted = hashlib.pbkdf2_hmac(hash_name, password, _SALT, self._security.scram_iterations)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        message = f"{said},{without_proof}".encode("ascii")
        signature = hmac.digest(stored_key, message, hash_name)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if not hmac.compare_digest(base64.b64encode(expected), proof.encode("ascii", "replace")):
            return self._bad_credentials()
        self._claimed = name
        server_key = hmac.digest(salted, b"Server Key", hash_name)
        verifier = hmac.digest(server_key, message, hash_name)
        if self._security.wrong_signature:
            verifier = bytes(len(verifier))
        return TokenAnswer(b"v=" + base64.b64encode(verifier), done=True)

    def _bearer(self, token: bytes) -> TokenAnswer:
        found = re.fullmatch(rb"n,(?:a=[^,]*)?,\x01auth=Bearer ([^\x01]+)\x01(?:[^\x01]+\x01)*\x01", token)
        if found is None:
            return TokenAnswer(error="Invalid OAUTHBEARER client first message")
        claims = _claims(found[1])
        user, end = claims.get("sub"), claims.get("exp")
        if not isinstance(user, str) or not isinstance(end, int | float) or end <= self._wall():
            refusal = b'{"status":"invalid_token"}'
            self._step = lambda _: TokenAnswer(error=refusal.decode("ascii"))
            return TokenAnswer(refusal)
        self._claimed = user
        self._token_end = float(end)
        return TokenAnswer(done=True)

    def _bad_credentials(self) -> TokenAnswer:
        return TokenAnswer(
            error=f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )


def _claims(token: bytes) -> dict[str, object]:
    """The claims of a JWT that nobody has signed; none where it is not one."""
    parts = token.split(b".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}
