# SPDX-License-Identifier: Apache-2.0
"""As many brokers as one likes, on TCP, in a process of their own: they count records, and forget them.

A cluster of `penstock.testing` looks at every record and keeps it, and so would be slower than any producer. Here it
answers what a producer asks for at its start, and `InMemoryBroker` answers Produce with a few lines for each batch. A
run is measured whose brokers cost next to nothing.

This module is also the program that is the brokers; see `main`.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from bench.in_memory import InMemoryBroker
from bench.process import Program
from penstock.types import Node

LONGEST_SECONDS = 3600.0  # that a measurement takes
_HOST = "127.0.0.1"
_SIZE_BYTES = 4


class FakeBrokers:
    """The process, seen from outside.

    Args:
        brokers: how many.
        topic: the one that they have.
        partitions: of that topic.
    """

    def __init__(self, brokers: int, topic: str, partitions: int) -> None:
        told = json.dumps({"topic": topic, "partitions": partitions, "brokers": brokers})
        self._program = Program("bench.fake_brokers", told, timeout=LONGEST_SECONDS)
        self.bootstrap_servers = ""

    def __enter__(self) -> Self:
        self._program.__enter__()
        self.bootstrap_servers = self._program.hear()["server"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.__exit__(kind, error, trace)

    @property
    def pid(self) -> int:
        return self._program.pid

    def records(self) -> int:
        """How many have arrived."""
        self._program.say_go()
        found: int = self._program.hear()["records"]
        return found


class _Connection:
    """Takes requests apart, and answers each as soon as it is complete."""

    def __init__(self, accepted: socket.socket, broker: InMemoryBroker, broker_id: int) -> None:
        self.socket = accepted
        self._broker = broker
        self._session = broker.session(broker_id)
        self._request = bytearray(_SIZE_BYTES)
        self._filled = 0

    def read(self) -> bool:
        """Read what is there, of one request at most; whether the client is still there."""
        try:
            count = self.socket.recv_into(memoryview(self._request)[self._filled :])
        except ConnectionError:
            return False
        self._filled += count
        if self._filled == len(self._request):
            self._go_on()
        return count > 0

    def _go_on(self) -> None:
        """Make room for what follows the size; or answer, and begin with the next size."""
        if self._filled == _SIZE_BYTES:
            self._request += bytes(int.from_bytes(self._request, "big"))
            return
        self.socket.sendall(self._broker.answer(self._request, self._session))
        self._request, self._filled = bytearray(_SIZE_BYTES), 0


def main(arguments: Sequence[str]) -> None:
    """Serve until the input ends. Every line of it is answered with the number of records that have arrived."""
    told: dict[str, Any] = json.loads(arguments[0])
    broker = InMemoryBroker(**told)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        for broker_id in broker.cluster.nodes:
            listener = socket.create_server((_HOST, 0))
            broker.cluster.nodes[broker_id] = Node(broker_id, *listener.getsockname())
            selector.register(listener, selectors.EVENT_READ, broker_id)
        node = broker.cluster.nodes[0]
        print(json.dumps({"server": f"{node.host}:{node.port}"}), flush=True)
        while _serve(selector, broker):
            pass


def _serve(selector: selectors.BaseSelector, broker: InMemoryBroker) -> bool:
    """Do what can be done now; whether the input goes on."""
    for key, _ in selector.select():
        if isinstance(key.data, _Connection):
            if not key.data.read():
                selector.unregister(key.fileobj)
                key.data.socket.close()
        elif isinstance(key.fileobj, socket.socket):
            accepted, _ = key.fileobj.accept()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(accepted, selectors.EVENT_READ, _Connection(accepted, broker, key.data))
        else:
            asked = os.read(key.fd, 1 << 10)
            for _ in asked.splitlines():
                print(json.dumps({"records": broker.records}), flush=True)
            if not asked:
                return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
