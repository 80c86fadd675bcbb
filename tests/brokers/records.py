# SPDX-License-Identifier: Apache-2.0
"""Records as they were sent and as they were read, and how the two are compared."""

from __future__ import annotations

from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Sent:
    """What must be there. Without a timestamp, any is right."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Found:
    """What a reader found. Headers, a timestamp or an offset that it cannot show are None."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    timestamp: int | None = None
    offset: int | None = None

    def differs_from(self, sent: Sent) -> str | None:
        """What is wrong with it, or None."""
        for name in ("key", "value"):
            was, now = getattr(sent, name), getattr(self, name)
            if was != now:
                return f"{name} {shown(now)} instead of {shown(was)}"
        if self.headers is not None and self.headers != sent.headers:
            return f"headers {self.headers} instead of {sent.headers}"
        if None not in (self.timestamp, sent.timestamp) and self.timestamp != sent.timestamp:
            return f"timestamp {self.timestamp} instead of {sent.timestamp}"
        return None


def shown(data: bytes | None) -> str:
    """Bytes for an error, not all of them."""
    return repr(data) if data is None or len(data) <= 40 else f"{data[:40]!r}... ({len(data)} bytes)"


def difference(sent: list[Sent], found: list[Found]) -> str | None:
    """The first difference between what must be there and what is, in order; None where there is none."""
    for index, (one, other) in enumerate(zip(sent, found, strict=False)):
        wrong = other.differs_from(one)
        if wrong is not None:
            return f"record {index} of {len(sent)} has {wrong}"
    if len(sent) != len(found):
        return f"{len(found)} records instead of {len(sent)}"
    return None


def without_repeats(found: list[Found]) -> list[Found]:
    """The records but for those that a retry has written again: without idempotence that is allowed."""
    seen: set[tuple[bytes | None, bytes | None]] = set()
    kept = []
    for record in found:
        if (record.key, record.value) not in seen:
            seen.add((record.key, record.value))
            kept.append(record)
    return kept
