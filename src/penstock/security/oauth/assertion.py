# SPDX-License-Identifier: Apache-2.0
"""The assertion that the jwt-bearer grant shows: a JWT that the client signs itself, or that somebody put into a file.

Signing needs the package `cryptography`, which the extra `oauth` brings.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from penstock._extras import how_to_install
from penstock.errors import ConfigError
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token import BadTokenError, NoTokenError, checked_value
from penstock.security.oauth.token_file import read_bounded

_PREFIX: Final = "sasl.oauthbearer.assertion"
_ALGORITHMS: Final = ("RS256", "ES256")
_MOST_FILE_BYTES: Final = 1_000_000


class Signer(Protocol):
    """Signs with a private key."""

    def sign(self, message: bytes) -> bytes:
        """The signature in the form of RFC 7518."""
        ...


class AssertionMaker:
    """Makes a new assertion for each request, or reads it from its file each time.

    The private key is read each time as well: it may have been replaced.

    Args:
        settings: the claims.
        wall: seconds since the epoch.
    """

    def __init__(self, settings: OAuthSettings, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._wall = wall
        self._template = _read_template(settings.assertion_template_file)

    @classmethod
    def from_settings(
        cls, settings: OAuthSettings, wall: Callable[[], float] = time.time
    ) -> AssertionMaker | None:
        """None where the options ask for no assertion.

        Raises:
            ConfigError: a file cannot be used, or cryptography is missing.
        """
        if settings.assertion_file is not None:
            maker = cls(settings, wall)
            try:
                maker.make()
            except NoTokenError as error:
                raise ConfigError(f"{_PREFIX}.file: {error}", f"{_PREFIX}.file") from None
            return maker
        if settings.assertion_private_key_file is None and settings.assertion_private_key_pem is None:
            return None
        _load_signer(settings)  # a key that cannot be used is an error at once
        return cls(settings, wall)

    def make(self) -> str:
        """The assertion.

        Raises:
            NoTokenError: the file of a ready one, or the private key, cannot be used any more.
        """
        path = self._settings.assertion_file
        if path is not None:
            try:
                return checked_value(read_bounded(path, "the assertion file", _MOST_FILE_BYTES))
            except BadTokenError as error:
                raise NoTokenError(f"the assertion file {path} cannot be used: {error}") from None
        try:
            signer = _load_signer(self._settings)
        except ConfigError as error:
            raise NoTokenError(str(error)) from None
        header = {"typ": "JWT", **self._template[0], "alg": self._settings.assertion_algorithm}
        signed = f"{_encoded(header)}.{_encoded(self._claims())}"
        return f"{signed}.{_base64url(signer.sign(signed.encode('ascii')))}"

    def _claims(self) -> dict[str, Any]:
        settings = self._settings
        now = int(self._wall())
        claims: dict[str, Any] = {
            **self._template[1],
            "iat": now,
            "exp": now + settings.assertion_claim_exp_seconds,
            "nbf": now - settings.assertion_claim_nbf_seconds,
        }
        if settings.assertion_claim_jti_include:
            claims["jti"] = str(uuid.uuid4())
        static = {
            "aud": settings.assertion_claim_aud,
            "iss": settings.assertion_claim_iss,
            "sub": settings.assertion_claim_sub,
        }
        return claims | {name: value for name, value in static.items() if value is not None}


def _read_template(path: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if path is None:
        return {}, {}
    option = f"{_PREFIX}.template.file"
    try:
        template = json.loads(read_bounded(path, "the template of the assertion", _MOST_FILE_BYTES))
    except NoTokenError as error:
        raise ConfigError(f"{option}: {error}", option) from None
    except (ValueError, RecursionError) as error:
        place = (
            f" at line {error.lineno}, column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        raise ConfigError(f"{option}: {path} is not JSON{place}", option) from None
    parts = (template.get("header", {}), template.get("payload", {})) if isinstance(template, dict) else ()
    if len(parts) != 2 or not all(isinstance(part, dict) for part in parts):
        raise ConfigError(f"{option}: {path} must be an object with the objects header and payload", option)
    return parts


def _load_signer(settings: OAuthSettings) -> Signer:
    if settings.assertion_algorithm not in _ALGORITHMS:
        raise ConfigError(
            f"{_PREFIX}.algorithm must be one of {', '.join(_ALGORITHMS)}", f"{_PREFIX}.algorithm"
        )
    path = settings.assertion_private_key_file
    option = f"{_PREFIX}.private.key.pem" if path is None else f"{_PREFIX}.private.key.file"
    if path is not None:
        try:
            pem = read_bounded(path, "the private key", _MOST_FILE_BYTES)
        except NoTokenError as error:
            raise ConfigError(f"{option}: {error}", option) from None
    else:
        assert settings.assertion_private_key_pem is not None
        pem = settings.assertion_private_key_pem.value.encode()
    try:
        from penstock.security.oauth.signing import load_signer
    except ImportError:
        raise ConfigError(
            "signing an assertion for OAUTHBEARER needs the package cryptography: "
            + how_to_install("oauth", "cryptography"),
            option,
        ) from None
    secret = settings.assertion_private_key_passphrase
    try:
        return load_signer(
            pem, None if secret is None else secret.value.encode(), settings.assertion_algorithm
        )
    except ValueError as error:
        # Only texts of our own: that of a library may show what it has read.
        raise ConfigError(f"{option}: {path or 'the private key'} cannot be used: {error}", option) from None


def _encoded(part: Mapping[str, Any]) -> str:
    return _base64url(json.dumps(part, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
