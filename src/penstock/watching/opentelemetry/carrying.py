# SPDX-License-Identifier: Apache-2.0
"""The headers that carry a context of OpenTelemetry, by the propagator that the program has chosen.

Rules:
1. A Context never changes, so the headers of the last one are kept: while a program sends in the same span, a record
   costs one look at the current Context.
2. The usual propagator (W3C trace context and baggage) is not asked where the Context has no baggage: `traceparent` is
   written here. Every other propagator is asked once for each new Context.
3. A record whose headers have one of the propagator's names already has a context, which is left alone.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterable
from typing import Any

from opentelemetry import propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import DEFAULT_TRACE_STATE, Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# Plain tuples: most records take the fast path, which needs no more, and the general one makes Headers of them.
Headers = tuple[tuple[str, bytes | None], ...]

_TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"
_FLAGS = tuple(b"%02x" % flags for flags in range(256))


class ContextCarrier:
    """Turns Contexts into headers.

    Args:
        propagator: writes them; None: the global one, as it is when a record is sent.
    """

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._chosen = propagator
        self._look_at(propagator or propagate.get_global_textmap())

    def of_context(self, context: Context) -> Headers:
        """The headers for the span and the baggage of a Context."""
        if self._chosen is None and propagate.get_global_textmap() is not self._known:
            self._look_at(propagate.get_global_textmap())
        if self._is_usual:
            if not context:
                return ()
            if len(context) == 1:
                (only,) = context.values()
                span = getattr(only, "get_span_context", None)
                if span is not None:  # a span and nothing else, so no baggage
                    return _traceparent(span())
        carrier: dict[str, str] = {}
        self._known.inject(carrier, context)
        return tuple((name, value.encode()) for name, value in carrier.items())

    def of_span(self, span: Span, context: Context) -> Headers:
        """The headers for a span that is not in the Context."""
        return self.of_context(set_span_in_context(span, context))

    def is_in(self, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether headers carry a context."""
        names = self._names
        return any(name in names for name, _ in headers)

    def extract(self, headers: Iterable[tuple[str, bytes | None]]) -> SpanContext | None:
        """The context that headers carry; None where nothing can be read."""
        context = self._known.extract(list(headers), Context(), getter=_GETTER)
        found = get_current_span(context).get_span_context()
        return found if found.is_valid else None

    def _look_at(self, propagator: TextMapPropagator) -> None:
        # The flag first goes down: another thread sees it with the old propagator, or asks the new one.
        self._is_usual = False
        self._known = propagator
        self._names = frozenset(propagator.fields)
        self._is_usual = _is_usual(propagator)


class _HeadersGetter(Getter[Any]):
    """Reads headers as propagators want to read them."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        """The values of all headers with a name."""
        found = [
            value.decode(errors="replace") for name, value in carrier if name == key and value is not None
        ]
        return found or None

    def keys(self, carrier: Any) -> list[str]:
        """All names."""
        return [name for name, _ in carrier]


_GETTER = _HeadersGetter()


def _is_usual(propagator: TextMapPropagator) -> bool:
    """Whether it is W3C's trace context, with or without baggage."""
    if type(propagator) is CompositePropagator:
        parts = list(getattr(propagator, "_propagators", ()))
    else:
        parts = [propagator]
    kinds = {type(part) for part in parts}
    return TraceContextTextMapPropagator in kinds and kinds <= {
        TraceContextTextMapPropagator,
        W3CBaggagePropagator,
    }


def _traceparent(span: SpanContext) -> Headers:
    trace_id, span_id, _, flags, state, is_valid = span
    if not is_valid:
        return ()
    # So it is quickest. The flags are of a subclass of int, which is slow to format.
    ids = (hexlify(trace_id.to_bytes(16, "big")), hexlify(span_id.to_bytes(8, "big")), _FLAGS[flags])
    parent = (_TRACEPARENT, b"00-%b-%b-%b" % ids)
    if state is DEFAULT_TRACE_STATE or not state:
        return (parent,)
    return (parent, (_TRACESTATE, state.to_header().encode()))
