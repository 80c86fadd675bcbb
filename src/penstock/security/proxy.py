# SPDX-License-Identifier: Apache-2.0
"""Connections through a proxy: SOCKS5 (RFC 1928, 1929) and HTTP CONNECT (RFC 9110).

The proxy resolves the broker's name, so a client needs no name service for names that only the proxy's network knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote

from penstock.config.kinds import Password, parse_address
from penstock.errors import ConfigError

ProxyKind = Literal["socks5", "http"]

# What may stand before "://". socks5h is curl's name for what is always done here: the proxy resolves the names.
_KINDS: Final[dict[str, ProxyKind]] = {"socks5": "socks5", "socks5h": "socks5", "http": "http"}
_DEFAULT_PORTS: Final[dict[ProxyKind, int]] = {"socks5": 1080, "http": 80}
_FORM: Final = "scheme://[user:password@]host:port, with the scheme socks5 or http"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """A proxy.

    Attributes:
        kind: which protocol it speaks.
        host: its name or address.
        port: its port.
        user: who we are, None where it does not ask.
        password: the proof.
    """

    kind: ProxyKind
    host: str
    port: int
    user: str | None = None
    password: Password | None = None

    @classmethod
    def parse(cls, url: str, option: str = "proxy.url") -> ProxySettings:
        """Read a URL: socks5://user:password@host:1080. No part of it is in an error: any may be the password.

        Raises:
            ConfigError: it is no such URL; names the option.
        """
        scheme, colon, rest = url.strip().partition("://")
        kind = _KINDS.get(scheme.lower())
        if not colon or kind is None:
            raise _bad(option, "it must be " + _FORM)
        identity, at, place = rest.removesuffix("/").rpartition("@")
        user, password = _identity(kind, identity, option) if at else (None, None)
        try:
            host, port = parse_address(place if _has_port(place) else f"{place}:{_DEFAULT_PORTS[kind]}")
        except ValueError:
            raise _bad(option, f"there is no host and port in it; the form is {_FORM}") from None
        return cls(kind=kind, host=host, port=port, user=user, password=password)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        name = "SOCKS5" if self.kind == "socks5" else "HTTP"
        return f"the {name} proxy {host}:{self.port}"


def _has_port(place: str) -> bool:
    return ":" in place.rpartition("]")[2]


def _identity(kind: ProxyKind, text: str, option: str) -> tuple[str, Password | None]:
    name, colon, secret = text.partition(":")
    try:
        user, password = unquote(name, errors="strict"), unquote(secret, errors="strict")
    except UnicodeDecodeError:
        raise _bad(option, "user or password have a percent escape that is not UTF-8") from None
    if not user:
        raise _bad(option, "the user before the '@' is empty")
    if kind == "http" and ":" in user:
        raise _bad(option, "an HTTP proxy takes no user with a ':' in the name")
    if kind == "socks5" and not (len(user.encode()) <= 255 and 1 <= len(password.encode()) <= 255):
        raise _bad(option, "SOCKS5 wants a user and a password of 1 to 255 bytes each")
    return user, Password(password) if colon else None


def _bad(option: str, why: str) -> ConfigError:
    return ConfigError(
        f"{option} is not the address of a proxy: {why}. In user and password '@', ':', '/' and '%' are written as "
        "%40, %3A, %2F and %25.",
        option,
    )
