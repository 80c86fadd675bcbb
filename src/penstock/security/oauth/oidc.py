# SPDX-License-Identifier: Apache-2.0
"""Asks an OIDC provider for a token: by the client-credentials grant, or by the jwt-bearer grant (RFC 7523).

Rules:
1. What the provider answers is bounded, and never shown where it is a success. Of a refusal the fields that RFC 6749
   names are shown.
2. A redirect is not followed: the secret would go to a place that nobody has named (see `exchange`).
3. What may pass is tried again after waits that double, as long as sasl.login.retry.backoff.max.ms allows in all.
4. proxy.url is the way to brokers. The provider is asked directly, or by the proxy that the variables of the
   environment name (https_proxy, no_proxy), as other programs do; errors say so.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final
from urllib.parse import quote_plus, urlencode, urlsplit

from penstock._locks import Latch
from penstock.errors import ConfigError
from penstock.security.http import exchange
from penstock.security.oauth.assertion import AssertionMaker
from penstock.security.oauth.settings import OAuthSettings, of_the_endpoint
from penstock.security.oauth.token import BadTokenError, NoTokenError, Token, token_from
from penstock.security.quoting import quoted
from penstock.security.tls.context import TlsContext
from penstock.security.tls.settings import TlsSettings

_URL_OPTION: Final = "sasl.oauthbearer.token.endpoint.url"
_MOST_BYTES: Final = 1_000_000
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_OF_IDENTITIES: Final = (400, 401, 403)
# Trying again does not help: the request is wrong, not the moment.
_FINAL: Final = frozenset({*range(300, 408), *range(409, 416), 501, 505})


class _Passing(Exception):
    """What may be gone at the next attempt."""


class OidcSource:
    """The provider that `sasl.oauthbearer.token.endpoint.url` names.

    Args:
        settings: what is asked, and how often.
        wall: seconds since the epoch.

    Raises:
        ConfigError: something is missing, or the certificates cannot be read.
    """

    def __init__(self, settings: OAuthSettings, wall: Callable[[], float] = time.time) -> None:
        url = settings.token_endpoint_url
        assert url is not None
        parts = urlsplit(url)
        if not parts.hostname or parts.username is not None or parts.password is not None:
            # The URL is not shown: it may have a password in it.
            raise ConfigError(
                f"{_URL_OPTION} must be a URL with a host, and without user and password", _URL_OPTION
            )
        self._url = url
        self._host, self._scheme = parts.hostname, parts.scheme.lower()
        self._settings = settings
        self._wall = wall
        settings.check_credentials()
        self._assertions = AssertionMaker.from_settings(settings, wall)
        self._tls = self._tls_context() if self._scheme == "https" else None
        self._stopped = Latch()  # no lock: a finalizer may stop it on the very thread that waits there
        self.name = f"the OIDC provider at {parts.scheme}://{parts.netloc}"
        self.trouble = ""

    def fetch(self) -> Token:
        """Ask, and ask again where that may help.

        Raises:
            NoTokenError: the provider refuses, cannot be reached or gives no token.
        """
        deadline = time.monotonic() + self._settings.retry_backoff_max_ms / 1000
        wait = self._settings.retry_backoff_ms / 1000
        self.trouble = ""
        while True:
            try:
                return self._ask()
            except _Passing as error:
                self.trouble = str(error)
            left = deadline - time.monotonic()
            if left <= wait or self._stopped.wait(wait):
                raise NoTokenError(f"{self.name}: {self.trouble}")
            wait *= 2

    def stop(self) -> None:
        """End a wait between two attempts."""
        self._stopped.set()

    def leave(self) -> None:
        """Nothing to close: each request has a connection of its own."""

    def _tls_context(self) -> TlsContext:
        try:
            return TlsContext(self._settings.tls or TlsSettings())
        except ConfigError as error:
            raise of_the_endpoint(error) from None

    def _request(self) -> urllib.request.Request:
        settings = self._settings
        fields: dict[str, str] = {}
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
            "Cache-Control": "no-cache",
        }
        if settings.grant == "jwt_bearer":
            assert self._assertions is not None
            fields = {"grant_type": _JWT_BEARER, "assertion": self._assertions.make()}
        elif self._assertions is not None:
            fields = {
                "grant_type": "client_credentials",
                "client_assertion_type": _CLIENT_ASSERTION,
                "client_assertion": self._assertions.make(),
            }
            if settings.client_id:
                fields["client_id"] = settings.client_id
        else:
            fields = {"grant_type": "client_credentials"}
            headers["Authorization"] = self._basic()
        if settings.scope:
            fields["scope"] = settings.scope
        return urllib.request.Request(self._url, urlencode(fields).encode("ascii"), headers, method="POST")  # noqa: S310  # the scheme was checked

    def _basic(self) -> str:
        settings = self._settings
        assert settings.client_id is not None
        assert settings.client_secret is not None
        pair = [settings.client_id, settings.client_secret.value]
        if settings.header_urlencode:
            pair = [quote_plus(part) for part in pair]
        return "Basic " + base64.b64encode(":".join(pair).encode()).decode("ascii")

    def _ask(self) -> Token:
        try:
            answer = exchange(
                self._request(),
                seconds=self._settings.http_timeout,
                most=_MOST_BYTES,
                # Asked each time: files that have changed are read then.
                context=None if self._tls is None else self._tls.current(),
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            by = self._proxy_variable()
            text = f"it cannot be asked{by}: {self._shown(str(reason) or type(reason).__name__)}"
            if not isinstance(reason, ssl.SSLCertVerificationError):
                raise _Passing(f"{text}; check {_URL_OPTION}, and that this machine can reach it") from None
            raise NoTokenError(
                f"{self.name}: {text}; its certificate is checked with those of the system, or of "
                "ssl.truststore.location inside sasl.jaas.config (librdkafka: https.ca.location)"
            ) from None
        if answer.status < 300:
            return self._read(answer.status, answer.body)
        text = f"it answered {answer.status}{self._proxy_variable()}{self._refusal(answer.body)}"
        if answer.status in _FINAL:
            raise NoTokenError(f"{self.name}: {text}; {self._to_check(answer.status)}")
        raise _Passing(text)

    def _to_check(self, status: int) -> str:
        """What may be wrong where the provider refuses, and a retry does not help."""
        if status not in _OF_IDENTITIES:
            return f"check {_URL_OPTION}"
        if self._assertions is not None:
            return "check the assertion (sasl.oauthbearer.assertion.*), and what the provider knows of this client"
        return (
            "check sasl.oauthbearer.client.credentials.client.id and its client.secret (clientId and clientSecret in "
            "sasl.jaas.config), and the scope"
        )

    def _proxy_variable(self) -> str:
        """Which variable of the environment leads to another place, for errors; "" where none does."""
        if urllib.request.proxy_bypass(self._host):
            return ""
        return (
            f" through the proxy of {self._scheme}_proxy"
            if self._scheme in urllib.request.getproxies()
            else ""
        )

    def _read(self, status: int, body: bytes) -> Token:
        if status not in (200, 201):
            raise NoTokenError(f"{self.name}: it answered {status} where 200 is expected")
        if len(body) > _MOST_BYTES:
            raise NoTokenError(f"{self.name}: its answer has more than {_MOST_BYTES} bytes")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise NoTokenError(f"{self.name}: its answer is not a JSON object")
        value = answer.get("access_token") or answer.get("id_token")
        if value is None:
            raise NoTokenError(f"{self.name}: its answer has neither access_token nor id_token")
        try:
            token = token_from(value, sub_claim=self._settings.sub_claim_name)
        except BadTokenError as error:
            raise NoTokenError(f"{self.name}: {error}") from None
        if token.expires_at is None:
            token = Token(token.value, self._expiry(answer.get("expires_in")), None, token.principal)
        return token

    def _expiry(self, lifetime: object) -> float | None:
        if isinstance(lifetime, str) and lifetime.isdigit():  # some providers quote it
            lifetime = int(lifetime[:12])
        if isinstance(lifetime, bool) or not isinstance(lifetime, int | float) or not 0 < lifetime < 1e10:
            return None
        return self._wall() + lifetime

    def _refusal(self, body: bytes) -> str:
        """What a provider says about its refusal."""
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            return ""
        for code, text in (("error", "error_description"), ("errorCode", "errorSummary")):
            if said.get(code):
                more = f" ({self._shown(str(said[text]))})" if said.get(text) else ""
                return f": {self._shown(str(said[code]))}{more}"
        return ""

    def _shown(self, text: str) -> str:
        secret = self._settings.client_secret
        return quoted(text, () if secret is None else (secret.value, self._basic()[6:]))
