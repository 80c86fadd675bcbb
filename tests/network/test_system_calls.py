# SPDX-License-Identifier: Apache-2.0
"""Calls without giving up the interpreter lock do what Python's own do; where they cannot be made, they say so."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.network import _sockets_cy as sockets_module
from penstock.network._sockets_cy import SocketSelector, TcpTransport
from penstock.network._system_calls_cy import (
    NOT_HERE,
    can_move,
    can_wait,
    is_compiled,
    receive_at_once,
    send_at_once,
    wait_for_owners,
)
from penstock.network.transport import READ, WRITE

moves = pytest.mark.skipif(not can_move(), reason="not compiled, or the system has no such calls")
waits = pytest.mark.skipif(not can_wait(), reason="not compiled, or no Linux")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(params=["at once", "by Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of a transport and a selector, as far as they are there."""
    if request.param == "by Python":
        monkeypatch.setattr(sockets_module, "_AT_ONCE", False)
        monkeypatch.setattr(sockets_module, "can_wait", lambda: False)
    return str(request.param)


def break_off(theirs: socket.socket) -> None:
    """Close with unread bytes: the other side is told of a reset."""
    theirs.close()


@pytest.mark.skipif(is_compiled(), reason="it is compiled")
def test_without_a_compiler_nothing_is_promised() -> None:
    assert not can_move()
    assert not can_wait()
    assert send_at_once(0, [b"x"]) == NOT_HERE
    assert receive_at_once(0, 10) is None
    assert not wait_for_owners(0, 0, {}, [])


def test_buffers_of_every_kind_arrive_in_order(way: str, pair: Pair) -> None:
    ours, theirs = pair
    transport = TcpTransport(ours)
    buffers = [b"one", bytearray(b"two"), memoryview(b"xthreex")[1:-1], b"", memoryview(bytearray(b"four"))]
    assert transport.send_some(buffers) == 15
    assert theirs.recv(100) == b"onetwothreefour"
    buffers[1] += b"!"  # type: ignore[operator]  # it is held no longer


def test_what_does_not_fit_is_left(way: str, pair: Pair) -> None:
    ours, theirs = pair
    transport = TcpTransport(ours)
    data = bytes(range(251)) * 10_000
    sent = 0
    while now := transport.send_some([data[sent : sent + 100_000], data[sent + 100_000 : sent + 200_000]]):
        sent += now
    assert 0 < sent < len(data), "the buffers of the system are smaller"
    assert transport.send_some([b"more"]) == 0
    received = b""
    while len(received) < sent:
        received += theirs.recv(1 << 20)
    assert received == data[:sent]


@pytest.mark.parametrize("count", [1, 64, 65, 1500])
def test_any_number_of_buffers_can_be_sent(way: str, pair: Pair, count: int) -> None:
    ours, theirs = pair
    transport = TcpTransport(ours)
    wanted = b"".join(b"%d," % number for number in range(count))
    left = [b"%d," % number for number in range(count)]
    received = b""
    while left:
        sent = transport.send_some(left)
        assert sent > 0
        received += theirs.recv(sent, socket.MSG_WAITALL)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        assert sent == 0 or left
        if sent:
            left[0] = left[0][sent:]
    assert received == wanted


@moves
def test_large_writes_are_left_to_python_so_that_others_can_run(pair: Pair) -> None:
    fd = pair[0].fileno()
    assert send_at_once(fd, [bytes(256 * 1024), b"x"]) == NOT_HERE
    assert send_at_once(fd, [b"x"] * 65) == NOT_HERE
    assert send_at_once(fd, [b"x"] * 64) == 64


def test_what_arrived_is_read_up_to_the_limit(way: str, pair: Pair) -> None:
    ours, theirs = pair
    transport = TcpTransport(ours)
    assert transport.recv_some(65_536) is None
    theirs.sendall(b"abcdef")
    assert transport.recv_some(4) == b"abcd"
    assert transport.recv_some(65_536) == b"ef"
    assert transport.recv_some(65_536) is None
    theirs.close()
    assert transport.recv_some(65_536) == b""


@moves
def test_no_more_than_64_kib_are_read_at_once(pair: Pair) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    total = theirs.send(bytes(100_000))
    first = receive_at_once(ours.fileno(), 1 << 20)
    assert first is not None
    assert len(first) == min(total, 65_536)


def test_a_broken_connection_is_an_error_of_its_kind(way: str, pair: Pair) -> None:
    ours, theirs = pair
    transport = TcpTransport(ours)
    ours.send(b"never read")
    break_off(theirs)
    with pytest.raises(ConnectionResetError) as caught:
        transport.recv_some(100)
    assert caught.value.errno == errno.ECONNRESET
    with pytest.raises(BrokenPipeError):
        transport.send_some([b"x"])


def test_a_closed_transport_is_an_error(way: str, pair: Pair) -> None:
    transport = TcpTransport(pair[0])
    transport.close()
    for call in (lambda: transport.send_some([b"x"]), lambda: transport.recv_some(10)):
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_what_cannot_be_sent_is_no_write(way: str, pair: Pair) -> None:
    ours, theirs = pair
    good = bytearray(b"good")
    with pytest.raises(TypeError):
        TcpTransport(ours).send_some([good, "text"])  # type: ignore[list-item]
    good += b", and free"  # an exported buffer could not grow
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)


@moves
def test_no_less_than_nothing_can_be_read(pair: Pair) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        receive_at_once(pair[0].fileno(), -1)


@waits
def test_a_wait_tells_what_is_ready(pair: Pair) -> None:
    ours, theirs = pair

    def ready(epoll: select.epoll) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        assert not wait_for_owners(epoll.fileno(), 0, {ours.fileno(): ("ours", READ | WRITE)}, found)
        return found

    with select.epoll() as epoll:
        epoll.register(ours, select.EPOLLIN | select.EPOLLOUT)
        assert ready(epoll) == [("ours", WRITE)]
        theirs.send(b"x")
        assert ready(epoll) == [("ours", READ | WRITE)]
        epoll.modify(ours, select.EPOLLIN)
        assert ready(epoll) == [("ours", READ)]
        ours.recv(10)
        assert ready(epoll) == []
        theirs.close()
        assert ready(epoll)[0][1] & READ


@waits
@pytest.mark.parametrize("seconds", [0, 0.001, 60])
def test_a_wait_finds_the_owners(seconds: float, pair: Pair) -> None:
    ours, theirs = pair
    ready: list[tuple[str, int]] = []
    with select.epoll() as epoll:
        epoll.register(ours, select.EPOLLIN | select.EPOLLOUT)
        epoll.register(theirs, select.EPOLLOUT)
        assert not wait_for_owners(epoll.fileno(), seconds, {ours.fileno(): ("ours", WRITE)}, ready)
        assert ready == [("ours", WRITE)]
        ready.clear()
        theirs.send(b"x")
        watched = {ours.fileno(): ("ours", READ), theirs.fileno(): (None, WRITE)}
        assert wait_for_owners(epoll.fileno(), seconds, watched, ready)
        assert ready == [("ours", READ)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        wait_for_owners(-1, seconds, {}, ready)


@waits
def test_a_wait_is_no_shorter_than_asked_for() -> None:
    ready: list[tuple[str, int]] = []
    with select.epoll() as epoll:
        for seconds in (0.0004, 0.0101):
            started = time.monotonic()
            assert not wait_for_owners(epoll.fileno(), seconds, {}, ready)
            assert time.monotonic() - started >= seconds
    assert ready == []


def test_a_signal_is_handled_during_a_wait(way: str) -> None:
    handled = threading.Event()

    def give_up(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def send() -> None:
        while not handled.wait(0.02):  # one that comes just before the wait does not end it
            if selector._wakeup._sleeping:
                signal.pthread_kill(here, signal.SIGUSR1)

    selector = SocketSelector()
    before = signal.signal(signal.SIGUSR1, give_up)
    here = threading.get_ident()
    sender = threading.Thread(target=send)
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            selector.poll(60)
        assert selector.poll(0) == []
    finally:
        handled.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
        selector.close()


def test_a_selector_tells_owners_what_they_wait_for(way: str, pair: Pair) -> None:
    ours, theirs = pair
    transport = TcpTransport(ours)
    selector = SocketSelector()
    try:
        selector.watch(transport, "owner", READ)
        assert selector.poll(0) == []
        assert selector.poll(0.001) == []
        theirs.send(b"x")
        assert selector.poll(60) == [("owner", READ)]
        assert selector.poll(0) == [("owner", READ)]
        selector.watch(transport, "owner", READ | WRITE)
        assert selector.poll(60) == [("owner", READ | WRITE)]
        selector.unwatch(transport)
        assert selector.poll(0) == []
    finally:
        selector.close()


def test_a_wake_up_ends_one_wait(way: str, pair: Pair) -> None:
    selector = SocketSelector()
    try:
        selector.wakeup()  # before any wait: nobody sleeps, and the next wait must not begin
        assert selector.poll(60) == []
        selector._wakeup._sleeping = True  # as between the announcement of a wait and the wait
        selector.wakeup()
        selector._wakeup._sleeping = False
        assert selector.poll(60) == []
        assert selector.poll(0.001) == []  # its byte is gone
        assert not select.select([selector._wakeup], [], [], 0)[0]
    finally:
        selector.close()


def test_a_wait_ends_when_another_thread_wants_that(way: str) -> None:
    selector = SocketSelector()
    rounds: list[float] = []

    def wait() -> None:
        for _ in range(200):
            started = time.monotonic()
            while not wanted.is_set():
                selector.poll(60)
            wanted.clear()
            rounds.append(time.monotonic() - started)
            seen.set()

    wanted, seen = threading.Event(), threading.Event()
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    for _ in range(200):
        wanted.set()
        selector.wakeup()
        assert seen.wait(60), "a wake-up was lost"
        seen.clear()
    waiter.join(60)
    assert len(rounds) == 200
    selector.close()


@waits
def test_a_file_that_nobody_watches_any_more_is_passed_over(pair: Pair) -> None:
    selector = SocketSelector()
    stranger, other = socket.socketpair()
    try:
        selector.watch(TcpTransport(pair[0]), "owner", READ)
        # The kernel tells of it as long as a copy of the file is open.
        selector._selector.register(stranger, READ, "stranger")
        copy = os.dup(stranger.fileno())
        number = stranger.fileno()
        stranger.close()
        selector._selector._fd_to_key.pop(number)  # type: ignore[attr-defined]
        other.send(b"x")
        pair[1].send(b"x")
        assert selector.poll(60) == [("owner", READ)]
        os.close(copy)
    finally:
        selector.close()
        other.close()
