# SPDX-License-Identifier: Apache-2.0
"""Errors that are none of the operating system's, such as a lack of memory, at every step of a connection.

A request that was begun ends with its connection, so that nobody uses its memory while it is still being written; and a
node is tried again, whatever an attempt came to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from network.harness import Harness, batch, produce
from producer.fakes_sender import Rig

from penstock._events import Event
from penstock.errors import NetworkError
from penstock.network import _pool_cy
from penstock.network.failures import FailureReporter
from penstock.network.handshake import ApiVersionsHandshake
from penstock.protocol.requests import MetadataRequest


class Once:
    """Raises at the call of that number, and leaves the others as they are."""

    def __init__(self, original: Callable[..., Any], number: int = 1, error: Exception | None = None) -> None:
        self.original = original
        self.left = number
        self.error = error or MemoryError("no room")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.original(*args, **kwargs)


ERRORS = [
    MemoryError("no room"),
    ValueError("no such thing"),
    UnicodeError("no such name"),
    OSError("no way"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("acks", [0, 1])
def test_a_request_that_was_begun_ends_with_its_connection(monkeypatch, error, acks):
    h = Harness()
    node = h.connect()
    transport = h.network.transports[-1]
    monkeypatch.setattr(transport, "send_some", Once(transport.send_some, error=error))
    h.send(request=produce(acks, batch(1000)))  # and does not raise: the caller would use the memory again
    assert h.ended == []
    h.poll()
    assert [type(each.error) for each in h.ended] == [NetworkError]
    assert h.client._pool.get(node.id) is None
    h.clock.advance(5)
    h.connect(node)


def test_a_request_whose_rest_cannot_be_watched_for_ends_with_its_connection(monkeypatch):
    h = Harness()
    h.connect()
    h.brokers[0].peers[-1].limit_writes(100)
    monkeypatch.setattr(h.network, "watch", Once(h.network.watch))
    h.send(request=produce(1, batch(1000)))
    h.poll()
    assert [type(each.error) for each in h.ended] == [NetworkError]


def test_a_request_of_which_a_part_was_written_is_not_begun_anew(monkeypatch):
    h = Harness()
    h.connect()
    peer = h.brokers[0].peers[-1]
    peer.limit_writes(100)
    h.send(request=produce(1, batch(1000)))
    transport = h.network.transports[-1]
    monkeypatch.setattr(transport, "send_some", Once(transport.send_some))
    peer.limit_writes(None)
    h.poll_until(lambda: h.ended)
    assert [type(each.error) for each in h.ended] == [NetworkError]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "step", ["resolve", "connect", "watch", "finish_connect", "watch again", "send_some"]
)
def test_a_node_is_tried_again_whatever_an_attempt_came_to(monkeypatch, step, error):
    h = Harness()
    node = h.nodes[0]
    pool = h.client._pool
    if step in ("resolve", "connect"):
        once = Once(getattr(h.network, step), error=error)
        monkeypatch.setattr(pool, "_backend", pool._backend._replace(**{step: once}))
    elif step.startswith("watch"):
        monkeypatch.setattr(h.network, "watch", Once(h.network.watch, 2 if "again" in step else 1, error))
    else:
        make = h.network.connect

        def connect(address: Any, endpoint: Any) -> Any:
            transport = make(address, endpoint)
            if len(h.network.transports) == 1:
                monkeypatch.setattr(transport, step, Once(getattr(transport, step), error=error))
            return transport

        monkeypatch.setattr(pool, "_backend", pool._backend._replace(connect=connect))
    h.client.ready(node, h.now)
    for _ in range(5):
        h.poll()
    assert not h.client.is_ready(node, h.now)
    assert h.updater.connection_failures, "nobody was told"
    h.clock.advance(20)
    h.connect(node)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_request_whose_answer_cannot_be_read_ends_with_its_connection(monkeypatch, error):
    h = Harness()
    node = h.connect()
    transport = h.network.transports[-1]
    monkeypatch.setattr(transport, "recv_some", Once(transport.recv_some, error=error))
    h.send(request=produce(1, batch(1000)))
    h.brokers[0].peers[-1].close()
    h.poll_until(lambda: h.ended)
    assert [type(each.error) for each in h.ended] == [NetworkError]
    assert str(error) in str(h.ended[0].error)
    h.clock.advance(5)
    h.connect(node)


def test_an_answer_that_was_read_counts_when_the_next_cannot_be(monkeypatch):
    rig = Rig(retry_backoff_ms=10, reconnect_backoff_ms=10, reconnect_backoff_max_ms=10)
    rig.know("t")
    first = rig.send("t", b"first")
    rig.await_request()
    transport = rig.network.transports[-1]
    read, reads = transport.recv_some, []

    def recv_some(size: int) -> Any:
        reads.append(size)
        if len(reads) == 2:
            raise MemoryError("no room")
        return read(1)

    monkeypatch.setattr(transport, "recv_some", recv_some)
    monkeypatch.setattr(transport, "has_pending", lambda: True)
    rig.answer()
    rig.run_for(1)
    rig.await_request()  # again, over another connection
    rig.answer()
    assert first.result(0).offset >= 0
    assert rig.available_memory == rig.config.buffer_memory


@pytest.mark.parametrize("step", ["start", "on_answer"])
def test_a_handshake_that_cannot_begin_or_go_on_fails_its_attempt(monkeypatch, caplog, step):
    h = Harness()
    once = Once(getattr(ApiVersionsHandshake, step))
    monkeypatch.setattr(ApiVersionsHandshake, step, lambda *args: once(*args))  # noqa: PLW0108 - it must become a method
    h.client.ready(h.nodes[0], h.now)
    for _ in range(5):
        h.poll()
    assert "no room" in caplog.text
    assert isinstance(h.updater.connection_failures[0][1], NetworkError)
    h.clock.advance(20)
    h.connect()


def test_a_request_for_metadata_that_cannot_be_made_is_made_again(monkeypatch, caplog):
    rig = Rig()
    rig.cluster.add_topic("t", 1)
    failing = Once(MetadataRequest.encode)
    monkeypatch.setattr(MetadataRequest, "encode", lambda *args: failing(*args))  # noqa: PLW0108 - it must become a method
    delivery = rig.send("t", b"v")
    assert failing.left <= 0
    assert "could not be made" in caplog.text
    rig.await_request()
    rig.answer()
    assert delivery.result(0).offset >= 0


def test_memory_is_not_used_again_while_a_request_is_still_being_written(monkeypatch):
    """The records are retried: the connection was lost, and with it the request."""
    rig = Rig(retry_backoff_ms=10, reconnect_backoff_ms=10, reconnect_backoff_max_ms=10)
    rig.know("t")
    rig.send("t", b"first")
    rig.await_request()
    rig.answer()
    delivery = rig.send("t", b"v" * 100)
    transport = rig.network.transports[-1]
    taken: list[int] = []

    def fail(_: Any) -> int:
        taken.append(rig.available_memory)
        raise MemoryError("no room")

    monkeypatch.setattr(transport, "send_some", fail)
    rig.turn()
    assert taken
    assert not delivery.done()
    rig.run_for(1)
    rig.await_request()
    rig.answer()
    assert delivery.result(0).offset >= 0
    assert rig.available_memory == rig.config.buffer_memory


# ---- where even telling fails


@pytest.mark.parametrize("step", ["connection_lost", "attempt_failed"])
def test_requests_end_with_their_connection_although_it_cannot_be_told(monkeypatch, step):
    h = Harness()
    h.connect()
    h.send()
    pool = h.client._pool
    connection = pool.get(0)
    if step == "attempt_failed":
        connection.known.unanswered = 1
    once = Once(getattr(FailureReporter, step))
    monkeypatch.setattr(FailureReporter, step, lambda *args, **more: once(*args, **more))  # noqa: PLW0108 - it must become a method
    with pytest.raises(MemoryError):
        pool.fail(connection, NetworkError("broken"), h.now)
    h.poll()
    assert [type(each.error) for each in h.ended] == [NetworkError]
    h.clock.advance(5)
    h.connect()


@pytest.mark.parametrize("event", [Event.CONNECTED, Event.CONNECTING])
def test_a_node_is_used_although_what_becomes_of_it_cannot_be_told(monkeypatch, event):
    h = Harness()
    raised: list[Event] = []
    original = _pool_cy.tell

    def tell(log: Any, level: int, what: Event, *args: Any, **more: Any) -> None:
        if what is event and not raised:
            raised.append(what)
            raise MemoryError("no room")
        original(log, level, what, *args, **more)

    monkeypatch.setattr(_pool_cy, "tell", tell)
    h.client.ready(h.nodes[0], h.now)
    for _ in range(5):
        with contextlib.suppress(MemoryError):
            h.poll()
    assert raised == [event]
    if event is Event.CONNECTED:
        assert h.client.is_ready(h.nodes[0], h.now)
    else:
        assert h.updater.connection_failures, "the attempt has ended"
        h.clock.advance(20)
    h.connect()
