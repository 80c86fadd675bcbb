# SPDX-License-Identifier: Apache-2.0
"""Proxies: the dialogue with each kind, byte by byte and over real ports, TLS through them, and refusals in words."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from fix_patience import closed_port
from hypothesis import given
from hypothesis import strategies as st
from network.harness import network_settings
from security.proxies import http, listening, shouting, socks5
from security.tls.certificates import client_context, server_context
from security.tls.wires import Wire, cycle

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.network._sockets_cy import TcpTransport
from penstock.network.transport import NOTHING, READ, WRITE, Address, Transport
from penstock.protocol.schema import Buffer
from penstock.security.proxy import ProxyIdentityError, ProxyRefusedError, ProxySettings, ProxyTransport
from penstock.security.tls._transport_cy import TlsTransport
from penstock.security.tls.errors import TlsRefusedError

SECRET = "p%40ss:w/ord"
KINDS = ["socks5", "http"]

# ---- the URL


@pytest.mark.parametrize(
    ("url", "kind", "host", "port"),
    [
        ("socks5://proxy:1080", "socks5", "proxy", 1080),
        ("SOCKS5h://proxy:9", "socks5", "proxy", 9),
        ("http://proxy.example:3128/", "http", "proxy.example", 3128),
        ("http://proxy", "http", "proxy", 80),
        ("socks5://10.0.0.1", "socks5", "10.0.0.1", 1080),
        ("socks5://[::1]", "socks5", "::1", 1080),
        ("http://[fe80::1%eth0]:8080", "http", "fe80::1%eth0", 8080),
    ],
)
def test_urls(url: str, kind: str, host: str, port: int):
    settings = ProxySettings.parse(url)
    assert (settings.kind, settings.host, settings.port) == (kind, host, port)
    assert settings.user is settings.password is None


def test_users_and_passwords_are_unescaped_and_hidden():
    settings = ProxySettings.parse("socks5://us%3Aer:p%40ss%2Fw%25rd@proxy:1080")
    assert settings.user == "us:er"
    assert settings.password == Password("p@ss/w%rd")
    assert "p@ss" not in repr(settings) + str(settings)
    assert ProxySettings.parse("http://user@proxy:1").password is None
    # The last '@' counts.
    assert ProxySettings.parse("http://user:a@b@proxy:1").password == Password("a@b")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "proxy:1080",
        "https://u:s3cret@proxy:1",
        "socks4://proxy:1",
        "socks5://",
        "socks5://s3cret",  # a host, as far as anybody can tell
        "socks5://u:s3cret",
        "http://proxy:s3cret",
        "http://proxy:0",
        "http://proxy:99999",
        "http://u:s3cret@",
        "http://:s3cret@proxy:1",
        "http://u%3A:s3cret@proxy:1",
        "socks5://u@proxy:1",
        "socks5://u:" + "s3cret" * 50 + "@proxy:1",
        "http://u:%ff%fes3cret@proxy:1",
        "http://proxy:1/path",
        "socks5://u:pa/s3cret@proxy:1",
        "http://u:s3cret/@proxy:1",
        "http://u/s3cret@proxy:1",
        "http://a b:1",
    ],
)
def test_urls_of_no_proxy(url: str):
    if url == "socks5://s3cret":
        assert ProxySettings.parse(url).host == "s3cret"
        return
    with pytest.raises(ConfigError) as caught:
        ProxySettings.parse(url, "proxy_url")
    assert caught.value.option == "proxy_url"
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


# ---- the dialogue, byte by byte


def through(kind: str, user: str | None = None, host: str = "broker.example") -> tuple[Wire, ProxyTransport]:
    wire = Wire()
    password = None if user is None else Password("s3cret")
    settings = ProxySettings(kind=kind, host="proxy", port=1080, user=user, password=password)  # type: ignore[arg-type]
    return wire, ProxyTransport(wire, settings, host, 9093)


def talk(wire: Wire, transport: ProxyTransport, answers: list[bytes]) -> list[bytes]:
    """Answer each thing that is said; what was said."""
    said = []
    for answer in answers:
        assert transport.finish_connect() == READ
        said.append(bytes(wire.sent))
        wire.sent.clear()
        wire.arrived += answer
    assert transport.finish_connect() == NOTHING
    return said


def test_socks5_without_a_user():
    wire, transport = through("socks5")
    said = talk(wire, transport, [b"\x05\x00", b"\x05\x00\x00\x01" + bytes(6)])
    assert said == [b"\x05\x01\x00", b"\x05\x01\x00\x03\x0ebroker.example\x23\x85"]


def test_socks5_with_a_user():
    wire, transport = through("socks5", "me")
    said = talk(wire, transport, [b"\x05\x02", b"\x01\x00", b"\x05\x00\x00\x04" + bytes(18)])
    assert said[:2] == [b"\x05\x02\x02\x00", b"\x01\x02me\x06s3cret"]


def test_socks5_that_does_not_ask_who_we_are():
    wire, transport = through("socks5", "me")
    said = talk(wire, transport, [b"\x05\x00", b"\x05\x00\x00\x03\x01x" + bytes(2)])
    assert b"s3cret" not in b"".join(said)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", b"\x01\x0a\x01\x02\x03"),
        ("::1", b"\x04" + bytes(15) + b"\x01"),
        ("broker.", b"\x03\x06broker"),
    ],
)
def test_socks5_addresses(host: str, address: bytes):
    wire, transport = through("socks5", host=host)
    said = talk(wire, transport, [b"\x05\x00", b"\x05\x00\x00\x01" + bytes(6)])
    assert said[1] == b"\x05\x01\x00" + address + b"\x23\x85"


@pytest.mark.parametrize("user", [None, "me"])
def test_http(user: str | None):
    wire, transport = through("http", user)
    (said,) = talk(wire, transport, [b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n"])
    lines = said.decode().split("\r\n")
    assert lines[:2] == ["CONNECT broker.example:9093 HTTP/1.1", "Host: broker.example:9093"]
    assert lines[-2:] == ["", ""]
    assert lines[2:-2] == ([] if user is None else ["Proxy-Authorization: Basic bWU6czNjcmV0"])


def test_http_with_an_address():
    wire, transport = through("http", host="::1")
    (said,) = talk(wire, transport, [b"HTTP/1.1 200\r\n\r\n"])
    assert said.startswith(b"CONNECT [::1]:9093 HTTP/1.1\r\n")


ANSWERS = {
    "socks5": b"\x05\x02" + b"\x01\x00" + b"\x05\x00\x00\x03\x05proxy\x04\x38",
    "http": b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_dialogue_byte_by_byte_waits_for_what_is_missing(kind: str):
    wire, transport = through(kind, "me")
    wire.connect_answers = [WRITE]
    wire.room, wire.portion = cycle([1, 0]), cycle([1, 0])
    wire.arrived += ANSWERS[kind]
    waits = []
    while (wait := transport.finish_connect()) != NOTHING:
        waits.append(wait)
        assert len(waits) < 1000
    assert waits[0] == WRITE
    assert {READ, WRITE} == set(waits)
    assert wire.arrived == b""


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_behind_the_last_answer_is_the_brokers(kind: str):
    wire, transport = through(kind, "me")
    wire.arrived += ANSWERS[kind] + b"from the broker"
    assert transport.finish_connect() == NOTHING
    assert transport.has_pending()
    assert transport.recv_some(4) == b"from"
    assert transport.recv_some(100) == b" the broker"
    assert not transport.has_pending()
    assert transport.recv_some(100) is None
    assert transport.send_some([b"x"]) == 1
    assert transport.fileno() == 7
    assert "the " in repr(transport)
    transport.close()
    assert wire.closed == 1


# ---- refusals


@pytest.mark.parametrize(
    ("kind", "user", "answer", "words"),
    [
        ("socks5", None, b"\x05\xff", "proxy:1080 requires authentication"),
        ("socks5", "me", b"\x05\xff", "takes neither a user with a password nor"),
        ("socks5", None, b"\x05\x02", "chose the method 2"),
        ("socks5", None, b"HTTP/1.1 400", "does not speak SOCKS5: it answered 'HT'"),
        ("socks5", "me", b"\x05\x02\x01\x01", "does not accept the password of 'me'"),
        (
            "socks5",
            None,
            b"\x05\x00\x05\x05\x00\x01",
            "cannot connect to broker.example:9093: the connection was refused",
        ),
        ("socks5", None, b"\x05\x00\x05\x63\x00\x01", "code 99"),
        ("socks5", None, b"\x05\x00\x04\x00\x00\x01", "version 4"),
        ("socks5", None, b"\x05\x00\x05\x00\x00\x07", "unknown kind 7"),
        ("http", None, b"HTTP/1.1 407 Who?\r\n\r\n", "requires authentication: 407 'Who?'"),
        (
            "http",
            "me",
            b"HTTP/1.1 407 No\x1b[2J\r\n\r\n",
            "does not accept the password of 'me': 407 'No\\\\x1b[2J'",
        ),
        (
            "http",
            None,
            b"HTTP/1.1 503 Later\r\n\r\nmore",
            "cannot connect to broker.example:9093: 503 'Later'",
        ),
        ("http", None, b"\x05\x00 rubbish \r\n\r\n", "does not speak HTTP"),
        ("http", None, b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000, "more than 16384 bytes"),
    ],
)
def test_refusals_have_the_answer_of_the_proxy(kind: str, user: str | None, answer: bytes, words: str):
    wire, transport = through(kind, user)
    wire.arrived += answer
    with pytest.raises((ProxyRefusedError, ProxyIdentityError)) as caught:
        transport.finish_connect()
    # Who is not let in is told at once; a broker that cannot be reached is tried again.
    asks_who = any(mark in words for mark in ("requires authentication", "password"))
    assert isinstance(caught.value, ProxyIdentityError) == asks_who
    assert f"the {kind.upper()} proxy proxy:1080" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.advice
    assert not asks_who or f"{kind}://user:password@host:port" in caught.value.advice
    assert len(str(caught.value)) < 500
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_that_closes(kind: str):
    wire, transport = through(kind)
    wire.arrived += b"\x05" if kind == "socks5" else b"HTTP/1"
    wire.peer_closed = True
    with pytest.raises(ProxyRefusedError, match="closed the connection, after"):
        transport.finish_connect()


@pytest.mark.parametrize("host", ["a\r\nX: y", "a b", "", "ü" * 300, "a\0b"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_that_no_proxy_can_be_asked_for(kind: str, host: str):
    wire, transport = through(kind, host=host)
    wire.arrived += b"\x05\x00"
    with pytest.raises(ProxyRefusedError, match="cannot be asked for"):
        transport.finish_connect()
    assert b"X: y" not in wire.sent


@given(st.sampled_from(KINDS), st.sampled_from([None, "me"]), st.binary(max_size=300), st.integers(0, 20))
def test_any_answer_ends_in_a_connection_an_error_or_in_waiting(
    kind: str, user: str | None, answer: bytes, good: int
):
    wire, transport = through(kind, user)
    wire.arrived += ANSWERS[kind][:good] + answer
    wire.peer_closed = True
    try:
        assert transport.finish_connect() == NOTHING
    except (ProxyRefusedError, ProxyIdentityError) as error:
        told = str(error)
        wire.sent.clear()
    else:
        told = ""
    assert "s3cret" not in told


# ---- over real ports


def drive(transport: Transport, wanted: Callable[[], bool], interest: Callable[[], int]) -> None:
    deadline = time.monotonic() + 60
    while not wanted():
        assert time.monotonic() < deadline, "it takes too long"
        waits_for = interest()
        if waits_for:
            fd = [transport.fileno()]
            select.select(fd if waits_for & READ else [], fd if waits_for & WRITE else [], [], 1)


def connect(transport: Transport) -> None:
    done = [READ]

    def step() -> int:
        done[0] = transport.finish_connect()
        return done[0]

    drive(transport, lambda: done[0] == NOTHING, step)


def exchange(transport: Transport, data: bytes) -> bytes:
    """Send all and read as much as was sent, as a connection does."""
    left: list[Buffer] = [data]
    got = bytearray()

    def step() -> int:
        if left and (sent := transport.send_some(left)):
            rest = left[0][sent:]
            left[:] = [rest] if rest else []
        more = transport.recv_some(65536)
        assert more != b"", "the peer has closed"
        got.extend(more or b"")
        return 0 if more else (READ | WRITE if left else READ)

    drive(transport, lambda: len(got) >= len(data), step)
    return bytes(got)


def tcp(port: int) -> TcpTransport:
    return TcpTransport.connect(Address(socket.AF_INET, ("127.0.0.1", port)), network_settings())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("user", [None, "me"])
def test_tls_through_a_proxy(kind: str, user: str | None):
    with ExitStack() as stack:
        server = stack.enter_context(listening(shouting(server_context())))
        serve = {"socks5": socks5, "http": http}[kind]({"broker.example": server}, user, "s3cret")
        port = stack.enter_context(listening(serve))
        secret = f"{user}:s3cret@" if user else ""
        settings = ProxySettings.parse(f"{kind}://{secret}127.0.0.1:{port}")
        inner = ProxyTransport(tcp(port), settings, "broker.example", 9093)
        transport = TlsTransport(inner, client_context(), "broker.example")
        stack.callback(transport.close)
        connect(transport)
        data = bytes(range(97, 123)) * 50_000
        assert exchange(transport, data) == data.upper()


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_of_a_proxy_over_tcp(kind: str):
    serve = {"socks5": socks5, "http": http}[kind]({}, "me", "s3cret")
    with listening(serve) as port:
        for user, words, error in (
            ("you", "does not accept", ProxyIdentityError),
            ("me", "cannot connect to broker.example:9093", ProxyRefusedError),
        ):
            settings = ProxySettings.parse(f"{kind}://{user}:s3cret@127.0.0.1:{port}")
            transport = ProxyTransport(tcp(port), settings, "broker.example", 9093)
            with pytest.raises(error, match=words):
                connect(transport)
            transport.close()


def test_a_proxy_that_is_not_there():
    with closed_port() as port:
        settings = ProxySettings.parse(f"socks5://127.0.0.1:{port}")
        transport = ProxyTransport(tcp(port), settings, "broker", 9092)
        with pytest.raises(ConnectionRefusedError, match=r"the SOCKS5 proxy .* cannot be reached"):
            connect(transport)
        transport.close()


def test_tls_over_tcp_in_large_and_small_pieces():
    with listening(shouting(server_context())) as port:
        for size in (1, 100, 20_000, 3_000_000):
            transport = TlsTransport(tcp(port), client_context(), "127.0.0.1")
            connect(transport)
            data = b"abcdefghij" * (size // 10 or 1)
            assert exchange(transport, data) == data.upper()
            transport.close()


def test_tls_through_a_proxy_that_leads_to_somebody_else():
    with ExitStack() as stack:
        server = stack.enter_context(listening(shouting(server_context())))
        port = stack.enter_context(listening(socks5({"elsewhere": server})))
        settings = ProxySettings.parse(f"socks5://127.0.0.1:{port}")
        inner = ProxyTransport(tcp(port), settings, "elsewhere", 9093)
        transport = TlsTransport(inner, client_context(), "elsewhere")
        stack.callback(transport.close)
        with pytest.raises(TlsRefusedError, match="not for 'elsewhere'"):
            connect(transport)
