# SPDX-License-Identifier: Apache-2.0
"""A producer that acknowledges at once, or fails or stops as the test says, for the commands that send records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Sent(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None


class FakeDelivery:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self.error


class FakeProducer:
    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.sent: list[Sent] = []
        self.closed_with: list[float | None] = []
        self.before_send: Callable[[int], None] = lambda index: None  # may raise: `send` raises it
        self.outcome: Callable[[int], BaseException | None] = lambda index: None
        self.before_outcome: Callable[[], None] = lambda: None
        self.on_flush: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self.hold = False  # outcomes are known only at flush
        self._held: list[Callable[[], None]] = []

    def open(self, config: Mapping[str, str]) -> FakeProducer:
        self.config = dict(config)
        return self

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Any = None,
    ) -> FakeDelivery:
        index = len(self.sent)
        self.before_send(index)
        self.sent.append(Sent(topic, value, key, tuple(headers or ()), partition, timestamp_ms))
        delivery = FakeDelivery(self.outcome(index))

        def settle() -> None:
            self.before_outcome()
            if on_delivery is not None:
                on_delivery(None, delivery.error)
            delivery.is_done = True

        self._held.append(settle)
        if not self.hold:
            self._settle()
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        self.on_flush()
        self._settle()

    def close(self, timeout: float | None = None) -> None:
        self.closed_with.append(timeout)
        self.on_close()
        self._settle()

    def metrics(self) -> Mapping[str, Any]:
        return {"producer-metrics": {"record-send-total": len(self.sent), "rate": 1.5}}

    def _settle(self) -> None:
        held, self._held = self._held, []
        for settle in held:
            settle()
