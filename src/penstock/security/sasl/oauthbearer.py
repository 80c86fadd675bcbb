# SPDX-License-Identifier: Apache-2.0
"""OAUTHBEARER (RFC 7628): a token, and what else the broker wants to be told.

A broker that does not accept the token answers without an error: with a JSON document. The client has to answer that
with one byte, and only then gets the error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import AuthenticationError, ConfigError
from penstock.security.oauth.refresh import TokenRefresher
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.source import token_source
from penstock.security.oauth.token import BadTokenError, Token, checked_extensions, read_claims
from penstock.security.quoting import quoted
from penstock.security.sasl.settings import SaslSettings

_NAME: Final = "OAUTHBEARER"
_SEPARATOR: Final = "\x01"
_MOST_ERROR_BYTES: Final = 65_536
# Of a token what the broker compares, and nobody has to hide.
_CLAIMS: Final = ("iss", "aud", "sub", "scope")
_MOST_LOOKED_INTO: Final = 65_536


class OAuthBearerCredentials:
    """The token of a client, and its extensions."""

    def __init__(self, settings: SaslSettings) -> None:
        oauth = settings.oauth or OAuthSettings()
        try:
            self._extensions = checked_extensions(settings.extensions)
        except BadTokenError as error:
            raise ConfigError(f"the extensions of OAUTHBEARER: {error}", "sasl.jaas.config") from None
        source = token_source(oauth, settings.token_provider)
        self._refresher = TokenRefresher(source, oauth, settings.token_timeout_ms / 1000)

    def mechanism(self, host: str) -> OAuthBearerMechanism:  # the same for every broker
        return OAuthBearerMechanism(self._refresher, self._extensions)

    def close(self) -> None:
        """Stop refreshing the token."""
        self._refresher.close()

    def __repr__(self) -> str:
        return "<OAuthBearerCredentials>"


class OAuthBearerMechanism:
    """One dialogue.

    Args:
        refresher: gives the token to show, and is told when a broker does not accept it.
        extensions: those of the options. Those of the provider win.
        wall: seconds since the epoch.
    """

    name = _NAME

    def __init__(
        self, refresher: TokenRefresher, extensions: dict[str, str], wall: Callable[[], float] = time.time
    ) -> None:
        self._refresher = refresher
        self._extensions = extensions
        self._wall = wall
        self._token: Token | None = None
        self._refusal: str | None = None
        self.user = ""

    @property
    def advice(self) -> str:
        """What to check; an expiry that this machine sees is named."""
        token = self._token
        if token is not None and token.expires_at is not None and token.has_expired(self._wall()):
            ago = self._wall() - token.expires_at
            return f"the token expired {ago:.0f} s ago by this machine's clock: check what provides it, and the clock"
        return (
            "check that issuer, audience, scope and subject of the token are those that the broker wants, that it has "
            f"not expired, and the clocks of both machines{'' if token is None else _described(token, self._wall())}"
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The token: a broker that refuses it may quote it."""
        return () if self._token is None else (self._token.value,)

    def first(self) -> bytes:
        """The token.

        Raises:
            AuthenticationError: there is none.
        """
        token = self._token = self._refresher.token()
        self.user = token.principal
        pairs = [f"auth=Bearer {token.value}"]
        pairs += [f"{name}={value}" for name, value in {**self._extensions, **token.extensions}.items()]
        return ("n,," + _SEPARATOR + _SEPARATOR.join(pairs) + _SEPARATOR + _SEPARATOR).encode("ascii")

    def next(self, challenge: bytes) -> bytes | None:
        """Be satisfied, or answer a refusal so that the broker's error follows.

        Raises:
            AuthenticationError: the error did not follow.
        """
        if self._refusal is not None:
            raise AuthenticationError(
                f"the broker does not accept the token: {self._refusal}; {self.advice}",
                mechanism=_NAME,
                user=self.user or None,
            )
        if not challenge:
            return None
        self._refusal = _read_refusal(challenge, self.secrets)
        self.refused()
        return _SEPARATOR.encode("ascii")

    def refused(self) -> None:
        """The broker does not accept the token; some say so in JSON first, and some at once."""
        if self._token is not None:
            self._refresher.refused(self._token)

    def __repr__(self) -> str:
        return f"<OAuthBearerMechanism of {self.user!r}>"


def _described(token: Token, wall: float) -> str:
    """What there is to be compared with what the broker wants."""
    claims = read_claims(token.value) if len(token.value) <= _MOST_LOOKED_INTO else None
    if claims is None:
        return " (this token is not a JWT)"
    told = [f"{name} {quoted(str(claims[name]), (token.value,))}" for name in _CLAIMS if claims.get(name)]
    if token.expires_at is not None:
        told.append(f"and expires in {token.expires_at - wall:.0f} s by this machine's clock")
    return f" (this token has {', '.join(told) or 'none of these'})"


def _read_refusal(challenge: bytes, secrets: tuple[str, ...]) -> str:
    """What the JSON document says, in a sentence."""
    try:
        said: Any = json.loads(challenge[:_MOST_ERROR_BYTES])
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return quoted(challenge[:_MOST_ERROR_BYTES].decode("utf-8", "replace"), secrets)
    known = ("status", "scope", "openid-configuration")
    told = (f"{key} {quoted(str(said[key]), secrets)}" for key in known if said.get(key))
    return ", ".join(told) or "no reason given"
