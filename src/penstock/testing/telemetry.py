# SPDX-License-Identifier: Apache-2.0
"""What the fake cluster wants to know of its clients, and what they have told it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.records.compression import decompress

_ALL_CODECS: Final = (4, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class TelemetryPush:
    """One push of a client.

    Attributes:
        client_instance_id: whose it is.
        terminating: the client has said that it is its last.
        codec: the number of the codec that it was compressed with.
        metrics: OpenTelemetry's MetricsData, as it was before compression.
        at: the monotonic time of its arrival.
    """

    client_instance_id: bytes
    terminating: bool
    codec: int
    metrics: bytes
    at: float


@dataclass(slots=True)
class FakeTelemetry:
    """A subscription, and who has answered it. Set it as `telemetry` of a FakeCluster, and brokers offer it.

    Attributes:
        metrics: prefixes of the names of metrics; ["*"] for all; none for nothing.
        interval_ms: between pushes.
        subscription_id: a client that pushes under another one must ask again.
        max_bytes: of one push.
        delta: whether sums are wanted as differences.
        codecs: those that are accepted, the best first.
        pushes: what came, oldest first.
    """

    metrics: list[str] = field(default_factory=lambda: ["*"])
    interval_ms: int = 300_000
    subscription_id: int = 1
    max_bytes: int = 1_048_576
    delta: bool = True
    codecs: tuple[int, ...] = _ALL_CODECS
    pushes: list[TelemetryPush] = field(default_factory=list)
    last_push: dict[bytes, float] = field(default_factory=dict)
    ended: set[bytes] = field(default_factory=set)

    def unpack(self, codec: int, data: bytes) -> bytes:
        """Return the data without its compression."""
        return decompress(codec, data, 64 * self.max_bytes) if codec else bytes(data)
