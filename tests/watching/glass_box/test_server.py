# SPDX-License-Identifier: Apache-2.0
"""The server of the page: who gets an answer, and who does not."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from fix_patience import wait_until
from watching.glass_box.support import get

from penstock.watching.glass_box import server as page_server
from penstock.watching.glass_box.address import (
    Address,
    BadAddress,
    check_token,
    is_own_host,
    parse_address,
)
from penstock.watching.glass_box.server import PageServer

TOKEN = "a-token-of-good-length"


def answer(path: str, given: Mapping[str, str]) -> Any:
    if path == "strange":
        raise ValueError("it makes no sense")
    if path != "state":
        raise KeyError(path)
    return {"given": dict(given)}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = PageServer(Address("127.0.0.1", 0), None, answer)
    yield server.url
    server.close()
    server.join(30)


@pytest.fixture(scope="module")
def locked_url() -> Iterator[str]:
    server = PageServer(Address("127.0.0.1", 0), TOKEN, answer)
    yield server.url
    server.close()
    server.join(30)


@pytest.mark.parametrize(
    ("path", "kind"), [("", "text/html"), ("page.css", "text/css"), ("page.js", "text/javascript")]
)
def test_the_page_and_its_rules(url: str, path: str, kind: str) -> None:
    found = get(url, path)
    assert found.status == 200
    assert found.headers["Content-Type"].startswith(kind)
    assert "default-src 'none'" in found.headers["Content-Security-Policy"]
    assert "'unsafe" not in found.headers["Content-Security-Policy"]
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in found.headers


def test_data(url: str) -> None:
    assert get(url, "api/state?a=1&b=x%20y").json == {"given": {"a": "1", "b": "x y"}}
    assert get(url, "api/nothing").status == 404
    assert get(url, "nothing").status == 404
    assert get(url, "../../etc/passwd").status == 404
    assert get(url, "api/strange").status == 400


def test_what_is_shown_turns_no_text_around(url: str) -> None:
    found = get(url, "api/state?a=x%E2%80%AEy%E2%81%A6&b=%D8%A7%E2%80%8B%00")
    assert found.json == {"given": {"a": "x\\u202ey\\u2066", "b": "\u0627\\u200b\\x00"}}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_but_get(url: str, method: str) -> None:
    assert get(url, method=method).status == 501


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example:1",
        "10.1.2.3",
        "",
        "[::2]:80",
        "127.0.0.1:{port}@evil.example",
        "127.0.0.1:1",
        "localhost:1",
        "[::1]:80",
    ],
)
def test_another_host_is_refused_also_for_the_page(url: str, host: str) -> None:
    port = str(urlsplit(url).port)
    for path in ("", "api/state"):
        found = get(url, path, Host=host.replace("{port}", port))
        assert (found.status, b"given" in found.body) == (421, False)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST"]
)
def test_this_machine_may_be_named_in_several_ways(url: str, host: str) -> None:
    assert get(url, Host=host.replace("{port}", str(urlsplit(url).port))).status == 200


def test_other_pages_may_not_ask(url: str) -> None:
    assert get(url, Sec_Fetch_Site="cross-site").status == 403
    assert get(url, Sec_Fetch_Site="same-site").status == 403
    assert get(url, Origin="http://evil.example").status == 403
    assert get(url, Penstock_Viewer=None).status == 403  # type: ignore[arg-type]
    assert get(url, Sec_Fetch_Site="same-origin", Origin=url.rstrip("/")).status == 200


def test_data_needs_the_token(locked_url: str) -> None:
    assert get(locked_url).status == 401
    for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", TOKEN, f"Basic {TOKEN}"):
        found = get(locked_url, Authorization=wrong)
        assert (found.status, b"given" in found.body) == (401, False)
    assert (
        get(locked_url, f"api/state?token={TOKEN}").status == 401
    )  # addresses are written down in many places
    assert get(locked_url, Authorization=f"Bearer {TOKEN}").status == 200
    assert get(locked_url, "").status == 200  # the empty page, which asks for the token


def test_what_is_no_http_is_refused_and_the_next_one_served(url: str) -> None:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    for sent in (
        b"\x16\x03\x01\x00\xa5\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 70_000,
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            said = b""
            while part := connection.recv(65536):
                said += part
        assert said.split(b" ", 2)[1] in (b"400", b"414", b"421", b"505")
    assert get(url).status == 200


def test_silent_viewers_do_not_keep_others_out() -> None:
    server = PageServer(Address("127.0.0.1", 0), None, answer)
    place = server._listener.getsockname()
    silent = [socket.create_connection(place, 30) for _ in range(page_server._MOST_CONNECTIONS)]
    assert get(server.url).status == 200
    assert silent[0].recv(1) == b"", "the oldest one was closed"
    for each in silent:
        each.close()
    server.close()


def test_the_head_of_a_request_has_one_deadline() -> None:
    server = PageServer(Address("127.0.0.1", 0), None, answer)
    with socket.create_connection(server._listener.getsockname(), 30) as dripping:
        wait_until(lambda: server._connections)
        began = time.monotonic()
        for byte in b"GET":
            dripping.send(bytes([byte]))
            assert server._close_late(began) is not None
            assert server._connections
        assert server._close_late(began + 2 * page_server._IDLE_SECONDS) is None
        assert dripping.recv(1) == b""
    server.close()


def test_a_closed_server_leaves_no_thread_and_no_port() -> None:
    before = set(threading.enumerate())
    server = PageServer(Address("127.0.0.1", 0), None, answer)
    port = int(server.url.rstrip("/").rpartition(":")[2])
    kept = socket.create_connection(("127.0.0.1", port), 30)
    get(server.url)
    server.close()
    server.close()
    server.join(30)
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
    kept.close()
    PageServer(Address("127.0.0.1", port), None, answer).close()


def test_the_port_of_a_closed_server_is_free_at_once() -> None:
    """Else the page of the next producer with that address would be refused, for good."""
    server = PageServer(Address("127.0.0.1", 0), None, answer)
    port = int(server.url.rstrip("/").rpartition(":")[2])
    for _ in range(20):
        server.close()
        server = PageServer(Address("127.0.0.1", port), None, answer)
    server.close()


def test_a_process_without_descriptors_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Semaphore(0)

    class Full(socket.socket):
        def accept(self) -> Any:
            tried.release()
            raise OSError(errno.EMFILE, "Too many open files")

    full = Full()
    full.bind(("127.0.0.1", 0))
    full.listen()
    monkeypatch.setattr(page_server, "_listen", lambda _: full)
    monkeypatch.setattr(page_server, "_PAUSE_SECONDS", 3600.0)
    server = PageServer(Address("127.0.0.1", 0), None, answer)
    with socket.create_connection(full.getsockname(), 30):
        assert tried.acquire(timeout=60)
        assert not tried.acquire(timeout=0.05), "the connection stays in line, and is tried later"
        server.close()
        server.join(60)
    assert not server._thread.is_alive()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadAddress, match=r"127\.0\.0\.1"):
        PageServer(Address("127.0.0.1", taken.getsockname()[1]), None, answer)


@pytest.mark.parametrize(
    "text", ["", "8000", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", ":80"]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(BadAddress, match=r"HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert str(parse_address("[::1]:80")) == "[::1]:80"
    assert parse_address("localhost:80").is_loopback
    assert parse_address("127.9.9.9:80").is_loopback
    assert not parse_address("0.0.0.0:80").is_loopback


def test_other_machines_need_a_token_that_cannot_be_guessed() -> None:
    everywhere = parse_address("0.0.0.0:0")
    with pytest.raises(BadAddress, match=r"glass\.box\.token is needed"):
        check_token(everywhere, None)
    with pytest.raises(BadAddress, match="at least 16"):
        check_token(parse_address("127.0.0.1:0"), "short")
    check_token(everywhere, TOKEN)
    check_token(parse_address("[::1]:0"), None)


def test_hosts_of_a_page_for_other_machines() -> None:
    everywhere = parse_address("0.0.0.0:8400")
    assert is_own_host("10.1.2.3:80", everywhere)
    assert is_own_host(socket.gethostname(), everywhere)
    assert not is_own_host("evil.example", everywhere)
    assert not is_own_host("10.1.2.3:8400@evil.example", everywhere)
