# SPDX-License-Identifier: Apache-2.0
"""A connection that cannot even be closed: its requests end all the same, and the node is tried again."""

from __future__ import annotations

import errno
from typing import Any
from unittest import mock

import pytest

from penstock import Producer
from penstock.network import backend
from penstock.network._sockets_cy import SocketSelector, TcpTransport
from penstock.protocol.messages import PRODUCE
from penstock.testing import FakeKafka, Fault


class RaisesAfterwards:
    """A transport or a selector one of whose methods does its work, and raises all the same, once that is switched on.

    Args:
        real: does the work.
        method: raises.
    """

    broken = False

    def __init__(self, real: object, method: str) -> None:
        self._real = real
        self._method = method

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._real, name)
        if name != self._method:
            return original

        def fail(*args: object) -> None:
            original(*args)
            if RaisesAfterwards.broken:
                raise OSError(errno.EIO, "no")

        return fail


@pytest.mark.parametrize("where", ["close", "unwatch"])
def test_a_connection_that_cannot_be_closed_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "close":
        connect = TcpTransport.connect
        kind = mock.Mock(connect=lambda *args: RaisesAfterwards(connect(*args), where))
        monkeypatch.setattr(backend, "TcpTransport", kind)
    else:
        monkeypatch.setattr(backend, "SocketSelector", lambda: RaisesAfterwards(SocketSelector(), where))
    with FakeKafka(topics={"t": 1}) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, request_timeout_ms=5000)
        try:
            producer.send("t", b"first").result(60)
            monkeypatch.setattr(RaisesAfterwards, "broken", True)
            kafka.add_fault(Fault(api=PRODUCE, cut="before"))
            assert producer.send("t", b"second").result(60).offset == 1
        finally:
            monkeypatch.setattr(RaisesAfterwards, "broken", False)
            producer.close(1)
