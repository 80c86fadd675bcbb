# SPDX-License-Identifier: Apache-2.0
"""Batches for tests: written by our writer, compressed by our codecs, or given by a golden file."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from fix_impl import as_bytes
from hypothesis import strategies as st

from penstock.records.compression import Codec, codec
from penstock.records.format import HEADER_SIZE, TRANSACTIONAL_BIT, estimate_record_size
from penstock.records.reader import Record
from penstock.types import Header

NO_CODEC = codec("none")


def golden_records(case: dict[str, Any]) -> list[Record]:
    """The records of a golden case, as a reader must return them."""
    return [
        Record(
            offset,
            record["timestamp"],
            as_bytes(record["key"]),
            as_bytes(record["value"]),
            tuple(Header(name, as_bytes(value)) for name, value in record["headers"]),
        )
        for offset, record in enumerate(case["records"])
    ]


def fill(
    module: ModuleType, records: Sequence[Record], *, capacity: int = 200_000, in_chunks: bool = False
) -> Any:
    """A writer that holds these records, perhaps nearly each in a chunk of its own."""
    writer = module.BatchWriter(bytearray(_bound(records[0]) if in_chunks else capacity), capacity)
    for record in records:
        size = writer.append(*record[1:])
        if size == module.NEEDS_SEGMENT:
            writer.grow(bytearray(_bound(record)))
            size = writer.append(*record[1:])
        assert size > 0
    return writer


def _bound(record: Record) -> int:
    sizes = (None if part is None else len(part) for part in record[2:4])
    return estimate_record_size(*sizes, record.headers)


def seal(
    writer: Any, chosen: Codec = NO_CODEC, ids: tuple[int, int, int] = (-1, -1, -1), *, attributes: int = 0
) -> bytes:
    """Compress and seal a writer's batch."""
    compressed = None
    if chosen.id:
        compressed = bytearray(HEADER_SIZE) + chosen.compress(writer.raw_records())
    sealed = writer.seal(attributes | chosen.id, *ids, compressed=compressed)
    return b"".join(sealed) if isinstance(sealed, list) else bytes(sealed)


def golden_batch(module: ModuleType, case: dict[str, Any], *, in_chunks: bool = False) -> bytes:
    """The batch that our writer makes of a golden case's inputs."""
    ids = (case["producer_id"], case["producer_epoch"], case["base_sequence"])
    attributes = TRANSACTIONAL_BIT if case["is_transactional"] else 0
    writer = fill(module, golden_records(case), in_chunks=in_chunks)
    return seal(writer, codec(case["codec"], case.get("level")), ids, attributes=attributes)


_data = st.none() | st.binary(max_size=200)
_headers = st.lists(st.builds(Header, st.text(max_size=20), _data), max_size=4).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 20) -> list[Record]:
    """Records with offsets from 0 on and any timestamps, rising or falling."""
    drawn = draw(
        st.lists(st.tuples(st.integers(-1, 2**62), _data, _data, _headers), min_size=1, max_size=max_size)
    )
    return [Record(offset, *fields) for offset, fields in enumerate(drawn)]
