# SPDX-License-Identifier: Apache-2.0
"""Where tokens come from: an object or callable of the user's, an OIDC provider, a file, or nobody (tests).

Shapes of the user's own that are accepted, each sync or async:

    callable              with no argument, or with one: librdkafka's sasl.oauthbearer.config (confluent's oauth_cb)
    object with token()   kafka-python's and aiokafka's AbstractTokenProvider; extensions() is asked where it has that

and what they give:

    text                  the token
    (token, expiry)       seconds or milliseconds since the epoch, or a datetime: the MSK signer, Azure's AccessToken
    (token, expiry, principal, extensions)   confluent's
    mapping               the answer of an OAuth provider: access_token, expires_in
"""

from __future__ import annotations

import base64
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token import (
    BadTokenError,
    Token,
    checked_expiry,
    checked_extensions,
    token_from,
)

Wall = Callable[[], float]


class TokenSource(Protocol):
    """Gets tokens. Called on one thread at a time, never on the I/O thread.

    Attributes:
        name: what it is, for errors: "the token provider", "the token file /x".
        trouble: what stands in the way of the fetch under way, where something does.
    """

    name: str
    trouble: str

    def fetch(self) -> Token:
        """A new token. May block, and may raise anything."""
        ...

    def stop(self) -> None:
        """No token is wanted any more. Called on any thread: ends a wait, if there is one."""
        ...

    def leave(self) -> None:
        """The thread that fetched will not do so again. Called on it."""
        ...


def token_source(settings: OAuthSettings, provider: object | None) -> TokenSource:
    """The source that the options name.

    Raises:
        ConfigError: they name none, or one that cannot be used.
    """
    if provider is not None:
        return ProviderSource(provider, settings)
    url = settings.token_endpoint_url
    if url is not None:
        scheme = url.partition(":")[0].lower()
        if scheme == "file":
            from penstock.security.oauth.token_file import TokenFileSource

            return TokenFileSource(settings)
        if scheme in ("http", "https"):
            from penstock.security.oauth.oidc import OidcSource

            return OidcSource(settings)
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url must be a URL with http, https or file",
            "sasl.oauthbearer.token.endpoint.url",
        )
    if settings.unsecured_subject is not None:
        return UnsecuredSource(settings)
    raise ConfigError(
        "the SASL mechanism OAUTHBEARER needs a source of tokens: give a token provider "
        "(sasl_oauth_token_provider), or set sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.token.endpoint.url",
    )


class ProviderSource:
    """A provider of the user's own, in any of the shapes above."""

    name = "the token provider"

    def __init__(self, provider: object, settings: OAuthSettings, wall: Wall = time.time) -> None:
        if inspect.isclass(provider):
            raise ConfigError(
                f"sasl.oauth.token.provider: it is the class {provider.__name__}; give an object of it",
                "sasl.oauth.token.provider",
            )
        self._call = _caller(provider, settings.callback_config)
        extensions = getattr(provider, "extensions", None)
        self._extensions = extensions if callable(extensions) else lambda: extensions
        self._sub_claim = settings.sub_claim_name
        self._wall = wall
        # Things of asyncio belong to the loop they were made in, so it is kept as long as its thread fetches.
        self._local = threading.local()
        self.trouble = ""

    def fetch(self) -> Token:
        """Ask the provider.

        Raises:
            BadTokenError: what it gives is not a token.
        """
        given = self._settled(self._call())
        value, expiry, principal, extensions = _parts(given, self._wall)
        if extensions is None:
            extensions = self._settled(self._extensions())
        return token_from(
            value,
            expires_at=checked_expiry(expiry),
            principal=_principal(principal),
            extensions=checked_extensions(extensions),
            sub_claim=self._sub_claim,
        )

    def stop(self) -> None:
        """The user's code cannot be interrupted."""

    def leave(self) -> None:
        """Close the event loop of the thread."""
        runner = getattr(self._local, "runner", None)
        if runner is not None:
            runner.close()
            del self._local.runner

    def _settled(self, given: Any) -> Any:
        if not inspect.isawaitable(given):
            return given
        if not hasattr(self._local, "runner"):
            import asyncio

            self._local.runner = asyncio.Runner()
        return self._local.runner.run(_awaited(given))


class UnsecuredSource:
    """Makes unsigned tokens by itself, as Java does without a handler. Only brokers for tests accept them."""

    name = "the maker of unsecured tokens"

    def __init__(self, settings: OAuthSettings, wall: Wall = time.time) -> None:
        if not settings.unsecured_subject:
            raise ConfigError("unsecuredLoginStringClaim_sub must not be empty", "sasl.jaas.config")
        self._settings = settings
        self._wall = wall
        self.trouble = ""

    def fetch(self) -> Token:
        now = int(self._wall())  # brokers compare with whole milliseconds: a fraction may be in their future
        claims = {
            **self._settings.unsecured_claims,
            self._settings.sub_claim_name: self._settings.unsecured_subject,
            "iat": now,
            "exp": now + self._settings.unsecured_lifetime_seconds,
        }
        if self._settings.scope is not None:
            claims.setdefault(self._settings.scope_claim_name, self._settings.scope.split())
        parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
        value = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode("ascii") for part in parts)
        return token_from(f"{value}.", sub_claim=self._settings.sub_claim_name)

    def stop(self) -> None:
        """Do nothing: no request is under way."""

    def leave(self) -> None:
        """Do nothing: there is nothing to close."""


def _caller(provider: object, config: Password | None) -> Callable[[], Any]:
    token = getattr(provider, "token", None)
    if callable(token):
        found: Callable[[], Any] = token
        return found
    if not callable(provider):
        raise ConfigError(
            f"sasl.oauth.token.provider: {type(provider).__name__} is not callable, and has no method token()",
            "sasl.oauth.token.provider",
        )
    try:
        parameters = inspect.signature(provider).parameters.values()
    except (TypeError, ValueError):  # of some functions in C nobody knows it
        return provider
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in by_place if p.default is p.empty]
    needed_by_name = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(needed) > 1 or needed_by_name:
        raise ConfigError(
            "the token provider needs more than one argument: it is called with none, or with the text of "
            "sasl.oauthbearer.config",
            "sasl.oauth.token.provider",
        )
    if needed or (by_place and config is not None):
        return lambda: provider("" if config is None else config.value)
    return provider


def _parts(given: Any, wall: Wall) -> tuple[Any, Any, Any, Any]:
    """Token, expiry, principal, extensions; None for what was not given."""
    if isinstance(given, Mapping):
        if "access_token" not in given:
            raise BadTokenError("the mapping has no access_token")
        lifetime = given.get("expires_in")
        if lifetime is None:
            return given["access_token"], given.get("expires_at"), None, None
        if isinstance(lifetime, bool) or not isinstance(lifetime, int | float) or not 0 < lifetime < 1e10:
            raise BadTokenError("expires_in is not a number of seconds")
        return given["access_token"], wall() + lifetime, None, None
    if isinstance(given, tuple | list):
        if not 1 <= len(given) <= 4:
            raise BadTokenError(
                f"a {type(given).__name__} of {len(given)} was given, where (token, expiry) is expected"
            )
        value, expiry, principal, extensions = (*given, None, None, None)[:4]
        return value, expiry, principal, extensions
    if given is None:
        raise BadTokenError("nothing was given")
    return given, None, None, None


def _principal(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadTokenError(f"the principal is text, not {type(value).__name__}")
    return value


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given
