# SPDX-License-Identifier: Apache-2.0
"""Tables for tests: rows as Python has them, and Arrow tables of them in all the types that a column can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

LAST_MOMENT = 9_000_000_000_000  # in milliseconds: also nanoseconds hold it

PAIR = {"key": pa.string(), "value": pa.binary()}
BYTES_TYPES = [
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int8(), pa.binary()),
    pa.dictionary(pa.uint32(), pa.large_binary()),
]
STRING_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int16(), pa.string()),
    pa.dictionary(pa.uint64(), pa.string()),
]
INT_TYPES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
MOMENT_TYPES = [
    pa.int64(),
    pa.uint64(),
    pa.timestamp("s"),
    pa.timestamp("ms", tz="UTC"),
    pa.timestamp("us"),
    pa.timestamp("ns", tz="Europe/Berlin"),
    pa.date64(),
    pa.date32(),
]
HEADER_TYPES = [
    pa.list_(pa.struct(PAIR)),
    pa.large_list(pa.struct(PAIR)),
    pa.list_view(pa.struct(PAIR)),
    pa.large_list_view(pa.struct(PAIR)),
    pa.list_(pa.struct({"value": pa.large_binary(), "key": pa.large_string()})),
    pa.map_(pa.string(), pa.binary()),
    pa.map_(pa.string_view(), pa.binary_view()),
]
# Milliseconds of a unit: moments are made multiples of it, so that nothing is lost.
_STEPS = {"timestamp[s]": 1000, "date64[ms]": 86_400_000, "date32[day]": 86_400_000}


@dataclass(frozen=True)
class Row:
    """One record, as a table has it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    partition: int | None = None
    timestamp: int | None = None
    topic: str | None = None


@dataclass(frozen=True)
class Types:
    """The Arrow type of each column."""

    value: Any = BYTES_TYPES[0]
    key: Any = BYTES_TYPES[0]
    headers: Any = HEADER_TYPES[0]
    partition: Any = INT_TYPES[4]
    timestamp: Any = MOMENT_TYPES[0]
    topic: Any = STRING_TYPES[0]


def rows(
    partitions: int, *, timestamps: bool = True, topics: Sequence[str] = ("t",), text: bool = False
) -> st.SearchStrategy[list[Row]]:
    """Random rows; `text`: keys and values are UTF-8."""
    content = st.text(max_size=20).map(str.encode) if text else st.binary(max_size=40)
    row = st.builds(
        Row,
        value=st.none() | content,
        key=st.none() | content,
        headers=st.none()
        | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9))).map(tuple),
        partition=st.none() | st.integers(0, partitions - 1),
        timestamp=st.integers(0, LAST_MOMENT) if timestamps else st.none(),
        topic=st.sampled_from(topics),
    )
    return st.lists(row, max_size=60)


def types(text: bool = False) -> st.SearchStrategy[Types]:
    """Random types for the columns."""
    content = [*BYTES_TYPES, *STRING_TYPES] if text else BYTES_TYPES
    return st.builds(
        Types,
        value=st.sampled_from(content),
        key=st.sampled_from(content),
        headers=st.sampled_from(HEADER_TYPES),
        partition=st.sampled_from(INT_TYPES),
        timestamp=st.sampled_from(MOMENT_TYPES),
        topic=st.sampled_from(STRING_TYPES),
    )


def in_unit(moment: int | None, kind: Any) -> int | None:
    """A moment that a type can express."""
    return None if moment is None else moment - moment % _STEPS.get(str(kind), 1)


def column(items: Sequence[Any], kind: Any) -> pa.Array:
    """A column of a type; dictionaries and views are made from what they can be made from."""
    if pa.types.is_dictionary(kind):
        return pa.array(_encodable(items, kind.value_type), kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_temporal(kind):
        return _moments(items, kind)
    return pa.array(_encodable(items, kind), kind)


def _encodable(items: Sequence[Any], kind: Any) -> list[Any]:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not text:
        return list(items)
    return [item.decode() if isinstance(item, bytes) else item for item in items]


def _moments(items: Sequence[int | None], kind: Any) -> pa.Array:
    if kind == pa.date32():
        return pa.array([None if item is None else item // 86_400_000 for item in items], pa.int32()).cast(
            kind
        )
    if kind == pa.date64():
        return pa.array(items, pa.int64()).cast(pa.timestamp("ms")).cast(kind)
    return pa.array(items, pa.int64()).cast(pa.timestamp("ms", tz=kind.tz)).cast(kind)


def header_column(items: Sequence[Any], kind: Any) -> pa.Array:
    """A column of headers."""
    if pa.types.is_map(kind):
        return pa.array(items, kind)
    pairs = [None if some is None else [{"key": k, "value": v} for k, v in some] for some in items]
    return pa.array(pairs, kind)


def table(some: Sequence[Row], kinds: Types, *, topic: bool = False) -> pa.Table:
    """A table of rows, with a slice of something else before and behind it, so that offsets matter."""
    padded = [
        Row(b"before", b"b", ((("b", b"")),), 0, 1, "none"),
        *some,
        Row(b"behind", None, None, None, 2, "none"),
    ]
    columns = {
        "value": column([row.value for row in padded], kinds.value),
        "key": column([row.key for row in padded], kinds.key),
        "headers": header_column([row.headers for row in padded], kinds.headers),
        "partition": column([row.partition for row in padded], kinds.partition),
        "timestamp": column([in_unit(row.timestamp, kinds.timestamp) for row in padded], kinds.timestamp),
        "other": pa.array([1.5] * len(padded)),
    }
    if topic:
        columns["topic"] = column([row.topic for row in padded], kinds.topic)
    return pa.table(columns).slice(1, len(some))


def in_chunks(whole: pa.Table, sizes: Sequence[int]) -> pa.Table:
    """The same table in pieces of those sizes, the rest last; empty ones too."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(whole.slice(at, size))
        at += size
    return pa.concat_tables([*pieces, whole.slice(at)])
