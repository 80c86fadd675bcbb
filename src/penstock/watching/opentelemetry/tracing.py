# SPDX-License-Identifier: Apache-2.0
"""Traces producers with OpenTelemetry, by the conventions for messaging 1.44.

Rules:
1. A span of a call begins with the call and ends with the outcome: partition, offset and error are on it.
2. What OpenTelemetry raises is logged, and the record goes on as if nobody had traced it.
3. Metrics are recorded once for each produce request, at every level.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock._events import ClientEvents, Event, current, tell_error
from penstock._extras import how_to_install
from penstock.errors import BrokerError, ConfigError, error_row

try:
    import opentelemetry.context
except ModuleNotFoundError as missing:
    if missing.name not in ("opentelemetry", "opentelemetry.context"):
        raise
    raise ConfigError(
        "tracing with OpenTelemetry needs the package opentelemetry-api: "
        + how_to_install("otel", "opentelemetry-api"),
        "tracing",
    ) from missing

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from penstock._version import __version__
from penstock.types import Header, HeadersLike, ProducerRecord, RecordMetadata, as_headers
from penstock.watching.opentelemetry._carrying_cy import ContextCarrier, Headers

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

    from penstock._tracing import AnsweredRequest, BulkEnd, RecordEnd

log = logging.getLogger("penstock.watching")

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_NAME = "penstock"
# What the conventions advise for the duration, in seconds.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_SEND: dict[str, AttributeValue] = {
    "messaging.system": "kafka",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
}
# Metrics have the operation's name only.
_SENT = {name: _SEND[name] for name in ("messaging.system", "messaging.operation.name")}
_TOPIC = "messaging.destination.name"
_PARTITION = "messaging.destination.partition.id"
_OFFSET = "messaging.kafka.offset"
_COUNT = "messaging.batch.message_count"
_CLIENT = "messaging.client.id"
_ERROR = "error.type"


def _way_to_the_context() -> Callable[[], Context]:
    """What gives the current Context: the variable itself where it is known, which takes a sixth of the time."""
    runtime = getattr(opentelemetry.context, "_RUNTIME_CONTEXT", None)
    variable = getattr(runtime, "_current_context", None)
    if type(runtime) is ContextVarsRuntimeContext and isinstance(variable, ContextVar):
        get: Callable[[], Context] = variable.get
        return get
    return get_current


_current = _way_to_the_context()


class Level(StrEnum):
    """How much is traced.

    PROPAGATION: the caller's context goes into the headers of records; there is no span. The cheapest by far.
    CALLS: besides, each call of send, send_many and send_arrow has a span.
    REQUESTS: the context goes into headers, and each produce request has a span.
    """

    PROPAGATION = "propagation"
    CALLS = "calls"
    REQUESTS = "requests"


class OpenTelemetry:
    """Traces the producers that have it as their `tracing`.

    Args:
        level: how much is traced.
        tracer_provider: makes the spans; the global one by default.
        meter_provider: makes the metrics, likewise.
        propagator: writes the headers, likewise.

    Raises:
        ValueError: there is no such level.
    """

    def __init__(
        self,
        level: Level | str = Level.CALLS,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self.level = Level(level)
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._propagator = propagator

    def trace_producer(self, client_id: str) -> ProducerSpans:
        """Trace a producer that is being made."""
        tracer = trace.get_tracer(_NAME, __version__, self._tracer_provider, schema_url=_SCHEMA)
        meter = metrics.get_meter(_NAME, __version__, self._meter_provider, schema_url=_SCHEMA)
        return ProducerSpans(self.level, client_id, tracer, meter, ContextCarrier(self._propagator, _current))

    def __repr__(self) -> str:
        return f"OpenTelemetry({self.level.value!r})"


class ProducerSpans:
    """Traces one producer; see `penstock._tracing.ProducerTracing`. Any thread may call it.

    Args:
        level: how much is traced.
        client_id: the producer's.
        tracer: makes its spans.
        meter: makes its metrics.
        carrier: turns contexts into headers.
    """

    def __init__(
        self,
        level: Level,
        client_id: str,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        carrier: ContextCarrier,
    ) -> None:
        self.has_spans = level is Level.CALLS
        self._spans_of_requests = level is Level.REQUESTS
        self._client = {**_SEND, _CLIENT: client_id}
        self._tracer = tracer
        self._carrier = carrier
        self._events = current()
        carrier.on_error = partial(
            _tell, self._events, "the context of a record could not be put into its headers"
        )
        # Compiled, and called for each record: a method around it would take as long as it does.
        self.with_context: Callable[[Any], Any] = carrier.add_to
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )

    def writes(self, name: str) -> bool:
        """Whether a header of that name carries a context."""
        try:
            return self._carrier.is_in(((name, None),))
        except Exception as error:  # noqa: BLE001 - it is logged
            _tell(self._events, "the names of the headers that carry a context are not known", error)
            return False

    # ------------------------------------------------------------------------------------------ a span for each call

    def begin(self, record: ProducerRecord) -> tuple[ProducerRecord, RecordEnd | None]:
        """A record on its way out: with the context in its headers, and a span that waits for its outcome."""
        try:
            if not self.has_spans:
                return _with_headers(record, self.with_context(record.headers)), None
            attributes = {**self._client, _TOPIC: record.topic}
            if record.partition is not None:
                attributes[_PARTITION] = str(record.partition)
            if isinstance(record.key, str):
                attributes["messaging.kafka.message.key"] = record.key
            if record.value is None:
                attributes["messaging.kafka.message.tombstone"] = True
            span, headers = self._begin_span(record.topic, attributes, record.headers)
            return _with_headers(record, headers), _RecordSpan(span).end
        except Exception as error:  # noqa: BLE001 - it is logged
            _tell(self._events, "a record for topic %s could not be traced", error, record.topic)
            return record, None

    def begin_bulk(
        self, topic: str | None, count: int
    ) -> tuple[Callable[[HeadersLike | None], tuple[Header, ...]], BulkEnd | None]:
        """A call for many records: one span, whose context goes into the headers of each."""
        try:
            if not self.has_spans:
                added, end = as_headers(self.with_context(None)), None
            else:
                attributes = dict(self._client)
                if topic is not None:
                    attributes[_TOPIC] = topic
                if count >= 0:
                    attributes[_COUNT] = count
                span, added = self._begin_span(topic, attributes, ())
                end = _BulkSpan(span, count).end
        except Exception as error:  # noqa: BLE001 - it is logged
            _tell(self._events, "a call for many records could not be traced", error)
            added, end = (), None
        carrier = self._carrier

        def add(headers: HeadersLike | None) -> tuple[Header, ...]:
            if headers is None:
                return added
            own = as_headers(headers)
            return own if carrier.is_in(own) else (*own, *added)

        return add, end

    def _begin_span(
        self, topic: str | None, attributes: dict[str, AttributeValue], headers: tuple[Header, ...]
    ) -> tuple[Span, tuple[Header, ...]]:
        """A span below the current one, and headers with its context, unless they have one already."""
        name = "send" if topic is None else f"send {topic}"
        context = _current()
        if headers and self._carrier.is_in(headers):
            created = self._carrier.extract(headers)
            links = () if created is None else (Link(created),)
            span = self._tracer.start_span(name, context, SpanKind.CLIENT, attributes, links)
            return span, headers
        span = self._tracer.start_span(name, context, SpanKind.PRODUCER, attributes)
        return span, (*headers, *as_headers(self._carrier.of_span(span, context)))

    # ------------------------------------------------------------------------------------------ produce requests

    def on_request_end(self, ended: AnsweredRequest) -> None:
        """Record the metrics of a request, and its span where requests have one."""
        server: dict[str, AttributeValue] = {"server.address": ended.host, "server.port": ended.port}
        sums: dict[tuple[str, str | None], int] = {}
        for topic, partition, count in ended.batches:
            failed = _failure(ended, topic, partition)
            sums[topic, failed] = sums.get((topic, failed), 0) + count
        for (topic, failed), count in sums.items():
            attributes: dict[str, AttributeValue] = {**_SENT, **server, _TOPIC: topic}
            if failed is not None:
                attributes[_ERROR] = failed
            self._sent.add(count, attributes)
        topics = {topic for topic, _ in sums}
        errors = sorted({failed for _, failed in sums if failed is not None})
        about: dict[str, AttributeValue] = dict(server)
        if len(topics) == 1:
            about[_TOPIC] = next(iter(topics))
        if errors:
            about[_ERROR] = errors[0]
        self._duration.record(ended.seconds, {**_SENT, **about})
        if self._spans_of_requests:
            self._record_request(ended, about, errors)

    def _record_request(
        self, ended: AnsweredRequest, about: dict[str, AttributeValue], errors: list[str]
    ) -> None:
        end_ns = time.time_ns()
        attributes = {**self._client, **about, _COUNT: sum(count for _, _, count in ended.batches)}
        if len(ended.batches) == 1:
            attributes[_PARTITION] = str(ended.batches[0][1])
        name = f"send {ended.batches[0][0]}" if _TOPIC in about else "send"
        # It carries the records of many callers: it is below none of their spans.
        span = self._tracer.start_span(
            name, Context(), SpanKind.CLIENT, attributes, start_time=end_ns - int(ended.seconds * 1e9)
        )
        if errors:
            span.set_status(Status(StatusCode.ERROR, str(ended.error) if ended.error else ", ".join(errors)))
        span.end(end_ns)


class _RecordSpan:
    """The span of one record until its outcome is known."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        try:
            span = self._span
            if span.is_recording():
                if metadata.partition >= 0:
                    span.set_attribute(_PARTITION, str(metadata.partition))
                if metadata.offset >= 0:
                    span.set_attribute(_OFFSET, metadata.offset)
                _note_error(span, error)
            span.end()
        except Exception as trouble:  # noqa: BLE001 - it is logged
            _tell(None, "the span of a record could not be ended", trouble)


class _BulkSpan:
    """The span of a call for many records until all outcomes are known."""

    __slots__ = ("_count", "_span")

    def __init__(self, span: Span, count: int) -> None:
        self._span = span
        self._count = count

    def end(self, records: int, error: BaseException | None) -> None:
        try:
            if self._span.is_recording():
                if self._count < 0 <= records and error is None:
                    self._span.set_attribute(_COUNT, records)
                _note_error(self._span, error)
            self._span.end()
        except Exception as trouble:  # noqa: BLE001 - it is logged
            _tell(None, "the span of a call could not be ended", trouble)


def _tell(of: ClientEvents | None, text: str, error: Exception, *topic: str) -> None:
    """Say that something could not be traced; without `of`, of the client that this thread works for."""
    tell_error(
        log, Event.TRACING_FAILED, text, *topic,
        of=of, topic=topic[0] if topic else None, error=error,
    )  # fmt: skip


def _note_error(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute(_ERROR, _error_name(error))
        span.set_status(Status(StatusCode.ERROR, str(error)))


def _error_name(error: BaseException) -> str:
    """Kafka's name where a broker gave one, else that of the class."""
    return error.name if isinstance(error, BrokerError) else type(error).__qualname__


def _failure(ended: AnsweredRequest, topic: str, partition: int) -> str | None:
    if ended.error is not None:
        return _error_name(ended.error)
    code = ended.refused.get((topic, partition))
    if code is None:
        return None
    return error_row(code).name


def _with_headers(record: ProducerRecord, headers: Headers) -> ProducerRecord:
    return record if headers is record.headers else replace(record, headers=as_headers(headers))
