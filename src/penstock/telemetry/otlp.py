# SPDX-License-Identifier: Apache-2.0
"""Metrics as OpenTelemetry's MetricsData, in protobuf: the few messages that are needed, written by hand.

Rules:
1. A name is org.apache.kafka.<group without -metrics>.<name>, with dots for dashes, as Java's client has it; tags are
   attributes in snake case.
2. What ends in -total is a monotonic Sum, the rest a Gauge. With delta temporality a Sum is the difference to what was
   pushed last; `Deltas` remembers that once the push was acknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock._metrics import MetricValue

EVERYTHING = "*"

_PREFIX = "org.apache.kafka."
_GROUPS = "producer-"
_GROUP_END = "-metrics"
_TOTAL = "-total"
_DELTA, _CUMULATIVE = 1, 2
_FIXED64, _BYTES = 1, 2  # wire types; 0 is a varint


def full_name(group: str, name: str) -> str:
    """The name of a metric in a subscription: ("producer-metrics", "request-total") has
    org.apache.kafka.producer.request.total."""  # noqa: D205, D209
    return f"{_PREFIX}{group.removesuffix(_GROUP_END)}.{name}".replace("-", ".").lower()


class Point(NamedTuple):
    """One value to push.

    Attributes:
        name: in full.
        tags: what it is about.
        value: an int or a float.
        is_sum: whether it only grows.
    """

    name: str
    tags: Mapping[str, str]
    value: float
    is_sum: bool

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What distinguishes this value from others: name and tags."""
        return self.name, tuple(sorted(self.tags.items()))


def points(values: Iterable[MetricValue], wanted: Sequence[str]) -> list[Point]:
    """The metrics of a producer that a subscription wants.

    Args:
        values: all metrics.
        wanted: prefixes of full names, or EVERYTHING alone.
    """
    every = list(wanted) == [EVERYTHING]
    prefixes = tuple(wanted)
    found = []
    for group, name, _, tags, value in values:
        if not group.startswith(_GROUPS) or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        full = full_name(group, name)
        if every or full.startswith(prefixes):
            found.append(Point(full, tags, value, name.endswith(_TOTAL)))
    return found


class Deltas:
    """What was pushed last, for differences.

    Args:
        since_ns: when the metrics were made, in nanoseconds since the epoch.
    """

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self._pushed: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def of(self, point: Point) -> float:
        """How much a sum has grown since the last push. One that is smaller was made anew."""
        before = self._pushed.get(point.key, 0)
        return point.value - before if point.value >= before else point.value

    def remember(self, pushed: Iterable[Point], wanted: Iterable[Point], now_ns: int) -> None:
        """A push was acknowledged.

        Args:
            pushed: what was in it.
            wanted: what there was. Of a sum that was left out, what was pushed before still counts.
            now_ns: when it was made.
        """
        known = {point.key: point.value for point in pushed if point.is_sum}
        for point in wanted:
            if point.is_sum and point.key not in known and point.key in self._pushed:
                known[point.key] = self._pushed[point.key]
        self._pushed = known
        self.since_ns = now_ns


def encode(
    pushed: Sequence[Point], resource: Mapping[str, str], now_ns: int, since_ns: int, deltas: Deltas | None
) -> bytes:
    """MetricsData of these metrics; nothing, where there are none.

    Args:
        pushed: the metrics.
        resource: attributes of the client.
        now_ns: the time, in nanoseconds since the epoch.
        since_ns: when the metrics were made.
        deltas: gives sums as differences; None: they are given whole.
    """
    if not pushed:
        return b""
    # One resource for all: Java's client repeats it for each metric, which means the same and is much longer.
    by_name: dict[str, list[Point]] = {}
    for point in pushed:
        by_name.setdefault(point.name, []).append(point)
    metrics = b"".join(
        _nested(2, _metric(name, same, now_ns, since_ns, deltas)) for name, same in by_name.items()
    )
    about = b"".join(_nested(1, _attribute(*pair)) for pair in resource.items())
    return _nested(1, _nested(1, about) + _nested(2, metrics))


def _metric(name: str, same: Sequence[Point], now_ns: int, since_ns: int, deltas: Deltas | None) -> bytes:
    is_sum = same[0].is_sum
    body = []
    for point in same:
        value, start = point.value, since_ns
        if is_sum and deltas is not None:
            value, start = deltas.of(point), deltas.since_ns
        body.append(_nested(1, _data_point(point.tags, value, start if is_sum else 0, now_ns)))
    if not is_sum:
        return _text(1, name) + _nested(5, b"".join(body))
    temporality = _CUMULATIVE if deltas is None else _DELTA
    kind = bytes([2 << 3, temporality, 3 << 3, 1])  # aggregation temporality; monotonic
    return _text(1, name) + _nested(7, b"".join(body) + kind)


def _data_point(tags: Mapping[str, str], value: float, start_ns: int, now_ns: int) -> bytes:
    number = _sfixed64(6, value) if isinstance(value, int) else struct.pack("<Bd", 4 << 3 | _FIXED64, value)
    start = struct.pack("<BQ", 2 << 3 | _FIXED64, start_ns) if start_ns else b""
    time = struct.pack("<BQ", 3 << 3 | _FIXED64, now_ns)
    attributes = (_nested(7, _attribute(name.replace("-", "_"), text)) for name, text in tags.items())
    return start + time + number + b"".join(attributes)


def _sfixed64(number: int, value: int) -> bytes:
    return struct.pack("<Bq", number << 3 | _FIXED64, max(-(2**63), min(value, 2**63 - 1)))


def _attribute(name: str, value: str) -> bytes:
    return _text(1, name) + _nested(2, _text(1, value))


def _text(number: int, text: str) -> bytes:
    return _nested(number, text.encode())


def _nested(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
