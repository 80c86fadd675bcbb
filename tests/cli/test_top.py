# SPDX-License-Identifier: Apache-2.0
"""`penstock top`, and --watch: pages are found, shown, and told."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import Any, Self

import pytest
from cli.support import FakeProducer

from penstock import Producer
from penstock.cli import top
from penstock.cli.main import build_parser, main
from penstock.cli.options import CommandError
from penstock.testing import FakeCluster, FakeSecurity
from penstock.testing.security.settings import CA_FILE
from penstock.watching import glass_box
from penstock.watching.glass_box import address

TOKEN = "0123456789abcdef-token"


class Listener:
    """Listens on a port of this machine, keeps what it is sent, and gives everybody the same answer.

    Args:
        answer: the bytes.
        tls: with which it encrypts.
    """

    def __init__(self, answer: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.address}/"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(60)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, contextlib.suppress(OSError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            self.requests.append(connection.recv(65_536))
            connection.sendall(self._answer)


def change_note(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "penstock"


def test_a_list_without_pages_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 0
    assert "PENSTOCK_GLASS_BOX=127.0.0.1:0" in capsys.readouterr().out


def test_pages_are_listed_and_shown(kafka: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    kafka.create_topic("orders", 2)
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, client_id="shop\x1b[2J", glass_box="127.0.0.1:0",
        glass_box_token=TOKEN,
    ) as producer:  # fmt: skip
        (url,) = glass_box.urls()
        assert main(["top"]) == 0
        listed = capsys.readouterr().out
        assert url in listed
        assert str(os.getpid()) in listed
        assert TOKEN not in listed
        producer.send("orders", b"x").result(60)
        for named in (url, url.removeprefix("http://").rstrip("/"), str(os.getpid())):
            assert main(["top", named, "--once", "--interval", "0.1"]) == 0
            shown = capsys.readouterr().out
            assert "records/s" in shown
            assert "ready" in shown
            assert "lanes    2 partitions" in shown
            assert "\x1b" not in shown


def test_a_page_of_somebody_else_needs_its_token(
    kafka: FakeCluster, notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0", glass_box_token=TOKEN):
        (url,) = glass_box.urls()
        for note in notes.iterdir():
            note.unlink()
        assert main(["top", url, "--once"]) == 1
        assert "needs its token in PENSTOCK_GLASS_BOX_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", TOKEN)
        assert main(["top", url, "--once", "--interval", "0.1"]) == 0


def test_what_is_no_page(kafka: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "127.0.0.1:1", "--once"]) == 1
    assert "no page answers at http://127.0.0.1:1/" in capsys.readouterr().err
    assert main(["top", "999999999", "--once"]) == 1
    assert "has no page" in capsys.readouterr().err
    assert main(["top", kafka.bootstrap_servers, "--once"]) == 1
    assert "no page answers" in capsys.readouterr().err


STATE: dict[str, Any] = {
    "process": {"program": "p", "pid": 1, "version": "v"},
    "producers": [],
    "events": [],
}


def http_answer(state: Any) -> bytes:
    body = state if isinstance(state, bytes) else json.dumps(state).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_an_https_address_is_asked_by_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CA_FILE))
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", TOKEN)
    with Listener(http_answer(STATE), FakeSecurity(protocol="SSL").tls) as listener:
        assert json.loads(top.ask(top.find(f"https://{listener.address}/", []))) == STATE
        (request,) = listener.requests
        assert f"Bearer {TOKEN}".encode() in request


@pytest.mark.parametrize("tls", [FakeSecurity(protocol="SSL").tls, None], ids=["not trusted", "in the clear"])
def test_the_token_for_an_https_address_is_sent_to_nobody_else(
    tls: ssl.SSLContext | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", TOKEN)
    with Listener(http_answer(STATE), tls) as listener:
        assert main(["top", f"https://{listener.address}/", "--once"]) == 1
    assert "no page answers at https://" in capsys.readouterr().err
    assert not any(b"GET" in request or TOKEN.encode() in request for request in listener.requests)


def test_the_port_of_https_is_443(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], *_: Any, **__: Any) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    for url in ("https://127.0.0.1/", "http://127.0.0.1/", "https://[::1]:8443/"):
        with pytest.raises(CommandError, match="no page answers"):
            top.ask(top.Place(url, TOKEN))
    assert asked == [("127.0.0.1", 443), ("127.0.0.1", 80), ("::1", 8443)]


@pytest.mark.parametrize(
    "address_", ["ftp://{}/", "ws://{}/", "//{}/", "http://[::1/", "http://{}x/", "http:///"]
)
def test_another_scheme_is_refused_before_anything_is_sent(
    address_: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", TOKEN)
    with Listener(http_answer(STATE)) as listener:
        assert main(["top", address_.format(listener.address), "--once"]) == 1
        assert listener.requests == []
    assert (
        "is no address of a page: HOST:PORT, http://HOST:PORT/ or https://HOST/ is one"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 200_000,
        b'{"process": ' + b"[" * 200_000,
        b"7",
        b"[]",
        b"\xff",
        {},
        {**STATE, "process": []},
        {**STATE, "process": {"program": "p"}},
        {**STATE, "producers": 7},
        {**STATE, "producers": [{}]},
        {**STATE, "producers": [None]},
        {**STATE, "events": {"x": 1}},
        {**STATE, "events": [{"at_ms": "now", "tone": "bad", "text": ""}]},
        {**STATE, "events": [{"at_ms": 10**300, "tone": "bad", "text": ""}]},
        {**STATE, "events": [{"at_ms": 10**4000, "tone": "bad", "text": ""}]},
        {**STATE, "events": [{"at_ms": 0, "tone": "\x1b[2J" * 1000, "text": ""}]},
    ],
    ids=lambda body: str(body)[-60:],
)
def test_what_is_not_the_state_of_producers_is_told_in_one_line(
    body: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with Listener(http_answer(body)) as listener:
        assert main(["top", listener.address, "--once"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"what answers at {listener.url} is no glass box, or that of another version of Penstock (" in line
    assert line.endswith("; `penstock top` lists your pages, and a browser shows those of every version")
    assert len(line) < 1000


def test_a_producer_with_other_fields_is_told(kafka: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0"):
        (url,) = glass_box.urls()
        answer = top.ask(top.Place(url, None))
    place = top.Place("http://127.0.0.1:1/", None)
    for part in ("rates", "counts", "memory", "io", "totals", "advice", "brokers", "lanes"):
        for instead in (None, 7, "x", [7], {"x": "y"}):
            state = json.loads(answer)
            state["producers"][0][part] = instead
            changed = json.dumps(state).encode()
            monkeypatch.setattr(top, "ask", lambda _, changed=changed: changed)
            with pytest.raises(CommandError, match="is no glass box, or that of another version of Penstock"):
                top.look(place, 80)
    monkeypatch.setattr(top, "ask", lambda _: answer)
    assert top.look(place, 80)


def test_an_answer_is_not_read_without_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Listener(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (9 << 20)) as listener:
        assert main(["top", listener.address, "--once"]) == 1
    told = capsys.readouterr().err
    assert "is no glass box, or that of another version of Penstock (more than 8 MiB)" in told


def test_the_note_of_a_page_counts_for_its_scheme_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", "of the environment")
    note = address.Note(1, "http://127.0.0.1:8400/", TOKEN, "shop", 0)
    assert top.find("127.0.0.1:8400", [note]) == top.Place(note.url, TOKEN)
    assert top.find("http://127.0.0.1:8400", [note]) == top.Place(note.url, TOKEN)
    behind_tls = "https://127.0.0.1:8400/"
    assert top.find(behind_tls, [note]) == top.Place(behind_tls, "of the environment")


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN}\u20ac"])
def test_a_token_that_cannot_be_sent_is_not_shown(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", token)
    assert main(["top", "127.0.0.1:1", "--once"]) == 1
    told = capsys.readouterr().err
    assert "has a character that cannot be sent" in told
    assert TOKEN not in told


def test_notes_of_processes_that_ended_are_taken_away() -> None:
    note = address.write_note("http://127.0.0.1:1/", None)
    assert [one.pid for one in address.read_notes(pytest.fail)] == [os.getpid()]
    change_note(note, pid=999_999_999)
    assert list(address.read_notes(pytest.fail)) == []
    assert not note.exists()


def test_a_process_that_got_the_id_of_another_one_is_not_taken_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Listener(b"") as listener:
        note = address.write_note(listener.url, TOKEN)
        change_note(note, started="when a process began that was killed")
        assert main(["top"]) == 0
        assert listener.url not in capsys.readouterr().out
        assert not note.exists()
        address.write_note(listener.url, TOKEN)
        change_note(note, started="when a process began that was killed")
        assert main(["top", listener.url, "--once"]) == 1
        assert [TOKEN.encode() in request for request in listener.requests] == [False]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"url": None}, "url is None where a text is expected"),
        ({"url": "http://[::1/"}, "Invalid IPv6 URL"),
        ({"url": "ftp://127.0.0.1:1/"}, "url is not the address of a page"),
        ({"pid": "4711"}, "pid is '4711' where a whole number"),
        ({"token": 7}, "token is 7 where a text is expected"),
        ({"since": "yesterday"}, "since is 'yesterday' where a whole number"),
        ({"started": None}, "started is None where a text is expected"),
        ("[" * 100_000, "it is nested too deeply"),
        ("{", "Expecting property name"),
        ("[]", "a list of 0 where an object is expected"),
        ("{}", "pid is missing"),
    ],
)
def test_a_bad_note_is_told_and_does_not_hide_the_others(
    notes: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, Any] | str, said: str
) -> None:
    bad = address.write_note("http://127.0.0.1:1/", None)
    if isinstance(damage, str):
        bad.write_text(damage)
    else:
        change_note(bad, **damage)
    address.write_note("http://127.0.0.1:2/", None)
    assert main(["top"]) == 0
    told = capsys.readouterr()
    assert "http://127.0.0.1:2/" in told.out
    assert "http://127.0.0.1:1/" not in told.out
    (line,) = told.err.splitlines()
    assert str(bad) in line
    assert said in line
    assert line.endswith("; delete it")


def test_a_note_is_for_its_user_alone_and_leaves_no_half(notes: Path) -> None:
    note = address.write_note("http://127.0.0.1:1/", TOKEN)
    assert list(notes.iterdir()) == [note]
    assert stat.S_IMODE(note.stat().st_mode) == 0o600


def test_a_folder_of_somebody_else_is_not_used(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(PermissionError):
        address.write_note("http://127.0.0.1:1/", None)


@pytest.mark.parametrize(
    "command",
    [["perf", "--topic", "t", "--num-records", "1", "--record-size", "1"], ["produce", "t", os.devnull]],
)
def test_watch_asks_for_a_page_unless_there_is_one(command: list[str]) -> None:
    for more, address_ in (
        ([], None),
        (["--watch"], "127.0.0.1:0"),
        (["--watch", "-X", "glass.box=127.0.0.1:1"], "127.0.0.1:1"),
    ):
        args = build_parser().parse_args([*command, *more])
        producer = FakeProducer()
        args.func.__call__(args, producer.open)
        assert producer.config.get("glass.box") == address_


def test_watch_says_where_the_page_is(kafka: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    kafka.create_topic("t", 1)
    code = main(
        [
            "perf",
            "-b",
            kafka.bootstrap_servers,
            "--topic",
            "t",
            "--num-records",
            "10",
            "--record-size",
            "9",
            "-q",
            "--watch",
        ]
    )
    assert code == 0
    assert "the producer can be watched at http://127.0.0.1:" in capsys.readouterr().err


def test_a_process_without_a_producer() -> None:
    state = {"process": {"program": "p", "pid": 1, "version": "v"}, "producers": [], "events": []}
    assert "no producer now" in top.screen(state, 80)
