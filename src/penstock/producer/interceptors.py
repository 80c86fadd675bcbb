# SPDX-License-Identifier: Apache-2.0
"""Interceptors: user code that sees every record on its way out, and every outcome on its way back.

Rules:
1. An interceptor cannot break delivery: what it raises is logged, and the work goes on with the last good record.
2. `on_send` runs on the thread that called send(), `on_acknowledgement` mostly on the I/O thread: it must be quick.
3. Every record that passed `on_send` is acknowledged exactly once, also when send() itself fails.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

from penstock._events import Event, current, tell, tell_error
from penstock.errors import ConfigError
from penstock.types import Header, ProducerRecord, RecordMetadata

_logger = logging.getLogger(__name__)

_UNKNOWN = -1

_Acknowledge = Callable[[RecordMetadata, BaseException | None, tuple[Header, ...]], None]


class Interceptor:
    """Base of interceptors, for those who like to inherit; anything with these methods will do."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """See a record before it is serialized; give it back, or another one in its place."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Learn what became of a record. A third parameter, if there is one, gets the record's headers.

        Args:
            metadata: where the record is. On failure the topic, the partition (-1 when none was chosen), and -1 for
                the rest; never None.
            error: why it failed, or None.
        """

    def close(self) -> None:
        """Release what the interceptor holds; called once, when the producer closes."""


class Interceptors:
    """The configured interceptors, called in order."""

    __slots__ = ("_acknowledgers", "_events", "_interceptors")

    def __init__(self, interceptors: Iterable[Any] = ()) -> None:
        self._interceptors: tuple[Any, ...] = tuple(interceptors)
        self._events = current()  # `on_send` runs on any thread
        self._acknowledgers: tuple[tuple[Any, _Acknowledge], ...] = tuple(
            (interceptor, _acknowledger(interceptor)) for interceptor in self._interceptors
        )

    def __len__(self) -> int:
        return len(self._interceptors)

    def __repr__(self) -> str:
        return f"Interceptors({', '.join(_name(interceptor) for interceptor in self._interceptors)})"

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass the record through all; each gets what the last one that succeeded gave."""
        for interceptor in self._interceptors:
            try:
                answer = interceptor.on_send(record)
            except Exception as error:  # noqa: BLE001 - it is logged
                self._tell(
                    interceptor,
                    "on_send",
                    error,
                    "%s.on_send failed for topic %s",
                    record.topic,
                    record.topic,
                )
                continue
            if isinstance(answer, ProducerRecord):
                record = answer
            else:
                tell(
                    _logger, logging.WARNING, Event.INTERCEPTOR_FAILED,
                    "%s.on_send gave %s for topic %s instead of a ProducerRecord; it is ignored",
                    _name(interceptor), type(answer).__name__, record.topic,
                    of=self._events, each=(_name(interceptor), type(answer)), topic=record.topic,
                )  # fmt: skip
        return record

    def on_acknowledgement(
        self, metadata: RecordMetadata, error: BaseException | None, headers: tuple[Header, ...] = ()
    ) -> None:
        """Tell all what became of a record."""
        for interceptor, acknowledge in self._acknowledgers:
            try:
                acknowledge(metadata, error, headers)
            except Exception as raised:  # noqa: BLE001 - it is logged
                text = "%s.on_acknowledgement failed for %s"
                self._tell(
                    interceptor, "on_acknowledgement", raised, text, metadata.topic_partition, metadata.topic
                )

    def on_send_error(self, record: ProducerRecord, partition: int | None, error: BaseException) -> None:
        """Tell all that send() refused a record.

        Args:
            record: the record as the interceptors left it.
            partition: the partition chosen for it; None when it failed before, then the record's own, or -1.
            error: why.
        """
        if not self._interceptors:
            return
        self.on_acknowledgement(refused_metadata(record, partition), error, record.headers)

    def close(self) -> None:
        """Close all, also when closing one fails."""
        for interceptor in self._interceptors:
            close = getattr(interceptor, "close", None)
            if close is None:
                continue
            try:
                close()
            except Exception as error:  # noqa: BLE001 - it is logged
                self._tell(interceptor, "close", error, "%s.close failed")

    def _tell(
        self,
        interceptor: Any,
        call: str,
        error: Exception,
        text: str,
        about: Any = None,
        topic: str | None = None,
    ) -> None:
        named = _name(interceptor)
        args = (named,) if about is None else (named, about)
        tell_error(
            _logger, Event.INTERCEPTOR_FAILED, text, *args,
            of=self._events, each=(named, call), topic=topic, error=error,
        )  # fmt: skip


def refused_metadata(record: ProducerRecord, partition: int | None) -> RecordMetadata:
    """What is known of a record that send() refused; the arguments are those of `on_send_error`."""
    if partition is None:
        partition = _UNKNOWN if record.partition is None else record.partition
    return RecordMetadata(
        topic=record.topic,
        partition=partition,
        offset=_UNKNOWN,
        timestamp=_UNKNOWN,
        serialized_key_size=_UNKNOWN,
        serialized_value_size=_UNKNOWN,
    )


def _name(interceptor: Any) -> str:
    return type(interceptor).__qualname__


def _acknowledger(interceptor: Any) -> _Acknowledge:
    """Adapt on_acknowledgement to three arguments; looked at once here, not for each record."""
    method = interceptor.on_acknowledgement
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        # Code without a signature (some compiled callables): the form that every client has had.
        return lambda metadata, error, headers: method(metadata, error)
    if _accepts(signature, 3):
        return method  # type: ignore[no-any-return]  # duck typing is the interface
    if _accepts(signature, 2):
        return lambda metadata, error, headers: method(metadata, error)
    raise ConfigError(
        f"interceptors: {_name(interceptor)}.on_acknowledgement must take (metadata, error) or "
        f"(metadata, error, headers), not {signature}",
        "interceptor.classes",
    )


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        return False
    return True
