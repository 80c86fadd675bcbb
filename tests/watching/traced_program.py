# SPDX-License-Identifier: Apache-2.0
"""Two programs of a traced pipeline, each a process of its own; each prints its spans, one JSON object a line.

python traced_program.py shop localhost:9092       takes an order
python traced_program.py kitchen localhost:9092    reads it, cooks it, and sends on what it made of it
"""

from __future__ import annotations

import json
import sys

import confluent_kafka
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import Producer
from penstock.errors import KafkaError


def shop(producer: Producer, _servers: str) -> None:
    with trace.get_tracer("shop").start_as_current_span("order"):
        producer.send("orders", b"soup", key="table 5").result(30)


def kitchen(producer: Producer, servers: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "kitchen"})
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    message = None
    while message is None:
        message = consumer.poll(1.0)
    consumer.close()
    carrier = {name: value.decode() for name, value in message.headers() or ()}
    parent = propagate.extract(carrier)
    with trace.get_tracer("kitchen").start_as_current_span("process orders", parent, trace.SpanKind.CONSUMER):
        producer.send("meals", b"hot " + message.value()).result(30)
        failed = producer.send("bills", b"4.50")
        if not isinstance(failed.exception(30), KafkaError):
            raise SystemExit("the bill should have failed")


def shown(span: ReadableSpan) -> str:
    context, parent = span.get_span_context(), span.parent
    return json.dumps(
        {
            "name": span.name,
            "kind": span.kind.name,
            "trace": context.trace_id if context else None,
            "id": context.span_id if context else None,
            "parent": parent.span_id if parent else None,
            "attributes": dict(span.attributes or {}),
            "status": span.status.status_code.name,
            "description": span.status.description,
        }
    )


def main(name: str, servers: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    options = {
        "bootstrap.servers": servers,
        "tracing": "penstock.watching.opentelemetry:calls",
        "key.serializer": "penstock.serializers:StringSerializer",
    }
    with Producer(options, client_id=name) as producer:
        {"shop": shop, "kitchen": kitchen}[name](producer, servers)
    for span in exporter.get_finished_spans():
        sys.stdout.write(shown(span) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
