# SPDX-License-Identifier: Apache-2.0
"""Reads OpenTelemetry's MetricsData from protobuf, with field numbers of its own reading of the specification."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple


class Read(NamedTuple):
    """One data point.

    Attributes:
        kind: "gauge", or "sum" with its temporality ("delta" or "cumulative").
        start_ns: 0 where it says none.
    """

    name: str
    tags: dict[str, str]
    kind: str
    value: int | float
    start_ns: int
    time_ns: int


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers and values."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 1:
            yield number, data[at : at + 8]
            at += 8
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field goes on behind the end")
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def read(data: bytes) -> tuple[dict[str, str], list[Read]]:
    """The attributes of the client, and all data points."""
    resource: dict[str, str] = {}
    found: list[Read] = []
    for metrics_of_resource in _all(data, 1):
        for about in _all(metrics_of_resource, 1):
            resource |= dict(_attribute(one) for one in _all(about, 1))
        for scope in _all(metrics_of_resource, 2):
            for metric in _all(scope, 2):
                found += _metric(metric)
    return resource, found


def _metric(data: bytes) -> Iterator[Read]:
    (name,) = _all(data, 1)
    for gauge in _all(data, 5):
        for point in _all(gauge, 1):
            yield _point(name.decode(), "gauge", point)
    for total in _all(data, 7):
        content = dict(fields(total))
        if content[3] != 1:
            raise ValueError(f"{name!r} is not monotonic")
        kind = {1: "delta", 2: "cumulative"}[int(content[2])]
        for point in _all(total, 1):
            yield _point(name.decode(), kind, point)


def _point(name: str, kind: str, data: bytes) -> Read:
    content = {number: value for number, value in fields(data) if number != 7}
    tags = dict(_attribute(one) for one in _all(data, 7))
    value = struct.unpack("<d", content[4])[0] if 4 in content else struct.unpack("<q", content[6])[0]
    start = struct.unpack("<Q", content[2])[0] if 2 in content else 0
    return Read(name, tags, kind, value, start, struct.unpack("<Q", content[3])[0])


def _attribute(data: bytes) -> tuple[str, str]:
    content = dict(fields(data))
    (text,) = _all(content[2], 1)
    return content[1].decode(), text.decode()


def _all(data: bytes | int, number: int) -> list[bytes]:
    if isinstance(data, int):
        raise TypeError("a number where a message should be")
    return [value for found, value in fields(data) if found == number and isinstance(value, bytes)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
