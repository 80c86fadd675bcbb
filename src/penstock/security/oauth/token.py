# SPDX-License-Identifier: Apache-2.0
"""A token, and what is checked before one is accepted.

Only what the client needs is read out of a token: until when it is good, and whose it is. Its signature is for the
broker to check. A token need not be a JWT; then its source says until when it is good, or nobody does.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

# Brokers take no more than half a megabyte by default, extensions included.
MOST_CHARACTERS: Final = 500_000

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
# Larger numbers are milliseconds: as seconds they would be in the year 5138, as milliseconds they are after 1973.
_SECONDS_END: Final = 1e11


class BadTokenError(ValueError):
    """Something that is not a token. The text says why, and never what it was."""


class NoTokenError(Exception):
    """A source of ours could not get a token. The text is a whole sentence, without secrets."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a broker is shown.

    Attributes:
        value: the token itself.
        expires_at: until when it is good, in seconds since the epoch; None where nobody knows.
        issued_at: since when, where the token says so.
        principal: whose it is; "" where nobody knows.
        extensions: what the source of the token wants the broker to be told.
    """

    value: str = field(repr=False)
    expires_at: float | None = None
    issued_at: float | None = None
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)

    def has_expired(self, wall: float) -> bool:
        """Whether it is no longer good, by this machine's clock."""
        return self.expires_at is not None and wall >= self.expires_at


def checked_value(value: object) -> str:
    """A token as it may be sent.

    Raises:
        BadTokenError: it is none.
    """
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("latin-1")
    if not isinstance(value, str):
        raise BadTokenError(f"a token is text, not {type(value).__name__}")
    value = value.strip()
    if not value:
        raise BadTokenError("the token is empty")
    if len(value) > MOST_CHARACTERS:
        raise BadTokenError(f"the token has {len(value)} characters, more than {MOST_CHARACTERS}")
    if value[:7].lower() == "bearer ":
        raise BadTokenError("the token begins with 'Bearer ', which is not part of it")
    if _TOKEN.fullmatch(value) is None:
        raise BadTokenError("the token has characters other than letters, digits and - . _ ~ + / =")
    return value


def checked_expiry(value: object) -> float | None:
    """A moment in seconds since the epoch, from seconds, milliseconds or a datetime.

    Raises:
        BadTokenError: it is none.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadTokenError(f"the expiry is a number of seconds since 1970, not {type(value).__name__}")
    if not 0 < value < 1e15 or math.isnan(value):
        raise BadTokenError("the expiry is not a moment after 1970")
    return float(value) / 1000 if value >= _SECONDS_END else float(value)


def checked_extensions(value: object) -> dict[str, str]:
    """What a broker may be told beside the token.

    Raises:
        BadTokenError: a name or value cannot be sent.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadTokenError(f"extensions are a mapping of names to values, not {type(value).__name__}")
    for name, text in value.items():
        if not isinstance(name, str) or _EXTENSION_NAME.fullmatch(name) is None or name == "auth":
            raise BadTokenError(
                f"{name!r} is not the name of an extension: it has letters only, and is not 'auth'"
            )
        if not isinstance(text, str) or _EXTENSION_VALUE.fullmatch(text) is None:
            raise BadTokenError(f"the value of the extension {name} is empty or has characters outside ASCII")
    return dict(value)


def read_claims(value: str) -> dict[str, Any] | None:
    """The claims of a JWT; None where the token is not one."""
    parts = value.split(".")
    if len(parts) != 3 or not parts[0] or not parts[1]:
        return None
    claims: object = None
    try:
        for part in parts[:2]:
            padded = part + "=" * (-len(part) % 4)
            claims = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
            if not isinstance(claims, dict):
                return None
    except (binascii.Error, ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def token_from(
    value: object,
    *,
    expires_at: float | None = None,
    principal: str = "",
    extensions: Mapping[str, str] | None = None,
    sub_claim: str = "sub",
) -> Token:
    """A checked token; what is not said is read out of it where it is a JWT.

    Raises:
        BadTokenError: it is not a token.
    """
    text = checked_value(value)
    claims = read_claims(text) or {}
    if expires_at is None:
        expires_at = _moment(claims, "exp")
    if not principal:
        subject = claims.get(sub_claim)
        principal = subject.strip() if isinstance(subject, str) else ""
    return Token(text, expires_at, _moment(claims, "iat"), principal, dict(extensions or {}))


def check_is_jwt(value: str, sub_claim: str = "sub", scope_claim: str = "scope") -> None:
    """What Java asks of a token that comes from a file.

    Raises:
        BadTokenError: it is not a JWT, or lacks a claim.
    """
    claims = read_claims(value)
    if claims is None:
        raise BadTokenError(
            "the token is not a JWT: three parts of base64url with dots between, JSON inside; is it cut?"
        )
    if _moment(claims, "exp") is None:
        raise BadTokenError("the token has no claim exp that is a number")
    subject = claims.get(sub_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise BadTokenError(f"the token has no claim {sub_claim} that is a text")
    scope = claims.get(scope_claim)
    if scope is not None and not isinstance(scope, str | list):
        raise BadTokenError(f"the claim {scope_claim} of the token is neither a text nor a list")


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return checked_expiry(value)
    except BadTokenError:
        return None
