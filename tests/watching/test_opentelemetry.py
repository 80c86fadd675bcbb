# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: context in headers, spans of calls and requests, metrics, and what is left alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_impl import implementations
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock import AsyncProducer, Interceptor, Producer, ProducerRecord
from penstock._events import PREFIX, Event
from penstock.error_codes import ErrorCode
from penstock.errors import (
    ConfigError,
    InvalidRecordError,
    MessageTooLargeError,
    ProducerClosedError,
    SerializationError,
)
from penstock.partitioners import RoundRobinPartitioner
from penstock.protocol.messages import PRODUCE
from penstock.testing import FakeCluster, FakeKafka
from penstock.testing.faults import Fault
from penstock.watching.opentelemetry import OpenTelemetry
from penstock.watching.opentelemetry._carrying_cy import ContextCarrier

carrying = implementations("penstock.watching.opentelemetry._carrying_cy")

PROGRAM = Path(__file__).with_name("traced_program.py")
SECONDS = 30


class Traces:
    """OpenTelemetry's SDK, in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def tracing(self, level: str, **more: Any) -> OpenTelemetry:
        return OpenTelemetry(level, tracer_provider=self.provider, meter_provider=self.meters, **more)

    def spans(self, name: str) -> list[ReadableSpan]:
        """In the order in which they began: the I/O thread may end one after others know its outcome."""
        found = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The data points of a metric: attributes, and the point."""
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    yield made
    made.provider.shutdown()
    made.meters.shutdown()


@pytest.fixture
def cluster(kafka: FakeKafka) -> FakeKafka:
    kafka.create_topic("orders", 1)
    return kafka


def parent_of(span: trace.Span) -> bytes:
    """The header that carries a span."""
    made = span.get_span_context()
    return f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags:02x}".encode()


def carried(cluster: FakeCluster, topic: str = "orders") -> list[list[bytes | None]]:
    """The values of `traceparent` of each record."""
    return [
        [header.value for header in record.headers if header.key == "traceparent"]
        for record in cluster.records(topic)
    ]


# ---------------------------------------------------------------------------------------------- propagation


@pytest.mark.parametrize("level", ["propagation", "calls"])
@pytest.mark.parametrize(
    ("release", "configs"),
    [("0.9.0", {}), ("0.10.2", {}), ("2.8", {"message.format.version": "0.10.2"})],
)
def test_where_no_headers_can_be_stored_records_lose_the_context_and_no_others_are_lost(
    release: str, configs: dict[str, str], level: str, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeKafka(topics={}, release=release) as old:
        old.create_topic("orders", 1, configs=configs)
        with (
            Producer(
                bootstrap_servers=old.bootstrap_servers,
                tracing=traces.tracing(level),
                broker_version_fallback="0.9.0",
                linger_ms=20,
            ) as producer,
            traces.tracer.start_as_current_span("web"),
        ):
            for value in (b"0", b"2"):
                sent = producer.send("orders", value)
                own = producer.send("orders", b"own", headers=[("h", b"1")])
                many = producer.send_many("orders", [b"many"])
                error = own.exception(SECONDS)
                assert isinstance(error, InvalidRecordError)
                assert "has headers ('h')" in str(error)
                assert sent.result(SECONDS).offset >= 0
                assert many.result(SECONDS).records == 1
        found = old.records("orders")
    assert [(record.value, record.headers) for record in found] == [
        (value, ()) for value in (b"0", b"many", b"2", b"many")
    ]
    events = [getattr(record, f"{PREFIX}event", None) for record in caplog.records]
    assert events.count(Event.CONTEXT_LOST.label) == 1


def test_every_way_of_sending_carries_the_callers_context(cluster: FakeKafka, traces: Traces) -> None:
    with (
        Producer(
            bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("propagation")
        ) as producer,
        traces.tracer.start_as_current_span("web") as web,
    ):
        producer.send("orders", b"the first takes the general path").result(SECONDS)
        producer.send("orders", b"the second the fast one")
        producer.send("orders", b"2", headers=[("a", b"1")])
        producer.send("orders", b"3", headers={"a": b"1"})
        producer.send_record(ProducerRecord("orders", b"4"))
        producer.send_many("orders", [b"5", b"6"])
        producer.send_many("orders", [b"7"], headers=[[("a", b"1")]])
        producer.send_arrow("orders", pa.table({"value": [b"8", b"9"]}))
        producer.flush(SECONDS)
    records = cluster.records("orders")
    assert carried(cluster) == [[parent_of(web)]] * 10
    assert [header.key for header in records[2].headers] == ["a", "traceparent"]
    assert not traces.spans("send orders")


def test_propagation_waits_for_nothing(cluster: FakeKafka, traces: Traces) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("propagation")
    ) as producer:
        producer.send("orders", b"makes the topic known").result(SECONDS)
        producer._finish = None  # type: ignore[method-assign,assignment]  # what has to wait goes on there
        with traces.tracer.start_as_current_span("web") as web:
            producer.send("orders", b"1", key=b"k", on_delivery=lambda *_: None)
        producer.send("orders", b"without a span")
    assert carried(cluster) == [[], [parent_of(web)], []]


def test_each_context_has_its_own_headers(cluster: FakeKafka, traces: Traces) -> None:
    expected = []
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("propagation")
    ) as producer:
        producer.send("orders", b"0").result(SECONDS)
        for _ in range(3):
            with traces.tracer.start_as_current_span("outer") as outer:
                producer.send("orders", b"x")
                with traces.tracer.start_as_current_span("inner") as inner:
                    producer.send("orders", b"x")
                producer.send("orders", b"x")
            expected += [parent_of(outer), parent_of(inner), parent_of(outer)]
    assert carried(cluster)[1:] == [[one] for one in expected]


@pytest.mark.parametrize("level", ["propagation", "calls", "requests"])
def test_a_context_that_the_record_has_is_left_alone(cluster: FakeKafka, traces: Traces, level: str) -> None:
    other = traces.tracer.start_span("elsewhere")
    own = [("traceparent", parent_of(other))]
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing(level)) as producer,
        traces.tracer.start_as_current_span("web") as web,
    ):
        producer.send("orders", b"0", headers=own).result(SECONDS)
        producer.send("orders", b"1", headers=own)
        producer.send_many("orders", [b"2", b"3"], headers=[own, None])
        producer.flush(SECONDS)
    mine = parent_of(other)
    kept = carried(cluster)
    assert kept[:3] == [[mine]] * 3
    assert kept[3] != [mine]
    if level == "calls":
        span = traces.spans("send orders")[0]
        assert span.kind is SpanKind.CLIENT
        assert span.parent == web.get_span_context()
        assert [link.context.span_id for link in span.links] == [other.get_span_context().span_id]


def test_our_traceparent_is_that_of_the_propagator(traces: Traces) -> None:
    state = trace.TraceState([("vendor", "x"), ("other", "y")])
    parents = [
        trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0)),
        trace.SpanContext(2**128 - 1, 2**64 - 1, is_remote=False, trace_flags=trace.TraceFlags(3)),
        trace.SpanContext(2**64, 2**30, is_remote=False, trace_state=state),
        trace.INVALID_SPAN_CONTEXT,
    ]
    ours, theirs = ContextCarrier(), ContextCarrier(Renamed())
    for parent in parents:
        span = trace.NonRecordingSpan(parent)
        for around in (context.Context(), baggage.set_baggage("user", "7", context.Context())):
            inside = trace.set_span_in_context(span, around)
            assert ours.of_context(inside) == theirs.of_context(inside)
            assert ours.of_span(span, around) == theirs.of_context(inside)


def random_contexts(count: int) -> Iterator[context.Context]:
    """Contexts with and without span, trace state and baggage; of each kind some that are odd."""
    numbers = random.Random(7)
    odd = ["a b", "ü=ö,;", "\t", "%41", '"', "x" * 5000, ""]
    for _ in range(count):
        made = context.Context()
        if numbers.random() < 0.3:
            for name in numbers.sample(["user", "naïve key", "a,b", "k"], numbers.randint(1, 3)):
                made = baggage.set_baggage(name, numbers.choice(odd), made)
        if numbers.random() < 0.1:
            made = baggage.clear(made)
        if numbers.random() < 0.2:
            made = context.set_value("elsewhere", object(), made)
        if numbers.random() < 0.9:
            made = trace.set_span_in_context(random_span(numbers), made)
        yield made


def random_span(numbers: random.Random) -> Any:
    if numbers.random() < 0.05:
        return numbers.choice([None, "no span", trace.INVALID_SPAN])
    pairs = [("vendor", "x"), ("t61@other", "a b"), ("empty", "")]
    state = trace.TraceState(numbers.sample(pairs, numbers.randint(1, 3))) if numbers.random() < 0.3 else None
    ids = [
        numbers.choice([numbers.getrandbits(bits), 0, 1, 2**bits - 1, 2**bits, 2 ** (bits // 2)])
        if numbers.random() < 0.4
        else numbers.getrandbits(bits)
        for bits in (128, 64)
    ]
    flags = trace.TraceFlags(numbers.choice([0, 1, 1, 1, 2, 3, 16, 255, 256, 2**70]))
    remote = numbers.random() < 0.5
    return trace.NonRecordingSpan(
        trace.SpanContext(*ids, is_remote=remote, trace_flags=flags, trace_state=state)
    )


@pytest.mark.parametrize("chosen", [None, TraceContextTextMapPropagator(), CompositePropagator([])])
def test_our_headers_are_those_of_inject(chosen: TextMapPropagator | None, carrying: Any) -> None:
    ours = carrying.ContextCarrier(chosen)
    asked = chosen or propagate.get_global_textmap()
    for made in random_contexts(3000):
        theirs: dict[str, str] = {}
        asked.inject(theirs, made)
        token = context.attach(made)
        try:
            expected = tuple((name, value.encode()) for name, value in theirs.items())
            assert ours.of_context(made) == expected, made
            assert (ours.add_to(None) or ()) == expected, made
            assert (ours.add_to(None) or ()) == expected, "once more, from what it remembers"
            assert ours.add_to([("a", b"1")]) in ([("a", b"1")], (("a", b"1"), *expected))
        finally:
            context.detach(token)


def test_the_usual_propagator_is_not_asked(monkeypatch: pytest.MonkeyPatch, carrying: Any) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(TraceContextTextMapPropagator, "inject", lambda *args, **_: asked.append(args))
    span = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
    made = trace.set_span_in_context(trace.NonRecordingSpan(span), context.Context({"elsewhere": 1}))
    ours = carrying.ContextCarrier()
    assert ours.of_context(made) == (("traceparent", b"00-%032x-%016x-01" % (1, 2)),)
    assert not asked
    ours.of_context(baggage.set_baggage("user", "7", made))
    assert asked


def test_a_class_derived_from_the_usual_propagator_is_asked(carrying: Any) -> None:
    class Derived(TraceContextTextMapPropagator):
        def inject(self, carrier: Any, *args: Any, **named: Any) -> None:
            carrier["x"] = "derived"

    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    made = trace.set_span_in_context(span, context.Context())
    for chosen in (Derived(), CompositePropagator([Derived()])):
        assert carrying.ContextCarrier(chosen).of_context(made) == (("x", b"derived"),)


def test_another_global_propagator_is_seen_within_the_same_context(carrying: Any) -> None:
    before = propagate.get_global_textmap()
    ours = carrying.ContextCarrier()
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    token = context.attach(trace.set_span_in_context(span, context.Context()))
    try:
        assert [name for name, _ in ours.add_to(None)] == ["traceparent"]
        assert ours.add_to([("traceparent", b"own")]) == [("traceparent", b"own")]
        propagate.set_global_textmap(Elsewhere())
        assert ours.add_to(None) == (("x-trace", b"2"),)
        assert ours.add_to([("x-trace", b"own")]) == [("x-trace", b"own")]
        propagate.set_global_textmap(before)
        assert [name for name, _ in ours.add_to(None)] == ["traceparent"]
    finally:
        propagate.set_global_textmap(before)
        context.detach(token)


class Renamed(TextMapPropagator):
    """The usual propagator under another name, so that it is asked."""

    def extract(self, *args: Any, **named: Any) -> context.Context:
        raise NotImplementedError

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        propagate.inject(carrier, context)

    @property
    def fields(self) -> set[str]:
        return {"traceparent"}


class Elsewhere(Renamed):
    """A propagator of somebody else's."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        carrier["x-trace"] = f"{trace.get_current_span(context).get_span_context().span_id:x}"

    @property
    def fields(self) -> set[str]:
        return {"x-trace"}


@pytest.mark.parametrize("level", ["propagation", "calls"])
def test_another_propagator_is_asked(cluster: FakeKafka, traces: Traces, level: str) -> None:
    tracing = traces.tracing(level, propagator=Elsewhere())
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=tracing) as producer,
        traces.tracer.start_as_current_span("web") as web,
    ):
        producer.send("orders", b"0").result(SECONDS)
    span = (
        web.get_span_context()
        if level == "propagation"
        else traces.spans("send orders")[0].get_span_context()
    )
    assert [tuple(header) for header in cluster.records("orders")[0].headers] == [
        ("x-trace", f"{span.span_id:x}".encode())
    ]


def test_baggage_is_carried(cluster: FakeKafka, traces: Traces) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("propagation")
    ) as producer:
        token = context.attach(baggage.set_baggage("user", "7"))
        try:
            producer.send("orders", b"0").result(SECONDS)
        finally:
            context.detach(token)
    assert [tuple(header) for header in cluster.records("orders")[0].headers] == [("baggage", b"user=7")]


def test_a_propagator_that_raises_stops_no_record(
    cluster: FakeKafka, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Elsewhere):
        def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
            raise RuntimeError("out of ink")

    for level in ("propagation", "calls"):
        tracing = traces.tracing(level, propagator=Broken())
        with Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=tracing) as producer:
            producer.send("orders", b"0").result(SECONDS)
            producer.send("orders", b"1").result(SECONDS)
            producer.send_many("orders", [b"2"]).result(SECONDS)
    assert len(cluster.records("orders")) == 6
    assert "out of ink" in caplog.text


# ---------------------------------------------------------------------------------------------- spans of calls


def test_the_span_of_a_call_tells_where_the_record_is(cluster: FakeKafka, traces: Traces) -> None:
    with (
        Producer(
            bootstrap_servers=cluster.bootstrap_servers, client_id="shop", tracing=traces.tracing("calls")
        ) as producer,
        traces.tracer.start_as_current_span("web") as web,
    ):
        producer.send("orders", b"0").result(SECONDS)
        delivery = producer.send("orders", None, partition=0)
        assert delivery.result(SECONDS).offset == 1
    first, second = traces.spans("send orders")
    expected = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "shop",
        "messaging.kafka.offset": 0,
    }
    assert dict(first.attributes or {}) == expected
    assert dict(second.attributes or {}) == {
        **expected,
        "messaging.kafka.offset": 1,
        "messaging.kafka.message.tombstone": True,
    }
    assert first.kind is SpanKind.PRODUCER
    assert first.parent == web.get_span_context()
    assert first.status.status_code is StatusCode.UNSET
    assert carried(cluster)[0] == [parent_of(trace.NonRecordingSpan(first.get_span_context()))]


def test_the_span_ends_with_the_acknowledgement(cluster: FakeKafka, traces: Traces) -> None:
    ended: list[int] = []
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("calls"), linger_ms=60_000
    ) as producer:
        on_delivery = lambda *_: ended.append(len(traces.spans("send orders")))  # noqa: E731
        producer.send("orders", b"0", on_delivery=on_delivery)
        assert not traces.spans("send orders")
        producer.flush(SECONDS)
    assert ended == [1], "the user's callback comes after the span"


def test_a_failed_record_has_its_error_on_its_span(cluster: FakeKafka, traces: Traces) -> None:
    cluster.add_fault(Fault(api=PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE))
    with Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("calls")) as producer:
        assert isinstance(producer.send("orders", b"0").exception(SECONDS), MessageTooLargeError)
    with pytest.raises(ProducerClosedError):
        producer.send("orders", b"1")
    broker, closed = traces.spans("send orders")
    assert (broker.attributes or {})["error.type"] == "MESSAGE_TOO_LARGE"
    assert broker.status.status_code is StatusCode.ERROR
    assert "messaging.kafka.offset" not in (broker.attributes or {})
    assert (closed.attributes or {})["error.type"] == "ProducerClosedError"


def test_many_records_have_one_span(cluster: FakeKafka, traces: Traces) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("calls")) as producer:
        producer.send_many("orders", [b"0", b"1"]).result(SECONDS)
        producer.send_arrow("orders", pa.table({"value": [b"2", b"3", b"4"]})).result(SECONDS)
        cluster.add_fault(Fault(api=PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE))
        assert producer.send_many("orders", [b"5"]).exception(SECONDS)
        with pytest.raises(SerializationError):
            producer.send_many("orders", [b"6", 7])
    many, arrow, failed, refused = traces.spans("send orders")
    assert [(span.attributes or {})["messaging.batch.message_count"] for span in (many, arrow)] == [2, 3]
    assert (failed.attributes or {})["error.type"] == "MESSAGE_TOO_LARGE"
    assert refused.status.status_code is StatusCode.ERROR
    expected = [parent_of(trace.NonRecordingSpan(span.get_span_context())) for span in (many, arrow)]
    assert carried(cluster) == [[expected[0]]] * 2 + [[expected[1]]] * 3


def test_a_bulk_row_by_row_has_one_span_too(cluster: FakeKafka, traces: Traces) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        tracing=traces.tracing("calls"),
        partitioner=RoundRobinPartitioner(),
    ) as producer:
        producer.send_many("orders", [b"0", b"1"]).result(SECONDS)
    (span,) = traces.spans("send orders")
    assert carried(cluster) == [[parent_of(trace.NonRecordingSpan(span.get_span_context()))]] * 2


def test_the_failure_of_a_bulk_that_nobody_asked_for_is_still_told(
    cluster: FakeKafka, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing("calls")) as producer:
        producer.send_many("orders", [b"0"]).result(SECONDS)
        cluster.add_fault(Fault(api=PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE))
        producer.send_many("orders", [b"1"])
    assert "MESSAGE_TOO_LARGE" in caplog.text or "too large" in caplog.text


def test_an_interceptor_sees_the_record_before_its_span(cluster: FakeKafka, traces: Traces) -> None:
    class Rerouting(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord("meals", record.value)

    cluster.create_topic("meals", 1)
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        tracing=traces.tracing("calls"),
        interceptors=[Rerouting()],
    ) as producer:
        producer.send("orders", b"0").result(SECONDS)
    (span,) = traces.spans("send meals")
    assert (span.attributes or {})["messaging.kafka.offset"] == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("level", ["propagation", "calls"])
async def test_the_tasks_of_a_loop_have_their_own_contexts(
    cluster: FakeKafka, traces: Traces, level: str
) -> None:
    async with AsyncProducer(
        bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing(level)
    ) as producer:
        with traces.tracer.start_as_current_span("first") as first:
            await producer.send_and_wait("orders", b"0")
        with traces.tracer.start_as_current_span("second") as second:
            await producer.send_and_wait("orders", b"1")
            await producer.send_and_wait("orders", b"2", on_delivery=lambda *_: None)
            await (await producer.send_many("orders", [b"3"]))
    parents = [first, second, second, second]
    if level == "calls":
        assert [span.parent for span in traces.spans("send orders")] == [
            span.get_span_context() for span in parents
        ]
    else:
        assert carried(cluster) == [[parent_of(span)] for span in parents]


@pytest.mark.parametrize("level", ["calls", "requests"])
def test_a_processor_that_ends_its_thread_stops_no_record(
    cluster: FakeKafka, traces: Traces, level: str
) -> None:
    class Ending(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise SystemExit("enough")

    traces.provider.add_span_processor(Ending())
    told: list[int] = []
    with Producer(bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing(level)) as producer:
        for _ in range(2):
            producer.send("orders", b"0", on_delivery=lambda metadata, _: told.append(metadata.offset))
            producer.flush(SECONDS)
    assert told == [0, 1]


# ---------------------------------------------------------------------------------------------- requests, metrics


def test_a_produce_request_has_a_span(cluster: FakeKafka, traces: Traces) -> None:
    with (
        Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            tracing=traces.tracing("requests"),
            linger_ms=60_000,
            retry_backoff_ms=1,
        ) as producer,
        traces.tracer.start_as_current_span("web") as web,
    ):
        cluster.add_fault(Fault(api=PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS))
        for number in range(3):
            producer.send("orders", b"%d" % number)
        producer.flush(SECONDS)
    failed, written = traces.spans("send orders")
    host, port = cluster.bootstrap_servers.split(",")[0].split(":")
    common = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": 3,
        "messaging.client.id": producer._core.config.client_id,
        "server.address": host,
        "server.port": int(port),
    }
    assert dict(written.attributes or {}) == common
    assert dict(failed.attributes or {}) == {**common, "error.type": "NOT_ENOUGH_REPLICAS"}
    assert failed.status.status_code is StatusCode.ERROR
    assert written.kind is SpanKind.CLIENT
    assert written.parent is None
    assert (written.end_time or 0) >= (written.start_time or 0) > 0
    assert carried(cluster) == [[parent_of(web)]] * 3


@pytest.mark.parametrize("level", ["propagation", "calls", "requests"])
def test_metrics_count_requests_and_messages(cluster: FakeKafka, traces: Traces, level: str) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, tracing=traces.tracing(level), retry_backoff_ms=1
    ) as producer:
        producer.send_many("orders", [b"0", b"1"]).result(SECONDS)
        cluster.add_fault(Fault(api=PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS))
        producer.send("orders", b"2").result(SECONDS)
    sent = {
        point[0].get("error.type"): point[1].value
        for point in traces.points("messaging.client.sent.messages")
    }
    assert sent == {None: 3, "NOT_ENOUGH_REPLICAS": 1}
    durations = traces.points("messaging.client.operation.duration")
    assert {attributes.get("error.type"): point.count for attributes, point in durations} == {
        None: 2,
        "NOT_ENOUGH_REPLICAS": 1,
    }
    attributes, point = durations[0]
    assert attributes["messaging.operation.name"] == "send"
    assert attributes["messaging.destination.name"] == "orders"
    assert point.explicit_bounds[0] == 0.005


# ---------------------------------------------------------------------------------------------- the rest


@pytest.mark.slow
def test_the_span_tree_of_two_processes(cluster: FakeKafka) -> None:
    cluster.create_topic("meals", 1)
    cluster.create_topic("bills", 1, configs={"max.message.bytes": "10"})
    spans: dict[str, dict[str, Any]] = {}
    for name in ("shop", "kitchen"):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(PROGRAM), name, cluster.bootstrap_servers],
            check=True, capture_output=True, text=True, timeout=110,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            span = json.loads(line)
            spans[span["name"]] = span
    order, sent, processed = spans["order"], spans["send orders"], spans["process orders"]
    meal, bill = spans["send meals"], spans["send bills"]
    assert len({span["trace"] for span in spans.values()}) == 1
    assert [span["parent"] for span in (order, sent, processed, meal, bill)] == [
        None, order["id"], sent["id"], processed["id"], processed["id"],
    ]  # fmt: skip
    assert sent["attributes"]["messaging.kafka.message.key"] == "table 5"
    assert (meal["status"], meal["attributes"]["messaging.kafka.offset"]) == ("UNSET", 0)
    assert (bill["status"], bill["attributes"]["error.type"]) == ("ERROR", "MESSAGE_TOO_LARGE")
    assert [sent["attributes"]["messaging.client.id"], bill["attributes"]["messaging.client.id"]] == [
        "shop",
        "kitchen",
    ]


def test_what_cannot_trace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tracing: .*: it must have a method trace_producer\(\)"):
        Producer(bootstrap_servers="localhost:1", tracing=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="everything"):
        OpenTelemetry("everything")


def test_the_producer_does_not_bring_opentelemetry() -> None:
    code = "import sys; from penstock import Producer, AsyncProducer; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not [
        name for name in done.stdout.split() if name.startswith(("opentelemetry", "penstock.watching"))
    ]


def test_without_the_package_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from penstock import Producer\n"
        "from penstock.errors import ConfigError\n"
        "try:\n"
        "    Producer(bootstrap_servers='localhost:1', tracing='penstock.watching.opentelemetry:calls')\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "'.[otel]'" in done.stdout
