# SPDX-License-Identifier: Apache-2.0
"""A connection that cannot even be closed: its requests end all the same, and the node is tried again."""

from __future__ import annotations

import errno

import pytest

from penstock import Producer
from penstock.network.selector import SocketSelector
from penstock.network.transport import TcpTransport
from penstock.protocol.messages import PRODUCE
from penstock.testing import FakeKafka, Fault


@pytest.mark.parametrize("where", ["close", "unwatch"])
def test_a_connection_that_cannot_be_closed_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    kind = TcpTransport if where == "close" else SocketSelector
    original = getattr(kind, where)

    def fail(self: object, *args: object) -> None:
        original(self, *args)
        raise OSError(errno.EIO, "no")

    with FakeKafka(topics={"t": 1}) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, request_timeout_ms=5000)
        try:
            producer.send("t", b"first").result(10)
            monkeypatch.setattr(kind, where, fail)
            kafka.add_fault(Fault(api=PRODUCE, cut="before"))
            assert producer.send("t", b"second").result(10).offset == 1
        finally:
            monkeypatch.undo()
            producer.close(1)
