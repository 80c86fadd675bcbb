# SPDX-License-Identifier: Apache-2.0
# cython: annotation_typing=False
"""Interceptors: user code that sees every record on its way out, and every outcome on its way back.

Compiled if possible.

Rules:
1. An interceptor cannot break delivery: what it raises is logged, and the work goes on with the last good record.
2. `on_send` runs on the thread that called send(), `on_acknowledgement` mostly on the I/O thread: it must be quick.
3. Every record that passed `on_send` is acknowledged exactly once, also when send() itself fails.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock._events import Event, current, tell, tell_error
from penstock.errors import ConfigError
from penstock.types import HeadersLike, OnDelivery, ProducerRecord, RecordMetadata, as_headers

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from penstock._tracing import RecordEnd

_logger = logging.getLogger(__name__)

_UNKNOWN = -1


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


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


@cython.final
@cython.cclass
class Interceptors:
    """The configured interceptors, called in order.

    Attributes:
        sees_records: whether any of them has an `on_send` of its own.
    """

    sees_records = cython.declare(cython.bint, visibility="readonly")
    _interceptors = cython.declare(tuple)
    _senders = cython.declare(tuple)  # those with an `on_send` of their own
    _acknowledgers = cython.declare(tuple)
    _events = cython.declare(object)

    def __init__(self, interceptors: Iterable[Any] = ()) -> None:
        self._interceptors = tuple(interceptors)
        self._events = current()  # `on_send` runs on any thread
        self._senders = tuple([one for one in self._interceptors if _has_on_send(one)])
        self.sees_records = len(self._senders) > 0
        # Each with its method, and whether that takes headers: looked at once here, not for each record.
        self._acknowledgers = tuple(
            [(one, one.on_acknowledgement, _takes_headers(one)) for one in self._interceptors]
        )

    def __len__(self) -> int:
        return len(self._interceptors)

    def __repr__(self) -> str:
        return f"Interceptors({', '.join(_name(interceptor) for interceptor in self._interceptors)})"

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass the record through all; each gets what the last one that succeeded gave."""
        for interceptor in self._senders:
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
            if answer is record or isinstance(answer, ProducerRecord):
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
        self, metadata: RecordMetadata, error: BaseException | None, headers: HeadersLike | None = None
    ) -> None:
        """Tell all what became of a record."""
        for interceptor, acknowledge, takes_headers in self._acknowledgers:
            try:
                if takes_headers:
                    acknowledge(metadata, error, as_headers(headers))
                else:
                    acknowledge(metadata, error)
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


@cython.final
@cython.freelist(64)
@cython.cclass
class Acknowledge:
    """The callback of a record with interceptors or a span: these come before the user's callback.

    Args:
        ended: ends the span, if there is one.
        interceptors: get the outcome.
        headers: of the record.
        on_delivery: the user's callback.
    """

    _ended = cython.declare(object)
    _interceptors: Interceptors
    _headers = cython.declare(object)
    _on_delivery = cython.declare(object)

    def __init__(
        self,
        ended: RecordEnd | None,
        interceptors: Interceptors,
        headers: HeadersLike | None,
        on_delivery: OnDelivery | None,
    ) -> None:
        self._ended = ended
        self._interceptors = interceptors
        self._headers = headers
        self._on_delivery = on_delivery

    @property
    def is_look(self) -> bool:
        """Whether the application gets the outcome of the record; asked when the outcome is known.

        Interceptors do not count: they see all records. The user's callback does not count, either, if it would run in
        an event loop that has ended.
        """
        return self._on_delivery is not None and bool(getattr(self._on_delivery, "is_look", True))

    def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
        try:
            if self._ended is not None:
                self._ended(metadata, error)
        finally:  # an error of a tracing system, of any class, must not keep the others from their call
            self._interceptors.on_acknowledgement(metadata, error, self._headers)
            if self._on_delivery is not None:
                self._on_delivery(metadata, error)


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


def _has_on_send(interceptor: Any) -> bool:
    return getattr(interceptor.on_send, "__func__", None) is not Interceptor.on_send


def _takes_headers(interceptor: Any) -> bool:
    """Whether on_acknowledgement takes a third argument."""
    try:
        signature = inspect.signature(interceptor.on_acknowledgement)
    except (TypeError, ValueError):
        return False  # code without a signature (some compiled callables): the form that every client has had
    if _accepts(signature, 3):
        return True
    if _accepts(signature, 2):
        return False
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
