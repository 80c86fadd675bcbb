# SPDX-License-Identifier: Apache-2.0
"""Counts the records of a topic that a read-committed reader gets, by the headers of their batches.

End offsets do not tell: an aborted record has one, and so has the marker at the end of each transaction. Consuming ten
million records would take longer than writing them; their batches' headers are read in a second or two. A batch says
how many records it has and whose transaction it belongs to; the next marker of that producer says what became of it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.asking import TIMEOUT_SECONDS
from bench.counting import end_offsets
from bench.model import BenchError
from penstock.protocol._framing_cy import frame_request, parse_response_header
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import FETCH

MARKERS_SECONDS = 20.0  # a commit is answered before its markers are written
_FETCH_VERSION = 11  # the last one that names topics
_PARTITION_BYTES = 4 << 20
_REQUEST_BYTES = 24 << 20
_SIZE = struct.Struct(">i")
# Offset, length, leader epoch, magic, checksum, attributes, last offset delta, two timestamps, producer id and epoch,
# sequence number, count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH_COUNTS = 12
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
# In a marker's only record: its length, attributes, timestamp, offset and the key's length take a byte each; the key
# is a version and a type.
_MARKER_TYPE = struct.Struct(">h")
_MARKER_TYPE_AT = _HEADER.size + 5 + 2
_COMMIT = 1


class Batch(NamedTuple):
    """What a batch's header says; `marker` is None but for the end of a transaction: whether that is a commit."""

    producer: tuple[int, int]
    records: int
    next_offset: int
    transactional: bool
    marker: bool | None


@dataclass
class Counted:
    """Records by what became of them.

    Attributes:
        committed: also those that belong to no transaction.
        undecided: in transactions that are open, by partition, producer id and epoch.
    """

    committed: int
    aborted: int
    undecided: Counter[tuple[int, int, int]]

    def add(self, partition: int, batch: Batch) -> None:
        """Take the next batch of a partition into account."""
        producer = (partition, *batch.producer)
        if batch.marker is None and batch.transactional:
            self.undecided[producer] += batch.records
        elif batch.marker is None:
            self.committed += batch.records
        else:
            # A coordinator that ends a dead producer's transaction does so with a higher epoch.
            for one in [key for key in self.undecided if key[:2] == producer[:2]]:
                records = self.undecided.pop(one)
                if batch.marker:
                    self.committed += records
                else:
                    self.aborted += records


def count_committed(server: str, topic: str, start: Mapping[int, int]) -> Counted:
    """Count what came after the offsets in `start`, by partition, and wait for the markers of open transactions.

    Raises:
        BenchError: the broker no longer has all of it, or a transaction stays open.
    """
    counted = Counted(0, 0, Counter())
    position = dict(start)
    deadline = time.monotonic() + MARKERS_SECONDS
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
        while True:
            ends = end_offsets(server, topic, len(position))
            while behind := {number: at for number, at in position.items() if at < ends[number]}:
                for number, batch in _fetch(connection, topic, behind):
                    counted.add(number, batch)
                    position[number] = batch.next_offset
            if not counted.undecided:
                return counted
            if time.monotonic() > deadline:
                raise BenchError(f"open transactions hold records of {topic}: {counted.undecided.total():,}")
            time.sleep(0.05)


def read_batches(records: memoryview) -> Iterator[Batch]:
    """The headers of the whole batches in a part of a log; the last one may be cut off."""
    at = 0
    while at + _HEADER.size <= len(records):
        (first, length, _, _, _, attributes, delta, _, _, producer_id, epoch, _, count) = _HEADER.unpack_from(
            records, at
        )
        if at + _BEFORE_LENGTH_COUNTS + length > len(records):
            return
        marker = None
        if attributes & _CONTROL:
            marker = _MARKER_TYPE.unpack_from(records, at + _MARKER_TYPE_AT)[0] == _COMMIT
        yield Batch((producer_id, epoch), count, first + delta + 1, bool(attributes & _TRANSACTIONAL), marker)
        at += _BEFORE_LENGTH_COUNTS + length


def _fetch(connection: socket.socket, topic: str, position: Mapping[int, int]) -> Iterator[tuple[int, Batch]]:
    partitions = [
        {"partition": number, "fetch_offset": at, "partition_max_bytes": _PARTITION_BYTES}
        for number, at in position.items()
    ]
    body: dict[str, Any] = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": _REQUEST_BYTES,
        "isolation_level": 0,
        "topics": [{"topic": topic, "partitions": partitions}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer = _ask(connection, body)
    for one in answer["responses"]:
        for found in one["partitions"]:
            number = found["partition_index"]
            if found["error_code"] != 0:
                raise BenchError(f"{topic}-{number} cannot be read back: error {found['error_code']}")
            for batch in read_batches(memoryview(found["records"] or b"")):
                # The first batch of an answer may begin before the offset that was asked for.
                if batch.next_offset > position[number]:
                    yield number, batch


def _ask(connection: socket.socket, body: Mapping[str, Any]) -> dict[str, Any]:
    encoded = encode_request_body(FETCH, _FETCH_VERSION, dict(body))
    connection.sendall(b"".join(frame_request(FETCH, _FETCH_VERSION, 1, "bench", encoded)))
    (size,) = _SIZE.unpack(_receive(connection, _SIZE.size))
    _, answer = parse_response_header(FETCH, _FETCH_VERSION, _receive(connection, size))
    found: dict[str, Any] = decode_response_body(FETCH, _FETCH_VERSION, answer)
    return found


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise BenchError("the broker closed the connection while it was read back")
        view = view[got:]
    return data
