# SPDX-License-Identifier: Apache-2.0
"""`penstock top`, and --watch: pages are found, shown, and told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
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
from penstock.watching.glass_box import address, following

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


@pytest.mark.parametrize(
    "address",
    ["http://me:hunter2@127.0.0.1:1/?token=hunter2", "http://me:hunter2@127.0.0.1:99999/?token=hunter2"],
)
def test_a_secret_in_an_address_is_not_in_the_error(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", address, "--once"]) in (1, 2)
    told = capsys.readouterr().err
    assert "127.0.0.1:" in told
    assert "hunter2" not in told


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
            assert shown.splitlines()[0].endswith(f"  {url}"), "whose numbers these are"
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
    said = capsys.readouterr().err
    assert "has no page" in said
    assert "is a port" not in said
    assert main(["top", "65535", "--once"]) == 1
    assert capsys.readouterr().err.endswith(
        "lists those that there are; if 65535 is a port, write 127.0.0.1:65535\n"
    )
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
        assert main(["top", address_.format(listener.address), "--once"]) == 2
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
    for part, strange in (("times", [7]), ("options", None), ("following", 7), ("following", {})):
        state = json.loads(answer)
        state["producers"][0][part] = strange
        changed = json.dumps(state).encode()
        monkeypatch.setattr(top, "ask", lambda _, changed=changed: changed)
        with pytest.raises(CommandError, match="is no glass box, or that of another version of Penstock"):
            top.look(place, 80)
    monkeypatch.setattr(top, "ask", lambda _: answer)
    assert top.look(place, 80)


def test_the_head_names_the_page_without_what_may_be_secret() -> None:
    with Listener(http_answer(STATE)) as listener:
        head, *_ = top.look(top.Place(f"http://me:secret@{listener.address}/?a=secret#secret", None), 100)
    assert head == f"p  process 1  penstock v  {listener.url}"


def test_all_that_the_page_has_is_on_the_screen(kafka: FakeCluster) -> None:
    kafka.create_topic("orders", 1)
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, client_id="shop", glass_box="127.0.0.1:0", linger_ms=7
    ) as producer:
        producer.send("orders", b"x").result(60)
        (url,) = glass_box.urls()
        state = json.loads(top.ask(top.Place(url, None)))
    (one,) = state["producers"]
    one["transaction"] = "IN_TRANSACTION"
    one["memory"] |= {
        "waiting": 1,
        "waits": [{"thread": "checkout", "bytes": 16384, "gathered": 0, "seconds": 1.25}],
    }
    one["io"] |= {"now": "callbacks", "for_s": 2.34, "where": "charge (shop.py:2)"}
    one["times"] = {
        "record-queue-time": {"p50": 1.234, "p95": 20.0, "p99": 3000.0},
        "record-delivery-time": {"p50": 4.0, "p95": 5.0, "p99": 6.0},
    }
    one["following"] = {
        "number": 1, "topic": "orders", "key": None, "waiting": False, "done": False,
        "steps": [
            {"at_ms": 0.0, "what": "sent", "text": "send() was called."},
            {"at_ms": 1234.5, "what": "waits", "text": "No answer for 1.2 s."},
        ],
    }  # fmt: skip
    one["brokers"][0] |= {
        "tone": "warn",
        "text": "A quota lets it wait.",
        "past": "last error 12 s ago: it broke",
    }
    one["leaving"] = [{"reason": "full", "batches": 9, "share": 1.0, "fill": 0.012}]
    one["brokers"].append(one["brokers"][0] | {"id": -1, "address": "a:1", "past": ""})
    lines = top.screen(state, 100)
    text = "\n".join(lines)
    assert "batches  left by  full 100 % (filled to 1 %)" in lines
    assert "transaction in transaction" in lines
    assert " without outcome yet" in text
    assert "  checkout waits 1.2 s for 16 KiB, of which it has 0 B" in lines
    assert "  now: callbacks, for 2.3 s, in charge (shop.py:2)" in lines
    assert [" ".join(line.split()) for line in lines if " half " in line] == [
        "waits in the queue half 1.2 ms 95 % 20 ms 99 % 3.0 s",
        "in all half 4.0 ms 95 % 5.0 ms 99 % 6.0 ms",
    ]
    at = next(at for at, line in enumerate(lines) if line.startswith("broker "))
    assert lines[at + 1 : at + 8] == [
        "  A quota lets it wait.",
        "  last error 12 s ago: it broke",
        lines[at + 3],
        "  A quota lets it wait.",
        "follow   the way of a record of orders, until now",
        "      0.0 ms  send() was called.",
        "       1.2 s  No answer for 1.2 s.",
    ]
    assert lines[at + 3].startswith("bootstrap     a:1  ")
    assert f"options  bootstrap.servers={kafka.bootstrap_servers}  linger.ms=7  batch.size=16384" in text


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"waiting": True, "key": "k"}, "follow   waits for a record of t with that key"),
        ({"waiting": True}, "follow   waits for a record of t"),
        ({"done": True}, "follow   no such record came"),
    ],
)
def test_what_is_followed_and_has_not_come(more: dict[str, Any], line: str) -> None:
    following = {"number": 1, "topic": "t", "key": None, "waiting": False, "done": False, "steps": []}
    assert list(top.followed(following | more)) == [line]


def test_a_state_from_before_the_question_is_no_answer_to_it() -> None:
    def state(*followed: dict[str, Any] | None) -> dict[str, Any]:
        return {"producers": [{"id": at, "following": one} for at, one in enumerate(followed)]}

    def way(number: int, *steps: str) -> dict[str, Any]:
        return {"number": number, "waiting": not steps, "steps": list(steps)}

    asked = {0: top._Asked(2), 1: top._Asked(1), 9: top._Asked(1)}
    assert top._found(state(way(1, "of another record"), None), asked) is None
    assert list(asked) == [0, 1], "one has ended before it was seen"
    assert top._found(state(way(2), way(1)), asked) is None
    assert list(asked) == [0, 1]
    assert top._found(state(way(2), None), asked) is None
    assert list(asked) == [0], "somebody has stopped the other"
    assert top._found(state(way(2, "sent")), asked) == (0, way(2, "sent"))
    assert top._found(state(way(3, "sent")), asked) is None
    assert asked == {}
    asked = {0: top._Asked(2)}
    for _ in range(100):  # another viewer was quicker: nobody waits for ever
        assert top._found(state(way(3, "sent")), asked) is None
    assert asked == {}


@contextlib.contextmanager
def sending(producer: Producer, topic: str) -> Iterator[None]:
    """Somebody sends, one record after the other, the key of every second one is k1."""
    stop = threading.Event()

    def send() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            producer.send(topic, b"x", b"k%d" % (number % 2)).result(60)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def following_of(url: str) -> dict[str, Any]:
    """By the names of the producers, when what is seen is not from before."""
    at_ms = [0, 0]
    while at_ms[1] < at_ms[0] + 300:  # a state is up to 0.2 s old
        state = json.loads(top.ask(top.Place(url, None)))
        at_ms = [at_ms[0] or state["at_ms"], state["at_ms"]]
    return {one["client_id"]: one["following"] for one in state["producers"]}


def test_a_record_is_followed(kafka: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """By whatever producer it is sent; the others are asked no more."""
    kafka.create_topic("orders", 1)
    options = {"bootstrap_servers": kafka.bootstrap_servers, "glass_box": "127.0.0.1:0"}
    with Producer(**options, client_id="a"), Producer(**options, client_id="b") as producer:
        (url,) = glass_box.urls()
        offsets = []
        with sending(producer, "orders"):
            for _ in range(2):
                command = ["top", url, "--follow", "orders", "--key", "k1", "--interval", "0.1"]
                assert main(command) == 0
                told = capsys.readouterr()
                assert told.err == "penstock: waits for a record of orders; Ctrl-C gives up\n"
                title, *steps = told.out.splitlines()
                assert title == "follow   the way of a record of orders"
                assert all(re.match(r" +[\d.]+ m?s  \S", step) for step in steps)
                assert "0.0 ms  send() was called." in steps[0]
                assert "It is record 1 of a batch for orders-0" in steps[1]
                assert "The batch left with 1 record, " in steps[2]
                (offset,) = re.findall(r"orders-0 has it at offset ([\d,]+)\.", steps[-1])
                offsets.append(int(offset.replace(",", "")))
        assert all(offset % 2 == 0 for offset in offsets), "those have the key"
        assert offsets[0] < offsets[1], "what was followed before is not told again"
        followed = following_of(url)
        assert followed["a"] is None
        assert followed["b"]["done"]


def test_on_a_terminal_the_way_is_drawn_as_it_grows(
    kafka: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic("orders", 1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0", linger_ms=600_000,
        delivery_timeout_ms=900_000,
    ) as producer:  # fmt: skip
        (url,) = glass_box.urls()
        turns: list[Callable[[], object]] = [
            lambda: (producer.send("orders", b"x"), following_of(url)),
            lambda: (producer.flush(60), following_of(url)),
        ]
        monkeypatch.setattr(top, "time", SimpleNamespace(sleep=lambda _: turns.pop(0)()))
        assert main(["top", url, "--follow", "orders"]) == 0
    nothing, first, last = capsys.readouterr().out.split("\x1b[H\x1b[J")
    assert nothing == ""
    assert first.splitlines()[0] == "follow   the way of a record of orders, until now"
    assert last.splitlines()[0] == "follow   the way of a record of orders"
    assert last.splitlines()[-1].endswith("orders-0 has it at offset 0.")


def test_a_record_that_does_not_come(
    kafka: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE", 0.0)
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0"):
        (url,) = glass_box.urls()
        assert main(["top", url, "--follow", "orders", "--interval", "0.1"]) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert "no such record of orders came within two minutes" in told.err


def test_who_gives_up_leaves_nothing_behind(kafka: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, client_id="a", glass_box="127.0.0.1:0"
    ) as producer:
        (url,) = glass_box.urls()
        with monkeypatch.context() as patch:

            def interrupt(_: float) -> None:
                assert producer._core.parts.send_path.follower is not None
                raise KeyboardInterrupt

            patch.setattr(top, "time", SimpleNamespace(sleep=interrupt))
            assert main(["top", url, "--follow", "orders"]) == 130
        assert producer._core.parts.send_path.follower is None


def test_a_producer_that_is_closed_is_not_followed_any_more(
    kafka: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen of its record is printed."""
    kafka.create_topic("orders", 1)
    options = {"bootstrap_servers": kafka.bootstrap_servers, "glass_box": "127.0.0.1:0"}
    with Producer(**options, client_id="a"), Producer(**options, client_id="b", linger_ms=600_000,
        delivery_timeout_ms=900_000) as producer:  # fmt: skip
        (url,) = glass_box.urls()
        turns: list[Callable[[], object]] = [
            lambda: producer.send("orders", b"x"),
            lambda: following_of(url),
            lambda: producer.close(0),
        ]
        monkeypatch.setattr(top, "time", SimpleNamespace(sleep=lambda _: turns.pop(0)()))
        assert main(["top", url, "--follow", "orders"]) == 1
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == "follow   the way of a record of orders, until now"
    assert "It is record 1 of a batch for orders-0." in told.out
    assert "the record is not followed any more: its producer was closed" in told.err


def test_a_producer_that_closes_while_the_record_comes_does_not_hide_its_way(
    kafka: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page does not know it any more when it is told to follow nothing."""
    kafka.create_topic("orders", 1)
    options = {"bootstrap_servers": kafka.bootstrap_servers, "glass_box": "127.0.0.1:0"}
    with Producer(**options, client_id="a") as other, Producer(**options, client_id="b") as producer:
        (url,) = glass_box.urls()
        ask, closed = top.ask, []

        def ask_late(place: top.Place, path: str = "/api/state") -> bytes:
            body = ask(place, path)
            if sent and not closed:
                closed.append(other.close(60))
            return body

        sent: list[object] = []
        turns: list[Callable[[], object]] = [
            lambda: sent.append((producer.send("orders", b"x"), producer.flush(60), following_of(url))),
        ]
        monkeypatch.setattr(top, "time", SimpleNamespace(sleep=lambda _: turns.pop(0)()))
        monkeypatch.setattr(top, "ask", ask_late)
        assert main(["top", url, "--follow", "orders"]) == 0
    assert closed
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].endswith("orders-0 has it at offset 0.")
    assert told.err == "penstock: waits for a record of orders; Ctrl-C gives up\n"


def test_a_producer_that_closes_before_it_is_asked_is_left_out(
    kafka: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Producer(
            bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0", client_id="a"
        ) as producer,
        Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0", client_id="b"),
    ):
        (url,) = glass_box.urls()
        following_of(url)  # from now on the state has both
        ask = top.ask

        def ask_late(place: top.Place, path: str = "/api/state") -> bytes:
            body = ask(place, path)
            producer.close(60)
            return body

        monkeypatch.setattr(top, "ask", ask_late)
        monkeypatch.setattr(following, "PATIENCE", 0.0)
        assert main(["top", url, "--follow", "orders", "--interval", "0.1"]) == 1
    told = capsys.readouterr()
    assert "waits for a record of orders" in told.err
    assert "no such record of orders came" in told.err


def test_who_gives_up_while_it_asks_leaves_nothing_behind(
    kafka: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0") as producer:
        (url,) = glass_box.urls()
        ask, asked = top.ask, []

        def interrupted(place: top.Place, path: str = "/api/state") -> bytes:
            body = ask(place, path)
            if "topic=orders" in path:
                asked.append(producer._core.parts.send_path.follower)
                raise KeyboardInterrupt
            return body

        monkeypatch.setattr(top, "ask", interrupted)
        assert main(["top", url, "--follow", "orders"]) == 130
        assert asked[0] is not None
        assert producer._core.parts.send_path.follower is None


def test_a_viewer_whose_question_is_replaced_is_told_so(
    kafka: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0"):
        (url,) = glass_box.urls()
        place = top.Place(url, None)
        producer = json.loads(top.ask(place))["producers"][0]["id"]
        turns: list[Callable[[], object]] = [
            lambda: (top.ask(place, f"/api/follow?producer={producer}&topic=others"), following_of(url)),
            *[lambda: None] * 20,
        ]
        monkeypatch.setattr(top, "time", SimpleNamespace(sleep=lambda _: turns.pop(0)()))
        assert main(["top", url, "--follow", "orders"]) == 1
    told = capsys.readouterr().err
    assert "records of orders are not followed any more: a producer follows one at a time" in told


@pytest.mark.parametrize("words", [["--once"], ["--follow", "orders"]])
def test_a_process_that_ends_while_somebody_looks_is_told(
    kafka: FakeCluster, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="127.0.0.1:0") as producer:
        (url,) = glass_box.urls()
        monkeypatch.setattr(top, "time", SimpleNamespace(sleep=lambda _: producer.close(60)))
        assert main(["top", url, *words]) == 1
    told = capsys.readouterr().err
    assert (
        f"the page at {url} does not answer any more: its process has ended, or has closed its last" in told
    )
    assert "lists those" not in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["127.0.0.1:1", "--key", "k"], "--key needs --follow TOPIC"),
        (["--follow", "orders"], "--follow needs ADDRESS"),
        (["127.0.0.1:1", "--follow", ""], "--follow and --key need a value"),
        (["127.0.0.1:1", "--follow", "orders", "--key", ""], "--follow and --key need a value"),
        (["127.0.0.1:1", "--follow", "orders\udcff"], "--follow and --key take text in UTF-8"),
        (["127.0.0.1:1", "--follow", "orders", "--key", "\udcff"], "--follow and --key take text in UTF-8"),
    ],
)
def test_options_of_following(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *words]) == 2
    assert said in capsys.readouterr().err


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
