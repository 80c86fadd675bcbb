# SPDX-License-Identifier: Apache-2.0
"""The program whose instructions are counted: `python -m bench.counted PROGRAM RECORDS`.

It makes a producer, sends some records so that everything is as it stays, and then sends those that count, from inside
of one C function that nobody calls otherwise: callgrind counts nothing but what happens in that function.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from bench.in_memory import InlineProducer
from bench.words import counted
from penstock import Delivery

COUNTED_FUNCTION = (
    "PyObject_ASCII"  # of ascii(): has its name in every build of Python, and hardly anybody calls it
)
CHUNKS = {
    "send": 500,
    "send-keys": 500,
    "send-serializers": 500,
    "send-headers": 500,
    "send-arrow": 15_000,
    "send-arrow-keys": 15_000,
}
WARM_UP_CHUNKS = 4
_LOOKED_AT_AFTER = 10  # chunks: by then every record of a chunk was sent, whatever its partition
_TOPIC = "bench-instructions"
_PARTITIONS = 6
_VALUE = bytes(100)
# No time passes that anybody could wait for: batches leave when they are full, and at the end.
_SETTINGS = {"batch.size": str(16 * 1024), "linger.ms": "2000"}
_SERIALIZERS = dict.fromkeys(("key.serializer", "value.serializer"), "penstock.serializers:StringSerializer")
_HEADERS = {"trace": b"0123456789abcdef", "tenant": b"7"}


def main(arguments: Sequence[str]) -> None:
    """Send the records, and see that all arrived and were acknowledged."""
    program, records = arguments[0], int(arguments[1])
    with_text = program == "send-serializers"
    inline = InlineProducer(_SETTINGS | (_SERIALIZERS if with_text else {}), _TOPIC, _PARTITIONS)
    chunk = CHUNKS[program]
    try:
        if "arrow" in program:
            send_chunks = _arrow_sender(inline, chunk, program.endswith("keys"))
        elif with_text:
            send_chunks = _sender(inline, _VALUE.decode(), [f"{number:07}" for number in range(chunk)])
        else:
            keys = [b"%07d" % number if program.endswith("keys") else None for number in range(chunk)]
            send_chunks = _sender(inline, _VALUE, keys, _HEADERS if program.endswith("headers") else None)
        send_chunks(WARM_UP_CHUNKS)
        ascii(_Counted(lambda: send_chunks(records // chunk)))  # see COUNTED_FUNCTION
        sent = WARM_UP_CHUNKS * chunk + records
        if inline.broker.records != sent:
            raise RuntimeError(f"{inline.broker.records} of {counted(sent, 'record')} arrived")
    finally:
        inline.close()


class _Counted:
    """Does its work when it is asked for its text, and so from inside of the function that is counted."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def __repr__(self) -> str:
        self._work()
        return ""


def _sender(
    inline: InlineProducer, value: Any, keys: Sequence[Any], headers: dict[str, bytes] | None = None
) -> Callable[[int], None]:
    """`send`, record by record; every Delivery is looked at some thousand records later."""
    send = inline.producer.send

    def send_chunks(count: int) -> None:
        waiting: deque[list[Delivery]] = deque()
        for _ in range(count):
            if headers is None:
                waiting.append([send(_TOPIC, value, key) for key in keys])
            else:
                waiting.append([send(_TOPIC, value, key, headers=headers) for key in keys])
            inline.take_turns()
            if len(waiting) > _LOOKED_AT_AFTER:
                _check(waiting.popleft())
        inline.flush()
        for deliveries in waiting:
            _check(deliveries)

    return send_chunks


def _check(deliveries: list[Delivery]) -> None:
    if [delivery.exception(0) for delivery in deliveries].count(None) != len(deliveries):
        raise RuntimeError("a record was not acknowledged")


def _arrow_sender(inline: InlineProducer, chunk: int, keys: bool) -> Callable[[int], None]:
    """`send_arrow`, table by table."""
    import pyarrow as pa

    columns = {"value": pa.array([_VALUE] * chunk, pa.binary())}
    if keys:
        columns["key"] = pa.array([b"%07d" % number for number in range(chunk)], pa.binary())
    table = pa.table(columns)

    def send_chunks(count: int) -> None:
        bulks = []
        for _ in range(count):
            bulks.append(inline.producer.send_arrow(_TOPIC, table))
            inline.take_turns()
        inline.flush()
        if sum(bulk.result(0).records for bulk in bulks) != count * chunk:
            raise RuntimeError("a record was not acknowledged")

    return send_chunks


if __name__ == "__main__":
    main(sys.argv[1:])
