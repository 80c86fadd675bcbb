# SPDX-License-Identifier: Apache-2.0
"""What it costs to put the caller's context into the headers of records, against OpenTelemetry's own `inject`.

Theirs is the CPU time of `inject` into a dict, less the loop around it. Ours is told twice, against the same `inject`:
to make the headers (`send` with `tracing`, less a `send` that is given the same headers), and to make and send them
(less a `send` without headers). Two cases: all records are sent in one span, and each record is sent in a span of its
own. All on one thread without a broker (`bench.in_memory`), in turns.

This module is also the program that does so; see `main`.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bench.budget import Plan
from bench.in_memory import InlineProducer
from bench.model import Sample
from bench.process import run_measured
from bench.studies import Context

if TYPE_CHECKING:
    from opentelemetry.context import Context as TraceContext

TURNS = 9
RECORDS = 100_000
RUN_SECONDS = 20.0
RUN_TIMEOUT_SECONDS = 600.0
CASES = ("shared-span", "own-span")
PENSTOCK, INJECT, SENDING = "penstock", "inject", "sending"
_CHUNK = 500
_TOPIC = "bench-tracing"
_VALUE = bytes(100)
_SETTINGS = {"batch.size": str(16 * 1024), "linger.ms": "2000"}
_TRACING = {"tracing": "penstock.watching.opentelemetry:propagation"}

# Does something for each Context of a chunk, so many times.
Work = Callable[[Sequence["TraceContext"], int], None]
# Microseconds for a record: ours, `inject`, and to send headers.
Turn = tuple[float, float, float]


class Tracing:
    """CPU time per record of propagation, against `inject`."""

    name = "tracing"
    title = "CPU per record of the caller's context in headers, against OpenTelemetry's inject"
    only_by_name = False
    needs_broker = False

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("opentelemetry") else "opentelemetry-api is not installed"

    def seconds(self, plan: Plan) -> float:
        return RUN_SECONDS * (plan.records or RECORDS) / RECORDS

    def run(self, context: Context) -> None:
        records = context.plan.records or RECORDS
        worker = [sys.executable, "-m", "bench.studies.tracing", str(records)]
        for case, turns in _measured(worker).items():
            for number, turn in enumerate(turns, 1):
                for who, value in zip((PENSTOCK, INJECT, SENDING), turn, strict=True):
                    context.results.samples.append(Sample(f"tracing-{case}", who, number, "cpu_us", value))
            context.tell(f"  {case:<12} {describe(turns)}")


def describe(turns: Sequence[Turn]) -> str:
    """The turns of a case in words: the medians, and their ratio with that of the best and the worst turn."""
    ours, theirs, sending = (statistics.median(figures) for figures in zip(*turns, strict=True))
    return (
        f"inject {theirs:.2f} us; headers made in {ours:.2f} us: {_spread([turn[0] / turn[1] for turn in turns])}; "
        f"made and sent in {ours + sending:.2f} us: {_spread([(turn[0] + turn[2]) / turn[1] for turn in turns])}"
    )


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"


def _measured(worker: list[str]) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = json.loads(run_measured(worker, RUN_TIMEOUT_SECONDS).output)
    return found


def main(arguments: Sequence[str]) -> None:
    """Take the turns, and print what each took: for each case, microseconds of ours and of theirs."""
    records = int(arguments[0])
    chunks = -(-records // (_CHUNK * TURNS))
    spans = _contexts(_CHUNK)
    cases = {"shared-span": spans[:1] * _CHUNK, "own-span": spans}
    found: dict[str, list[Turn]] = {case: [] for case in cases}
    producers = [InlineProducer({**_SETTINGS, **more}, _TOPIC, 6) for more in ({}, {}, _TRACING)]
    plain, given, traced = (_sender(one, headers=one is producers[1]) for one in producers)
    for turn in range(-1, TURNS):  # the first is for warming up
        for case, contexts in cases.items():
            bare, ready, ours, loop, theirs = (
                _time(work, contexts, chunks) for work in (plain, given, traced, _nothing, _inject)
            )
            if turn >= 0:
                found[case].append((ours - ready, theirs - loop, ready - bare))
    for producer in producers:
        producer.close()
    print(json.dumps(found))


def _contexts(count: int) -> list[TraceContext]:
    """Contexts with a sampled span each, as a service has them that serves a request for each record."""
    from opentelemetry import context, trace

    numbers = random.Random(1)
    found = []
    for _ in range(count):
        ids = numbers.getrandbits(128) | 1, numbers.getrandbits(64) | 1
        span = trace.SpanContext(*ids, is_remote=False, trace_flags=trace.TraceFlags(1))
        found.append(trace.set_span_in_context(trace.NonRecordingSpan(span), context.Context()))
    return found


def _time(work: Work, contexts: Sequence[TraceContext], chunks: int) -> float:
    """Microseconds of CPU for each Context, of so many times all of them."""
    gc.collect()
    started = time.process_time_ns()
    work(contexts, chunks)
    return (time.process_time_ns() - started) / 1000 / (chunks * len(contexts))


def _sender(inline: InlineProducer, *, headers: bool) -> Work:
    """Sends a record in each Context; with `headers`, given those that `inject` made before."""
    from opentelemetry.context import attach

    send = inline.producer.send

    def work(contexts: Sequence[TraceContext], chunks: int) -> None:
        ready = [_headers(context) if headers else None for context in contexts]
        for _ in range(chunks):
            for context, own in zip(contexts, ready, strict=True):
                attach(context)
                send(_TOPIC, _VALUE, headers=own)
            inline.take_turns()
        inline.flush()

    return work


def _headers(context: TraceContext) -> tuple[tuple[str, bytes], ...]:
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier, context)
    return tuple((name, value.encode()) for name, value in carrier.items())


def _nothing(contexts: Sequence[TraceContext], chunks: int) -> None:
    from opentelemetry.context import attach

    for _ in range(chunks):
        for context in contexts:
            attach(context)


def _inject(contexts: Sequence[TraceContext], chunks: int) -> None:
    from opentelemetry.context import attach
    from opentelemetry.propagate import inject

    for _ in range(chunks):
        for context in contexts:
            attach(context)
            inject({})


if __name__ == "__main__":
    main(sys.argv[1:])
