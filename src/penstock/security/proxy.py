# SPDX-License-Identifier: Apache-2.0
"""Connections through a proxy: SOCKS5 (RFC 1928, 1929) and HTTP CONNECT (RFC 9110).

The proxy resolves the broker's name, so a client needs no name service for names that only the proxy's network knows.
The dialogue with the proxy is a part of connecting: it never blocks, and a proxy that does not answer is ended by the
time that a connection may take to be set up. Its answers are bounded, and shown in errors as far as they can do no
harm.
"""

from __future__ import annotations

import binascii
import re
import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

from penstock._escaping import escaped
from penstock.config.kinds import Password, parse_address
from penstock.errors import ConfigError
from penstock.network.transport import NOTHING, READ, WRITE, RefusedError, Transport
from penstock.protocol.schema import Buffer

ProxyKind = Literal["socks5", "http"]

# What may stand before "://". socks5h is curl's name for what is always done here: the proxy resolves the names.
_KINDS: Final[dict[str, ProxyKind]] = {"socks5": "socks5", "socks5h": "socks5", "http": "http"}
_DEFAULT_PORTS: Final[dict[ProxyKind, int]] = {"socks5": 1080, "http": 80}
_READ_SIZE: Final = 16_384
# The head of an HTTP answer; curl takes a hundred times as much, no proxy sends as much as this.
_MOST_HEAD: Final = 16_384
_MOST_SHOWN: Final = 200
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})( .*)?", re.DOTALL)
_HOST_CHARACTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")

_WHICH_PROXY: Final = "Check the address and the scheme of the proxy: socks5:// or http://."
_IDENTITY: Final = "Check user and password in proxy.url: {}://user:password@host:port."
_TARGET: Final = "Does the proxy reach that broker, and is it allowed to? Its log tells more."

_FORM: Final = "scheme://[user:password@]host:port, with the scheme socks5 or http"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """A proxy.

    Attributes:
        kind: which protocol it uses.
        host: its name or address.
        port: its port.
        user: this client's name at the proxy; None where the proxy does not ask.
        password: of that user.
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
        if "/" in identity:
            raise _bad(option, "there is a '/' before the '@'")
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


class ProxyRefusedError(OSError):
    """A proxy does not connect us: it is no such proxy, or cannot reach the broker.

    Attributes:
        advice: what can be done about it.
    """

    def __init__(self, text: str, advice: str = "") -> None:  # a copy gets the advice with its other fields
        super().__init__(text)
        self.advice = advice


class ProxyIdentityError(ProxyRefusedError, RefusedError):
    """A proxy refuses the user or the password, or wants one: trying again will not help."""

    @classmethod
    def of(cls, settings: ProxySettings, text: str) -> ProxyIdentityError:
        """What the proxy says, with the advice for its kind."""
        return cls(f"{settings} {text}", _IDENTITY.format(settings.kind))


# One step of the dialogue with a proxy: writes what is given, then reads as many bytes as the dialogue asks for. It
# gets at least one byte at a time, and asks again until it has enough.
_Dialogue = Generator["_Step", bytes, None]


class _Step(NamedTuple):
    """What to write, and how much must have come before the next step: a number of bytes, or up to a mark."""

    say: bytes
    size: int
    mark: bytes = b""


class ProxyTransport:
    """A connection through a proxy. What is written to it after `finish_connect` goes to the broker.

    Args:
        inner: the connection to the proxy.
        settings: the proxy, and the user there.
        host: the broker's name, which the proxy resolves, or its address.
        port: the broker's port.
    """

    __slots__ = (
        "_connected",
        "_dialogue",
        "_early",
        "_heard",
        "_inner",
        "_inner_connected",
        "_settings",
        "_step",
        "_unsent",
    )

    def __init__(self, inner: Transport, settings: ProxySettings, host: str, port: int) -> None:
        talk = _socks5 if settings.kind == "socks5" else _http
        self._inner = inner
        self._settings = settings
        self._dialogue: _Dialogue = talk(settings, host.partition("%")[0].removesuffix("."), port)
        self._step: _Step | None = None
        self._unsent = b""
        self._heard = b""  # of the answer that is being read
        self._early = b""  # what came behind the last answer is the broker's
        self._inner_connected = False
        self._connected = False

    def finish_connect(self) -> int:
        """See Transport."""
        if self._connected:
            return NOTHING
        if not self._inner_connected:
            try:
                waits_for = self._inner.finish_connect()
            except OSError as error:
                raise OSError(
                    error.errno, f"{self._settings} cannot be reached: {error.strerror or error}"
                ) from error
            if waits_for != NOTHING:
                return waits_for
            self._inner_connected = True
            self._go_on(b"")
        try:
            waits_for = self._talk()
        except ConnectionError as error:
            raise ProxyRefusedError(
                f"{self._settings} broke the connection{self._so_far()}: {error.strerror or error}",
                _WHICH_PROXY,
            ) from error
        if waits_for == NOTHING:
            self._connected = True
            self._early = self._heard
            self._heard = b""
        return waits_for

    def _talk(self) -> int:
        """Go on with the dialogue; return what it waits for."""
        while self._step is not None:
            while self._unsent:
                sent = self._inner.send_some((self._unsent,))
                if not sent:
                    return WRITE
                self._unsent = self._unsent[sent:]
            if not self._has_answer(self._step):
                data = self._inner.recv_some(_READ_SIZE)
                if data is None:
                    return READ
                if not data:
                    raise ProxyRefusedError(
                        f"{self._settings} closed the connection{self._so_far()}", _WHICH_PROXY
                    )
                self._heard += data
        return NOTHING

    @property
    def delay(self) -> str:
        """What a connection that takes too long waits for."""
        if self._connected:
            return ""
        if not self._inner_connected:
            return f"{self._settings} cannot be reached"
        return f"{self._settings} does not answer{self._so_far()}. {_WHICH_PROXY}"

    def _has_answer(self, step: _Step) -> bool:
        """Go on with the dialogue if enough has come; return whether it had."""
        if step.mark:
            found = self._heard.find(step.mark)
            size = found + len(step.mark) if found >= 0 else len(self._heard) + 1
            if found < 0 and len(self._heard) > step.size:
                raise ProxyRefusedError(
                    f"{self._settings} answered with more than {step.size} bytes{self._so_far()}",
                    _WHICH_PROXY,
                )
        else:
            size = step.size
        if len(self._heard) < size:
            return False
        answer, self._heard = self._heard[:size], self._heard[size:]
        self._go_on(answer)
        return True

    def _go_on(self, answer: bytes) -> None:
        try:
            self._step = self._dialogue.send(answer) if self._step is not None else next(self._dialogue)
            self._unsent = self._step.say
        except StopIteration:
            self._step = None

    def _so_far(self) -> str:
        return f", after {_shown(self._heard)}" if self._heard else ""

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """See Transport."""
        return self._inner.send_some(buffers)

    def recv_some(self, max_bytes: int) -> bytes | None:
        """See Transport."""
        if self._early:
            data, self._early = self._early[:max_bytes], self._early[max_bytes:]
            return data
        return self._inner.recv_some(max_bytes)

    def has_pending(self) -> bool:
        """See Transport."""
        return bool(self._early) or self._inner.has_pending()

    def fileno(self) -> int:
        """See Transport."""
        return self._inner.fileno()

    def close(self) -> None:
        """See Transport."""
        self._inner.close()

    def __repr__(self) -> str:
        return f"<ProxyTransport by {self._settings}{'' if self._connected else ' connecting'} over {self._inner!r}>"


# ------------------------------------------------------------------------------------------ SOCKS5

_NO_METHOD: Final = 0xFF
_BY_PASSWORD: Final = 0x02
_ANYBODY: Final = 0x00
_ANSWERS: Final = {
    1: "general failure",
    2: "the connection is not allowed by its rules",
    3: "the network is unreachable",
    4: "the host is unreachable, or its name is not known",
    5: "the connection was refused",
    6: "the time to live has expired",
    7: "the command is not supported",
    8: "the kind of address is not supported",
}


def _socks5(settings: ProxySettings, host: str, port: int) -> _Dialogue:
    methods = bytes([_ANYBODY] if settings.user is None else [_BY_PASSWORD, _ANYBODY])
    version, method = yield _Step(bytes([5, len(methods)]) + methods, 2)
    if version != 5:
        raise ProxyRefusedError(
            f"{settings} does not speak SOCKS5: it answered {_shown(bytes([version, method]))}", _WHICH_PROXY
        )
    if method == _NO_METHOD:
        raise ProxyIdentityError.of(
            settings,
            "requires authentication"
            if settings.user is None
            else "takes neither a user with a password nor a client without",
        )
    if method not in methods:
        raise ProxyRefusedError(f"{settings} chose the method {method}, which was not offered", _WHICH_PROXY)
    if method == _BY_PASSWORD:
        user, password = (settings.user or "").encode(), _secret(settings)
        said = bytes([1, len(user)]) + user + bytes([len(password)]) + password
        version, status = yield _Step(said, 2)
        if status != 0:
            raise ProxyIdentityError.of(settings, f"does not accept the password of {settings.user!r}")
    yield from _connect(settings, host, port)


def _connect(settings: ProxySettings, host: str, port: int) -> _Dialogue:
    version, answer, _, kind = yield _Step(
        b"\x05\x01\x00" + _address(settings, host) + port.to_bytes(2, "big"), 4
    )
    place = _place(host, port)
    if version != 5:
        raise ProxyRefusedError(f"{settings} answered with version {version} in place of 5", _WHICH_PROXY)
    if answer != 0:
        words = _ANSWERS.get(answer, f"code {answer}")
        raise ProxyRefusedError(f"{settings} cannot connect to {place}: {words}", _TARGET)
    # Where the proxy's own end is. Nobody needs it, but it must be read.
    if kind == 3:
        (size,) = yield _Step(b"", 1)
    elif kind in (1, 4):
        size = 4 if kind == 1 else 16
    else:
        raise ProxyRefusedError(
            f"{settings} answered with an address of the unknown kind {kind}", _WHICH_PROXY
        )
    yield _Step(b"", size + 2)


def _address(settings: ProxySettings, host: str) -> bytes:
    for kind, family in ((1, socket.AF_INET), (4, socket.AF_INET6)):
        try:
            return bytes([kind]) + socket.inet_pton(family, host)
        except (OSError, ValueError):
            pass  # not an address of this kind
    name = _ascii(settings, host)
    if not 1 <= len(name) <= 255:
        raise ProxyRefusedError(f"{settings} cannot be asked for a name of {len(name)} bytes", _TARGET)
    return bytes([3, len(name)]) + name


# ------------------------------------------------------------------------------------------ HTTP CONNECT


def _http(settings: ProxySettings, host: str, port: int) -> _Dialogue:
    target = _place(_ascii(settings, host).decode(), port)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if settings.user is not None:
        identity = binascii.b2a_base64(
            f"{settings.user}:".encode() + _secret(settings), newline=False
        ).decode()
        lines.append(f"Proxy-Authorization: Basic {identity}")
    head = yield _Step("\r\n".join((*lines, "", "")).encode(), _MOST_HEAD, b"\r\n\r\n")
    line, _, _ = head.partition(b"\r\n")
    match = _STATUS.fullmatch(line)
    if match is None:
        raise ProxyRefusedError(f"{settings} does not speak HTTP: it answered {_shown(line)}", _WHICH_PROXY)
    status, words = int(match[1]), _shown((match[2] or b"").strip())
    if 200 <= status < 300:
        return
    if status == 407:
        told = (
            "requires authentication"
            if settings.user is None
            else f"does not accept the password of {settings.user!r}"
        )
        raise ProxyIdentityError.of(settings, f"{told}: 407 {words}")
    raise ProxyRefusedError(f"{settings} cannot connect to {target}: {status} {words}", _TARGET)


# ------------------------------------------------------------------------------------------ both


def _secret(settings: ProxySettings) -> bytes:
    return b"" if settings.password is None else settings.password.value.encode(errors="surrogatepass")


def _ascii(settings: ProxySettings, host: str) -> bytes:
    """A host name as it is sent: it may be what a broker told, so nothing in it may end a line."""
    try:
        name = host.encode("ascii") if host.isascii() else host.encode("idna")
    except UnicodeError:
        name = b""
    if not name or not _HOST_CHARACTERS.issuperset(name):
        raise ProxyRefusedError(f"{settings} cannot be asked for the host name {host!r}", _TARGET)
    return name


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(answer: bytes) -> str:
    """The beginning of an answer, as far as it can be shown."""
    text = escaped(answer[:_MOST_SHOWN].decode("utf-8", errors="replace"))
    return repr(text + ("..." if len(answer) > _MOST_SHOWN else ""))
