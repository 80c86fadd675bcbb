# SPDX-License-Identifier: Apache-2.0
"""Raw questions to a broker of any release, each a few dozen bytes: is it up, who leads, is a partition served?

They are written by hand, so that this package stays free of the client that is tested with it. Brokers that need
ZooKeeper understand all of them; those of 4.x have dropped the oldest version of ListOffsets.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.devbroker.settings import HOST

_METADATA, _LIST_OFFSETS = 3, 2
_CORRELATION = 0x50454E53
_LARGEST_ANSWER = 16 << 20
_LATEST = -1
_NO_ERROR = 0


@dataclass(frozen=True)
class ClusterView:
    """What a broker knows of its cluster.

    Attributes:
        ports: of the brokers, by node id.
        leaders: node ids, by topic and partition; those without a leader are missing.
        in_sync: how many replicas are in sync, by topic and partition.
    """

    ports: dict[int, int] = field(default_factory=dict)
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    in_sync: dict[tuple[str, int], int] = field(default_factory=dict)


def broker_answers(port: int, *, timeout: float = 1.0) -> bool:
    """Whether a broker on ``port`` answers, and knows of a broker: itself, at least."""
    view = try_view(port, timeout=timeout)
    return view is not None and bool(view.ports)


def try_view(port: int, *topics: str, timeout: float = 1.0) -> ClusterView | None:
    """Ask a broker (Metadata version 0) about topics, all if none is named. None: it does not answer.

    A topic that does not exist may be created by the question.
    """
    names = b"".join(_string(topic) for topic in topics)
    answer = _try_ask(port, _METADATA, struct.pack(">i", len(topics)) + names, timeout)
    try:
        return None if answer is None else _read_view(_Reader(answer))
    except (struct.error, UnicodeDecodeError):
        return None  # something else listens there


def is_served(port: int, topic: str, partition: int, *, timeout: float = 1.0) -> bool:
    """Whether a broker serves a partition as its leader (ListOffsets version 0)."""
    wanted = struct.pack(">iiqi", 1, partition, _LATEST, 1)
    body = struct.pack(">ii", -1, 1) + _string(topic) + wanted
    answer = _try_ask(port, _LIST_OFFSETS, body, timeout)
    if answer is None:
        return False
    # One topic and one partition were asked for: their counts stand before the topic's name and after it.
    reader = _Reader(answer)
    reader.take("i")
    reader.string()
    reader.take("i")
    reader.take("i")
    return reader.take("h") == _NO_ERROR


def unserved(ports: Mapping[int, int], topic: str, partitions: int) -> set[int]:
    """Which partitions of a topic have no leader yet that serves them; ``ports`` are those of the brokers by id."""
    view = try_view(next(iter(ports.values())), topic)
    if view is None:
        return set(range(partitions))
    leaders = {partition: view.leaders.get((topic, partition), -1) for partition in range(partitions)}
    return {
        partition
        for partition, leader in leaders.items()
        if leader not in ports or not is_served(ports[leader], topic, partition)
    }


class _Reader:
    """Reads numbers and strings one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kind: str) -> int:
        (value,) = struct.unpack_from(f">{kind}", self._data, self._at)
        self._at += struct.calcsize(f">{kind}")
        return int(value)

    def skip(self, count: int) -> None:
        self._at += count

    def string(self) -> str:
        size = self.take("h")
        text = self._data[self._at : self._at + size]
        self._at += size
        return text.decode("utf-8")


def _read_view(reader: _Reader) -> ClusterView:
    view = ClusterView()
    for _ in range(reader.take("i")):
        node_id = reader.take("i")
        reader.string()
        view.ports[node_id] = reader.take("i")
    for _ in range(reader.take("i")):
        reader.take("h")
        topic = reader.string()
        for _ in range(reader.take("i")):
            reader.take("h")
            partition, leader = reader.take("i"), reader.take("i")
            reader.skip(4 * reader.take("i"))  # the replicas
            in_sync = reader.take("i")
            reader.skip(4 * in_sync)
            view.in_sync[topic, partition] = in_sync
            if leader >= 0:
                view.leaders[topic, partition] = leader
    return view


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack(">h", len(data)) + data


def _try_ask(port: int, api_key: int, body: bytes, timeout: float) -> bytes | None:
    """The body of the answer to a request of version 0."""
    request = struct.pack(">hhih", api_key, 0, _CORRELATION, -1) + body
    try:
        with contextlib.closing(socket.create_connection((HOST, port), timeout=timeout)) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = _read(connection, 8)
            if head is None:
                return None
            size, correlation = struct.unpack(">ii", head)
            if correlation != _CORRELATION or not 4 <= size <= _LARGEST_ANSWER:
                return None
            return _read(connection, size - 4)
    except OSError:
        return None


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
