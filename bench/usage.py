# SPDX-License-Identifier: Apache-2.0
"""The ways to send that programs use, and the program that measures them: `python -m bench.usage JSON`.

A process measures one way of Penstock's, in turns with `send` of the same records as bytes and with the user's function
alone in a loop; or all that confluent-kafka does. A turn takes a fraction of a second. Its CPU is that of the whole
process from the first record to the last acknowledgement, with every Delivery kept; the start is not in it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.contenders.confluent import POLL_EVERY, options
from bench.model import BenchError
from bench.values import make_values
from bench.worker import FIRST_SECONDS

if TYPE_CHECKING:
    from penstock import RecordMetadata

OURS, BASE, ALONE, CONFLUENT = "penstock", "base", "alone", "confluent"
TOPIC = "bench-usage"
PARTITIONS = 6
TURNS = 5
_TURN_SECONDS = 0.12
_FIRST_RECORDS = 5_000  # to see how many a turn has
_HEADERS = {"source": b"shop", "trace": b"0af7651916cd43dd"}

Send = Callable[..., object]
# Sends so many of the items, and gives what it was given for them.
Loop = Callable[[Send, Sequence[Any], int], list[object]]
# Does something so many times; if it sends, until the last acknowledgement. What it gives is dropped later.
Work = Callable[[int], object]


class Sending(NamedTuple):
    """What is sent and how.

    Attributes:
        form: of the records, see `items_of`.
        options: of the producer, besides the settings.
        method: of the producer; `try_send` is that of AsyncProducer, and has a loop of its own.
    """

    form: str
    loop: Loop
    options: Callable[[], dict[str, Any]] = dict
    method: str = "send"


@dataclass(frozen=True)
class Way:
    """One way to send.

    Attributes:
        title: for people.
        ours: the way itself.
        alone: the user's function in a loop, over the same items; for a serializer of ours the same work by hand.
        base: the bytes of the same records.
        theirs: what a program for confluent-kafka does in its place; None where it has nothing like it.
    """

    title: str
    ours: Sending
    base: Sending
    alone: Callable[[Sequence[Any], int], None] | None = None
    theirs: Sending | None = None


def items_of(form: str) -> Sequence[Any]:
    """The records in the form in which a program has them."""
    values = make_values("letters", 100)
    keys = [b"customer-%06d" % number for number in range(len(values))]
    rows = [
        {"order": number, "customer": key.decode(), "amount_cents": 4500, "note": value[:30].decode()}
        for number, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    makers: dict[str, Callable[[], list[Any]]] = {
        "bytes": lambda: values,
        "buffers": lambda: [bytearray(value) for value in values],
        "texts": lambda: [value.decode() for value in values],
        "pairs": lambda: list(zip(values, keys, strict=True)),
        "text-pairs": lambda: [
            (value.decode(), key.decode()) for value, key in zip(values, keys, strict=True)
        ],
        "with-headers": lambda: [(value, dict(_HEADERS)) for value in values],
        "rows": lambda: rows,
        "rows-as-bytes": lambda: [json.dumps(row, separators=(",", ":")).encode() for row in rows],
    }
    return makers[form]()


# ------------------------------------------------------------------------------------------------ loops that send


def _values(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, value) for value in islice(cycle(items), count)]


def _pairs(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, value, key) for value, key in islice(cycle(items), count)]


def _headers(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, value, headers=headers) for value, headers in islice(cycle(items), count)]


def _encoded(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, value.encode()) for value in islice(cycle(items), count)]


def _encoded_pairs(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, value.encode(), key.encode()) for value, key in islice(cycle(items), count)]


def _dumped(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, json.dumps(row).encode()) for row in islice(cycle(items), count)]


def _copied(send: Send, items: Sequence[Any], count: int) -> list[object]:
    return [send(TOPIC, bytes(value)) for value in islice(cycle(items), count)]


def _records(send: Send, items: Sequence[Any], count: int) -> list[object]:
    from penstock import ProducerRecord

    return [send(ProducerRecord(TOPIC, value)) for value in islice(cycle(items), count)]


def _many(send: Send, items: Sequence[Any], count: int) -> list[object]:
    chunk = items[:POLL_EVERY]
    return [send(TOPIC, chunk) for _ in range(0, count, POLL_EVERY)]


# ------------------------------------------------------------------------------------------------ users' functions


def _encode(items: Sequence[Any], count: int) -> None:
    for value in islice(cycle(items), count):
        str.encode(value)


def _encode_pairs(items: Sequence[Any], count: int) -> None:
    for value, key in islice(cycle(items), count):
        str.encode(value)
        str.encode(key)


def _dump(items: Sequence[Any], count: int) -> None:
    for row in islice(cycle(items), count):
        json.dumps(row).encode()


class _ByLastByte:
    def partition(self, topic: str, key: Any, key_bytes: bytes, *rest: object) -> int:
        del topic, key, rest
        return key_bytes[-1] % PARTITIONS


def _place(items: Sequence[Any], count: int) -> None:
    partition = _ByLastByte().partition
    for value, key in islice(cycle(items), count):
        partition(TOPIC, key, key, value, value, None)


class _Auditor:
    """An interceptor that sees everything and changes nothing."""

    def on_send(self, record: object) -> object:
        return record

    def on_acknowledgement(self, metadata: object, error: object) -> None:
        del metadata, error


def _audit(items: Sequence[Any], count: int) -> None:
    auditor = _Auditor()
    on_send, on_acknowledgement = auditor.on_send, auditor.on_acknowledgement
    for value in islice(cycle(items), count):
        on_send(value)
        on_acknowledgement(value, None)


def _listener() -> dict[str, Any]:
    from penstock import Interceptor

    class Listener(Interceptor):
        def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
            del metadata, error

    return {"interceptors": [Listener()]}


def _listen(items: Sequence[Any], count: int) -> None:
    on_acknowledgement = _Auditor().on_acknowledgement
    for value in islice(cycle(items), count):
        on_acknowledgement(value, None)


def _serializers(**named: str) -> Callable[[], dict[str, Any]]:
    """Options by name: a class of penstock.serializers, or "str.encode"."""

    def made() -> dict[str, Any]:
        from penstock import serializers

        return {
            option: str.encode if name == "str.encode" else getattr(serializers, name)()
            for option, name in named.items()
        }

    return made


# ------------------------------------------------------------------------------------------------ the ways

_BYTES = Sending("bytes", _values)
_KEYED = Sending("pairs", _pairs)
_JSON = Sending("rows-as-bytes", _values)
_THEIR_TEXTS = Sending("texts", _encoded)
_THEIR_PAIRS = Sending("text-pairs", _encoded_pairs)
_THEIR_JSON = Sending("rows", _dumped)
_STR = _serializers(value_serializer="str.encode")

WAYS = {
    "bytes": Way("bytes, the base once more", _BYTES, _BYTES, theirs=_BYTES),
    "str": Way("value_serializer=str.encode", Sending("texts", _values, _STR), _BYTES, _encode, _THEIR_TEXTS),
    "str-both": Way(
        "str.encode for key and value",
        Sending(
            "text-pairs", _pairs, _serializers(key_serializer="str.encode", value_serializer="str.encode")
        ),
        _KEYED,
        _encode_pairs,
        _THEIR_PAIRS,
    ),
    "string": Way(
        "StringSerializer for key and value",
        Sending(
            "text-pairs",
            _pairs,
            _serializers(key_serializer="StringSerializer", value_serializer="StringSerializer"),
        ),
        _KEYED,
        _encode_pairs,
        _THEIR_PAIRS,
    ),
    "json": Way(
        "JsonSerializer",
        Sending("rows", _values, _serializers(value_serializer="JsonSerializer")),
        _JSON,
        _dump,
        _THEIR_JSON,
    ),
    "json-by-hand": Way(
        "json.dumps(...).encode() by hand", Sending("rows", _dumped), _JSON, _dump, _THEIR_JSON
    ),
    "headers": Way(
        "a dict of two headers",
        Sending("with-headers", _headers),
        _BYTES,
        theirs=Sending("with-headers", _headers),
    ),
    "buffer": Way("a bytearray", Sending("buffers", _values), _BYTES, theirs=Sending("buffers", _copied)),
    "record": Way(
        "send_record(ProducerRecord(...))", Sending("bytes", _records, method="send_record"), _BYTES
    ),
    "partitioner": Way(
        "a partitioner of the user's",
        Sending("pairs", _pairs, lambda: {"partitioner": _ByLastByte()}),
        _KEYED,
        _place,
    ),
    "interceptor": Way(
        "an interceptor with both methods",
        Sending("bytes", _values, lambda: {"interceptors": [_Auditor()]}),
        _BYTES,
        _audit,
    ),
    "listener": Way(
        "an interceptor with on_acknowledgement",
        Sending("bytes", _values, _listener),
        _BYTES,
        _listen,
        _BYTES,
    ),
    "many": Way("send_many, str.encode", Sending("texts", _many, _STR, "send_many"), _BYTES, _encode),
    "try-send": Way(
        "AsyncProducer.try_send, str.encode; the base is `send` with it",
        Sending("texts", _values, _STR, "try_send"),
        Sending("texts", _values, _STR),
    ),
    "tracing": Way(
        "tracing (calls)",
        Sending("bytes", _values, lambda: {"tracing": "penstock.watching.opentelemetry:calls"}),
        _BYTES,
    ),
}


def missing(way: str) -> str | None:
    """Why a way cannot be measured here; None when it can."""
    absent = way == "tracing" and not importlib.util.find_spec("opentelemetry")
    return "opentelemetry-api is not installed" if absent else None


# ------------------------------------------------------------------------------------------------ the program


def main(arguments: Sequence[str]) -> None:
    """Take the turns; print what each took by who took it, in microseconds a record, and how many were sent."""
    told = json.loads(arguments[0])
    with ExitStack() as stack:
        if told["way"] is None:
            works = _their_works(told["settings"])
        else:
            works = _our_works(WAYS[told["way"]], told["settings"], stack)
        sent = 0
        counts: dict[str, int] = {}
        found: dict[str, list[float]] = {who: [] for who in works}
        for turn in range(-2, TURNS):  # two to warm up, and to see how many records fit
            for who, work in works.items():
                count = counts.get(who, _FIRST_RECORDS)
                cost = _cost(work, count)
                sent += count if who != ALONE else 0
                if turn < 0:
                    counts[who] = (
                        told["records"] or max(1, int(_TURN_SECONDS / cost / POLL_EVERY)) * POLL_EVERY
                    )
                else:
                    found[who].append(1e6 * cost)
    print(json.dumps({"turns": found, "sent": sent}))


def _cost(work: Work, count: int) -> float:
    """Seconds of CPU for each."""
    used = time.process_time()
    kept = work(count)
    used = time.process_time() - used
    del kept
    return used / count


def _our_works(way: Way, settings: Mapping[str, str], stack: ExitStack) -> dict[str, Work]:
    works = {OURS: _sender(way.ours, settings, stack), BASE: _sender(way.base, settings, stack)}
    if way.alone is not None:
        works[ALONE] = partial(way.alone, items_of(way.ours.form))
    return works


def _sender(sending: Sending, settings: Mapping[str, str], stack: ExitStack) -> Work:
    from penstock import Producer

    if sending.method == "try_send":
        return _async_sender(sending, settings, stack)
    producer = stack.enter_context(Producer(settings, **sending.options()))
    items, method = items_of(sending.form), getattr(producer, sending.method)
    producer.partitions_for(TOPIC)

    def work(count: int) -> object:
        kept = sending.loop(method, items, count)
        producer.flush()
        return kept

    return work


def _async_sender(sending: Sending, settings: Mapping[str, str], stack: ExitStack) -> Work:
    from penstock import AsyncProducer
    from penstock.errors import BufferExhaustedError

    items = items_of(sending.form)
    producer = AsyncProducer(settings, **sending.options())
    runner = stack.enter_context(asyncio.Runner())
    stack.callback(lambda: runner.run(producer.aclose()))
    runner.run(producer.partitions_for(TOPIC))

    async def send_all(count: int) -> object:
        try_send, kept = producer.try_send, []
        for value in islice(cycle(items), count):
            try:
                kept.append(try_send(TOPIC, value))
            except BufferExhaustedError:
                kept.append(await producer.send(TOPIC, value))
        await producer.flush()
        return kept

    return lambda count: runner.run(send_all(count))


def _their_works(settings: Mapping[str, str]) -> dict[str, Work]:
    """What confluent-kafka does in place of the ways, each thing once, with a callback for every record."""
    from confluent_kafka import Producer

    # A turn fits into its queue, so that no loop has to catch BufferError.
    producer = Producer({**options(settings), "queue.buffering.max.messages": 2_000_000})
    failed: list[object] = []

    def on_delivery(error: object, message: object) -> None:
        del message
        if error is not None:
            failed.append(error)

    send = partial(producer.produce, on_delivery=on_delivery)

    def work(sending: Sending, items: Sequence[Any], count: int) -> None:
        for _ in range(0, count, POLL_EVERY):
            sending.loop(send, items, POLL_EVERY)
            producer.poll(0)
        producer.flush(FIRST_SECONDS)
        if failed:
            raise BenchError(f"{len(failed)} records failed: {failed[0]}")

    return {
        their_name(sending): partial(work, sending, items_of(sending.form))
        for sending in {way.theirs for way in WAYS.values() if way.theirs is not None}
    }


def their_name(sending: Sending) -> str:
    """What tells the things apart that confluent-kafka does."""
    return f"{sending.form}{sending.loop.__name__}"


if __name__ == "__main__":
    main(sys.argv[1:])
