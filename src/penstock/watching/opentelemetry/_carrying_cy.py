# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The headers that carry a context of OpenTelemetry, as the program's propagator writes them. Compiled if possible.

Rules:
1. A Context never changes, so the headers of the last one are kept: while a program sends in the same span, a record
   costs one look at the current Context and one at the propagator.
2. The usual propagator (W3C trace context, with or without baggage) is not asked where a Context has a valid span and
   no baggage: `traceparent` is written here, to the byte as the propagator does. In every other case it is asked, and
   so is every other propagator, once for each new Context.
3. A record whose headers have one of the propagator's names already has a context, which is left alone.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry import baggage, propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, get_current
from opentelemetry.propagate import get_global_textmap
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import (
    DEFAULT_TRACE_STATE,
    INVALID_SPAN,
    Span,
    SpanContext,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.long import PyLong_AsLongAndOverflow, PyLong_AsUnsignedLongLongMask

# Plain tuples: most records take the fast path, which needs no more, and the general one makes Headers of them.
Headers = tuple[tuple[str, bytes | None], ...]

# C variables when compiled, so that they are not looked up by name.
_TRACEPARENT = cython.declare(object, "traceparent")
_TRACESTATE = cython.declare(object, "tracestate")
# A Context that has one thing only says under which key it keeps that.
_SPAN_KEY = cython.declare(object, next(iter(set_span_in_context(INVALID_SPAN, Context()))))
_BAGGAGE_KEY = cython.declare(object, next(iter(baggage.set_baggage("a", "b", Context()))))
_SPAN_CONTEXT = cython.declare(object, SpanContext)
_EMPTY_STATE = cython.declare(object, DEFAULT_TRACE_STATE)
# The variable of the global propagator, where it is known: to read it takes a tenth of the time of the function.
_VARIABLE = cython.declare(object, "_HTTP_TEXT_FORMAT")
_VARIABLES = cython.declare(
    dict, vars(propagate) if getattr(propagate, _VARIABLE, None) is get_global_textmap() else None
)
_FLAGS = tuple(b"%02x" % flags for flags in range(256))


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class ContextCarrier:
    """Turns Contexts into headers. Any thread may call it: what it remembers is replaced whole.

    Args:
        propagator: writes them; None: the global one, as it is when a record is sent.
        current: gives the caller's Context.

    Attributes:
        on_error: called with what a record's context could not be written for.
    """

    def __init__(
        self, propagator: TextMapPropagator | None = None, current: Callable[[], Context] = get_current
    ) -> None:
        self.on_error: Callable[[Exception], object] | None = None
        self._chosen = propagator
        self._current = current
        # The last propagators that were, and were not, the usual one, and the last class that was one of spans.
        self._usual: TextMapPropagator | None = None
        self._other: TextMapPropagator | None = None
        self._span_class: type | None = None
        # The last propagator with the names of its headers, and the last Context with its propagator and headers.
        self._named: tuple[TextMapPropagator | None, frozenset[str]] = (None, frozenset())
        self._last: tuple[Context | None, TextMapPropagator | None, Headers] = (None, None, ())

    def add_to(self, headers: Any) -> Any:
        """Headers as they were given to `send`, with the caller's context; what is no list or tuple is given back.

        It does not raise: the record goes on without its context, and `on_error` is told.
        """
        added: tuple  # type: ignore[type-arg]
        try:
            added = self.of_caller()
            if not added:
                return headers
            if headers is None:
                return added
            if not isinstance(headers, (list, tuple)) or self.is_in(headers):
                return headers
            return (*headers, *added)
        except Exception as error:  # noqa: BLE001 - it is told
            if self.on_error is not None:
                self.on_error(error)
            return headers

    def of_caller(self) -> Headers:
        """The headers for the current Context."""
        context = self._current()
        propagator = self._propagator()
        last: tuple = self._last  # type: ignore[type-arg]
        if context is last[0] and propagator is last[1]:
            return last[2]  # type: ignore[no-any-return]
        headers = self._write(propagator, context)
        self._last = (context, propagator, headers)
        return headers

    def of_context(self, context: Context) -> Headers:
        """The headers for the span and the baggage of a Context."""
        return self._write(self._propagator(), context)

    def of_span(self, span: Span, context: Context) -> Headers:
        """The headers for a span that is not in the Context."""
        return self.of_context(set_span_in_context(span, context))

    def is_in(self, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether headers carry a context."""
        propagator = self._propagator()
        named: tuple = self._named  # type: ignore[type-arg]
        if propagator is not named[0]:
            named = self._named = (propagator, frozenset(propagator.fields))
        names = named[1]
        for name, _ in headers:
            if name in names:
                return True
        return False

    def extract(self, headers: Iterable[tuple[str, bytes | None]]) -> SpanContext | None:
        """The context that headers carry; None where nothing can be read."""
        context = self._propagator().extract(list(headers), Context(), getter=_GETTER)
        found = get_current_span(context).get_span_context()
        return found if found.is_valid else None

    def _propagator(self) -> Any:
        if self._chosen is not None:
            return self._chosen
        if _VARIABLES is not None:
            return _VARIABLES[_VARIABLE]
        return get_global_textmap()

    def _write(self, propagator: Any, context: Any) -> Headers:
        if self._is_usual(propagator):
            headers = self._write_usual(context)
            if headers is not None:
                return headers
        carrier: dict[str, str] = {}
        propagator.inject(carrier, context)
        return tuple([(name, value.encode()) for name, value in carrier.items()])

    def _write_usual(self, context: Any) -> Headers | None:
        """What W3C's propagators write; None where they have to be asked."""
        if not isinstance(context, dict) or _BAGGAGE_KEY in context:
            return None
        span = context.get(_SPAN_KEY)
        if span is None:
            return ()
        if not self._is_span(span):
            return None
        found = span.get_span_context()
        if type(found) is not _SPAN_CONTEXT:
            return None
        # To cast is slow in plain Python, where Cython is installed.
        return _headers_of(cython.cast(tuple, found) if cython.compiled else found)

    def _is_usual(self, propagator: Any) -> bool:
        if propagator is self._usual:
            return True
        if propagator is self._other:
            return False
        if _is_w3c(propagator):
            self._usual = propagator
            return True
        self._other = propagator
        return False

    def _is_span(self, value: Any) -> bool:
        """Whether it is a Span; the class is remembered, because to ask whether it is one takes long."""
        if type(value) is self._span_class:
            return True
        if not isinstance(value, Span):
            return False
        self._span_class = type(value)
        return True


class _HeadersGetter(Getter[Any]):
    """Reads headers as propagators want to read them."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        """The values of all headers with a name."""
        found = [
            value.decode(errors="replace") for name, value in carrier if name == key and value is not None
        ]
        return found or None

    def keys(self, carrier: Any) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier]


_GETTER = _HeadersGetter()


def _is_w3c(propagator: TextMapPropagator) -> bool:
    """Whether it is W3C's trace context, with or without baggage, and not of a class derived from these."""
    if type(propagator) is CompositePropagator:
        parts = list(getattr(propagator, "_propagators", ()))
    else:
        parts = [propagator]
    kinds = {type(part) for part in parts}
    return TraceContextTextMapPropagator in kinds and kinds <= {
        TraceContextTextMapPropagator,
        W3CBaggagePropagator,
    }


@cython.cfunc
def _headers_of(span_context: tuple) -> tuple:  # type: ignore[type-arg]
    """The headers of a SpanContext, which is a tuple; None where the propagator has to be asked."""
    if len(span_context) != 6:
        return None  # type: ignore[return-value]
    trace_id, span_id, _, flags, state, is_valid = span_context
    # Of an invalid one the propagator writes nothing, or zeros, or more digits than there should be.
    if is_valid is not True or type(trace_id) is not int or type(span_id) is not int:
        return None  # type: ignore[return-value]
    value = _traceparent(trace_id, span_id, flags)
    if value is None:
        return None  # type: ignore[return-value]
    if state is _EMPTY_STATE or not state:
        return ((_TRACEPARENT, value),)
    return ((_TRACEPARENT, value), (_TRACESTATE, state.to_header().encode()))


@cython.cfunc
def _traceparent(trace_id: Any, span_id: Any, flags: Any) -> Any:
    """The value of the header, of valid ids; None for flags that are no byte."""
    if not cython.compiled:
        if not 0 <= flags <= 255:
            return None
        # So it is quickest. The flags are of a subclass of int, which is slow to format.
        ids = (hexlify(trace_id.to_bytes(16, "big")), hexlify(span_id.to_bytes(8, "big")), _FLAGS[flags])
        return b"00-%b-%b-%b" % ids
    overflow: cython.int = 0
    byte: cython.long = PyLong_AsLongAndOverflow(flags, cython.address(overflow))
    if overflow or not 0 <= byte <= 255:
        return None
    text = cython.declare(cython.char[55])
    at: cython.p_char = text
    at[0] = at[1] = 48  # version 00
    at[2] = at[35] = at[52] = 45  # hyphens
    _put_hex(at + 3, PyLong_AsUnsignedLongLongMask(trace_id >> 64), 16)
    _put_hex(at + 19, PyLong_AsUnsignedLongLongMask(trace_id), 16)
    _put_hex(at + 36, PyLong_AsUnsignedLongLongMask(span_id), 16)
    _put_hex(at + 53, byte, 2)
    return at[:55]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_hex(at: cython.p_char, number: cython.ulonglong, digits: cython.int) -> cython.void:
    """Write the last digits of a number. Compiled code only."""
    hexadecimal: cython.p_const_uchar = b"0123456789abcdef"
    while digits > 0:
        digits -= 1
        at[digits] = hexadecimal[number & 15]
        number >>= 4
