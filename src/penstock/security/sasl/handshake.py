# SPDX-License-Identifier: Apache-2.0
"""The dialogue of SASL on one connection: which mechanism, then its tokens until both sides are satisfied.

The version of SaslHandshake decides how tokens are sent: after version 1 each one is a SaslAuthenticate request, after
version 0 it is bare, and a broker that refuses it closes the connection without an answer. So version 0 is used only
where a broker does not list SaslAuthenticate (before 1.0).

Every token gets one answer, also the last one. What a mechanism does may block, so it is done aside, unless the
mechanism says that it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock._escaping import told
from penstock.error_codes import ErrorCode
from penstock.errors import AuthenticationError, KafkaError, error_row
from penstock.network.handshake import Aside, HandshakeStep
from penstock.network.states import AUTHENTICATING
from penstock.protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.requests import NodeApiVersions, SchemaRequest
from penstock.security.quoting import quoted
from penstock.security.sasl.mechanism import Mechanism
from penstock.types import Node

# The most that a broker takes by default (sasl.server.max.receive.size).
MOST_TOKEN_BYTES = 524_288
# The longest exchange there is, Kerberos with referrals, takes far fewer.
MOST_TOKENS = 32
# A year: a lifetime that is longer is none, and must not overflow a timer.
LONGEST_SESSION_MS = 366 * 86_400_000

_LISTED_MECHANISMS = 20
# The longest name there is has 20; RFC 4422 allows no longer one than that.
_MOST_NAME = 64
_DEFAULT_ADVICE = "check the credentials"
_NO_SASL = (
    "the listener does not use SASL: set security.protocol to PLAINTEXT, or to SSL where it uses TLS, or check the "
    "port in bootstrap.servers"
)
# What stands between the parts of a token.
_BETWEEN = re.compile(r"[\x00-\x20]+")


class SaslHandshake:
    """Implements `penstock.network.handshake.Handshake`.

    Args:
        node: the broker.
        versions: what it can do.
        mechanism: how the client proves who it is. Used for this handshake only.

    Attributes:
        session_lifetime_ms: how long the broker accepts this authentication, once it has ended; 0 for ever.
    """

    state = AUTHENTICATING

    def __init__(self, node: Node, versions: NodeApiVersions, mechanism: Mechanism) -> None:
        self._node = node
        self._versions = versions
        self._mechanism = mechanism
        self._blocks = bool(getattr(mechanism, "blocks", True))
        self._bare = versions.range(SASL_AUTHENTICATE.key) is None
        self._tokens = 0
        self._sent = b""  # the last token
        self._agreed = False
        self._renews = False
        self.session_lifetime_ms = 0

    def start(self) -> HandshakeStep:
        """Name the mechanism.

        Raises:
            AuthenticationError: the listener has no SASL, or the mechanism cannot be used with so old a broker.
            UnsupportedVersionError: the broker does not know SASL in any form that we know.
        """
        if self._versions.range(SASL_HANDSHAKE.key) is None:
            raise self._error(_NO_SASL)  # Kafka lists it for every listener, and says so with an error
        if self._bare and getattr(self._mechanism, "needs_sasl_authenticate", False):
            raise self._error("the broker is older than 1.0: this mechanism cannot be used with it")
        request = SchemaRequest.of(SASL_HANDSHAKE, {"mechanism": self._mechanism.name})
        version = self._versions.pick(SASL_HANDSHAKE, max_version=0 if self._bare else None)
        return HandshakeStep(request, version)

    def renew(self) -> HandshakeStep:
        """Name the mechanism again, on a connection whose session ends soon.

        Raises:
            AuthenticationError: as `start`.
        """
        self._renews = True
        return self.start()

    def on_answer(self, version: int, body: Any) -> HandshakeStep | Aside | None:
        """Go on: the first token, the next one, or the end.

        Raises:
            AuthenticationError: the broker refuses, or its proof is wrong.
        """
        if not self._agreed:
            self._check_handshake(body)
            self._agreed = True
            return self._say(self._mechanism.first)
        if version < 0:
            challenge = bytes(body)
        else:
            self._check_authenticate(body)
            challenge = bytes(body["auth_bytes"])
            self.session_lifetime_ms = min(max(0, body["session_lifetime_ms"]), LONGEST_SESSION_MS)
        return self._say(lambda: self._mechanism.next(challenge))

    def closed_error(self) -> KafkaError | None:
        """What it means that the broker closes the connection now; None where it means nothing in particular.

        With bare tokens that is the only way to refuse one.
        """
        if not self._bare or not self._tokens:
            return None
        return self._error(
            f"the broker closed the connection after the client's token, which is how a broker before 1.0 refuses "
            f"it: {self._advice}"
        )

    def late_error(self, seconds: float) -> AuthenticationError:
        """The error for a step of the mechanism that has not ended after so long."""
        return self._error(
            f"the mechanism has not come back after {seconds:.1f} s: what it asks does not answer (a file, a service "
            "for credentials, a key distribution center)"
        )

    def _say(self, find: Callable[[], bytes | None]) -> HandshakeStep | Aside | None:
        if self._blocks:
            return Aside(lambda: self._step(find))
        return self._step(find)

    def _step(self, find: Callable[[], bytes | None]) -> HandshakeStep | None:
        token = self._token(find)
        if token is None:
            return None
        self._tokens += 1
        if self._tokens > MOST_TOKENS:
            raise self._error(f"the exchange has not come to an end after {MOST_TOKENS} tokens")
        if len(token) > MOST_TOKEN_BYTES:
            raise self._error(
                f"the token has {len(token)} bytes; a broker takes {MOST_TOKEN_BYTES} "
                "(sasl.server.max.receive.size)"
            )
        self._sent = token
        if self._bare:
            return HandshakeStep(None, -1, token)
        request = SchemaRequest.of(SASL_AUTHENTICATE, {"auth_bytes": token})
        return HandshakeStep(request, self._versions.pick(SASL_AUTHENTICATE))

    def _token(self, find: Callable[[], bytes | None]) -> bytes | None:
        try:
            token: object = find()
        except AuthenticationError as error:
            text = str(error)
        except KafkaError:
            raise
        except Exception as error:  # noqa: BLE001  # a mechanism of the user's own: whatever it raises is a refusal
            # Not as the cause: its text may hold a secret.
            text = f"the mechanism failed: {told(error)}"
        else:
            if token is None or isinstance(token, bytes):
                return token
            text = f"the mechanism gave {type(token).__name__} for a token, not bytes"
        raise self._error(text)

    def _check_handshake(self, body: dict[str, Any]) -> None:
        code = body["error_code"]
        if code == 0:
            return
        name = self._mechanism.name
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = _listed(body["mechanisms"])
            raise self._error(
                f"the listener does not offer the SASL mechanism {name}; it offers {offered}: set sasl.mechanism to "
                "one of these, or connect to another listener"
            )
        if code == ErrorCode.ILLEGAL_SASL_STATE and self._renews:
            # It has taken an authentication on this connection before: the settings are right.
            raise self._error(
                "the broker does not renew the session now, which it does once a second at most"
            )
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._error(_NO_SASL)
        raise self._error(f"the broker refused the SASL mechanism {name}: {_named(code)}")

    def _check_authenticate(self, body: dict[str, Any]) -> None:
        code = body["error_code"]
        if code == 0:
            return
        said = quoted(body["error_message"] or "", self._secrets()) or _named(code)
        if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            getattr(self._mechanism, "refused", _nothing)()
            raise self._error(f"{said}; {self._advice}")
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._error(f"the broker did not expect a token now: {said}")
        raise self._error(f"the broker refused the token: {said} ({_named(code)})")

    def _secrets(self) -> tuple[str, ...]:
        """What the broker was sent, and may quote: that is logged, and a log is read by many."""
        named: tuple[str, ...] | None = getattr(self._mechanism, "secrets", None)
        if named is not None:
            return named
        sent = self._sent.decode("utf-8", "replace")
        return tuple(part for part in (sent, *_BETWEEN.split(sent)) if part and part != self._mechanism.user)

    @property
    def _advice(self) -> str:
        return str(getattr(self._mechanism, "advice", _DEFAULT_ADVICE))

    def _error(self, text: str) -> AuthenticationError:
        mechanism, user = self._mechanism.name, self._mechanism.user
        who = f" as {quoted(user)}" if user else ""
        return AuthenticationError(
            f"authentication by {mechanism}{who} failed: {text}", mechanism=mechanism, user=user or None
        )

    def __repr__(self) -> str:
        return f"<SaslHandshake {self._mechanism.name} with {self._node}, {self._tokens} tokens>"


def _nothing() -> None:
    """For mechanisms that do not want to know."""


def _named(code: int) -> str:
    return f"{error_row(code).name}, error {code}"


def _listed(mechanisms: list[str] | None) -> str:
    if not mechanisms:
        return "none"
    shown = ", ".join(
        quoted(name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}...")
        for name in mechanisms[:_LISTED_MECHANISMS]
    )
    left = len(mechanisms) - _LISTED_MECHANISMS
    return shown if left <= 0 else f"{shown} and {left} more"
