# SPDX-License-Identifier: Apache-2.0
"""Which Arrow type can be which column, and that each row is read as it is, from every library that makes tables."""

from __future__ import annotations

import datetime
from typing import Any

import duckdb
import fix_arrow
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows


def read(data: Any, **names: Any) -> list[Any]:
    """All rows as Python objects: value, key, headers, partition, timestamp."""
    chunks = arrow_rows(ArrowSource(data), ColumnNames(**names))
    return [rows.record(number) for rows in chunks for number in range(rows.length)]


def one(column: pa.Array, part: str) -> list[Any]:
    """What one column gives, beside values that do not matter."""
    where = ("value", "key", "headers", "partition", "timestamp").index(part)
    table = pa.table({"value": pa.nulls(len(column))} | {part: column})
    return [row[where] for row in read(table)]


# ------------------------------------------------------------------------------------------------ names


def test_the_rows_of_a_call_say_their_topic_where_the_call_does_not():
    columns = ("k", "v", None, None, "t")
    assert ColumnNames.of_call("orders", "fail", *columns) == ColumnNames(*columns)
    assert ColumnNames.of_call(None, "skip", *columns) == ColumnNames(*columns, topic="topic")


@pytest.mark.parametrize(
    ("topic", "on_error", "key", "error"),
    [
        ("orders", "ignore", "k", ValueError),
        ("", "fail", "k", ValueError),
        (7, "fail", "k", TypeError),
        ("orders", "fail", 7, TypeError),
    ],
)
def test_wrong_arguments_of_a_call_are_refused(topic, on_error, key, error):
    with pytest.raises(error):
        ColumnNames.of_call(topic, on_error, key, "v", None, None, None)


# ------------------------------------------------------------------------------------------------ types


@settings(max_examples=60, deadline=None)
@given(
    some=fix_arrow.rows(100, text=True),
    kinds=fix_arrow.types(text=True),
    sizes=st.lists(st.integers(0, 20), max_size=4),
)
def test_every_row_is_read_as_it_is(some, kinds, sizes):
    table = fix_arrow.in_chunks(fix_arrow.table(some, kinds), sizes)
    assert read(table) == [
        (
            row.value,
            row.key,
            [tuple(header) for header in row.headers or ()],
            row.partition,
            fix_arrow.in_unit(row.timestamp, kinds.timestamp),
        )
        for row in some
    ]


@pytest.mark.parametrize("size", [0, 1, 11, 12, 13, 5000])
@pytest.mark.parametrize("kind", fix_arrow.BYTES_TYPES)
def test_bytes_of_every_size(kind, size):
    column = fix_arrow.column([b"other", bytes(size), None, b"x" * size], kind)
    assert one(column.slice(1), "value") == [bytes(size), None, b"x" * size]
    assert one(column.slice(1), "key") == [bytes(size), None, b"x" * size]


def test_views_into_several_buffers():
    pieces = [pa.array([b"%d" % number * 30, b"short", None], pa.binary_view()) for number in range(4)]
    assert one(pa.concat_arrays(pieces), "value") == [
        item for number in range(4) for item in (b"%d" % number * 30, b"short", None)
    ]


def test_bytes_of_fixed_size():
    column = pa.array([b"abc", None, b"def"], pa.binary(3))
    assert one(column.slice(1), "key") == [None, b"def"]


def test_a_dictionary_with_a_null_word():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1, 0]), pa.array([None, "word"]))
    assert one(column, "key") == [None, b"word", None, b"word", None]


def test_a_column_of_nulls():
    rows = read(pa.table(dict.fromkeys(("value", "key", "headers", "partition", "timestamp"), pa.nulls(2))))
    assert rows == [(None, None, (), None, None)] * 2


@pytest.mark.parametrize("kind", fix_arrow.INT_TYPES)
def test_numbers_of_every_width(kind):
    largest = 2 ** (kind.bit_width - (0 if str(kind).startswith("u") else 1)) - 1
    column = pa.array([0, 5, None, largest], kind)
    # What 64 bits with a sign cannot hold is out of range, for partitions and for timestamps.
    last = largest if largest < 2**63 else -1
    assert one(column, "partition") == [0, 5, None, last] == one(column, "timestamp")


@pytest.mark.parametrize(
    ("kind", "number", "milliseconds"),
    [
        (pa.timestamp("s"), 1_700_000_000, 1_700_000_000_000),
        (pa.timestamp("us"), 1_999, 1),
        (pa.timestamp("ns"), 1_999_999, 1),
        (pa.timestamp("ns"), 2**63 - 1, 9_223_372_036_854),
        (pa.timestamp("us"), -1, -1),
        (pa.timestamp("s"), 2**62, -1),  # beyond what milliseconds can count
        (pa.timestamp("ms"), -5, -5),
        (pa.int32(), 7, 7),
    ],
)
def test_moments_become_milliseconds(kind, number, milliseconds):
    column = pa.array([number], kind if pa.types.is_integer(kind) else pa.int64()).cast(kind)
    assert one(column, "timestamp") == [milliseconds]


def test_headers_in_lists_of_fixed_size():
    kind = pa.list_(pa.struct(fix_arrow.PAIR), 2)
    column = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None], kind)
    assert one(column, "headers") == [[("a", b"1"), ("b", None)], []]


STRUCTS = pa.array(
    [{"key": f"name {number}", "value": b"%d" % number * number} for number in range(9)],
    pa.struct(fix_arrow.PAIR),
)


@pytest.mark.parametrize("kind", [*fix_arrow.BYTES_TYPES[:3], pa.binary(3)])
@pytest.mark.parametrize(("first", "count"), [(0, 9), (4, 3), (8, 1)])
def test_a_slice_of_structs_is_read_within_its_bounds(kind, first, count):
    items = [b"%03d" % number for number in range(9)]
    structs = pa.StructArray.from_arrays([pa.array(items, kind)], ["value"])
    wanted = items[first : first + count]
    batch = pa.RecordBatch.from_struct_array(structs).slice(first, count)
    assert [row[0] for row in read(structs.slice(first, count))] == wanted == [row[0] for row in read(batch)]


def test_what_is_behind_a_slice_of_structs_is_not_looked_at():
    source = ArrowSource(STRUCTS.slice(4, 3))
    [chunk] = source
    assert [(column.offset, column.length) for column in chunk.columns] == [(4, 3), (4, 3)]


def test_headers_in_a_slice_of_structs():
    column = pa.ListArray.from_arrays(pa.array([0, 2, 2, 5], pa.int32()), STRUCTS.slice(3, 5))
    pairs = [(f"name {number}", b"%d" % number * number) for number in range(3, 8)]
    assert one(column, "headers") == [pairs[:2], [], pairs[2:]]


@given(names=st.lists(st.binary(max_size=5) | st.text(max_size=3).map(str.encode), min_size=1, max_size=20))
@example([b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xe0\x9f\xbf", b"\xc3"])
@example(
    [
        b"\xf0\x8f\xbf\xbf",
        b"\xf0\x90\x80\x80",
        b"\xef\xbf\xbf",
        b"\xed\x9f\xbf",
        b"a\x80",
        b"\xf5\x80\x80\x80",
    ]
)
def test_the_name_of_a_header_is_text(names):
    kind = pa.map_(pa.binary(), pa.binary())
    table = pa.table({"value": pa.nulls(len(names)), "headers": pa.array([[(n, b"")] for n in names], kind)})
    [rows] = arrow_rows(ArrowSource(table), ColumnNames())
    found = {name for row, name in enumerate(names) if rows.size_bound(row) >= 0}
    assert found == {name for name in names if is_text(name)}


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("part", "column", "text"),
    [
        ("value", pa.array([1.5]), "'value' cannot be the value: it must hold bytes or strings, .* float64"),
        ("key", pa.array([[b"a"]]), "must hold bytes or strings"),
        ("partition", pa.array(["a"]), "must hold whole numbers"),
        ("partition", pa.array([1.0]), "must hold whole numbers"),
        ("timestamp", pa.array(["a"]), "must hold timestamps, dates or whole numbers"),
        ("headers", pa.array(["a"]), "must hold maps, or lists of structs"),
        ("headers", pa.array([["a"]]), "must hold maps, or lists of structs"),
        ("headers", pa.array([[{"name": "a", "value": b""}]]), "the fields 'name' and 'value' instead"),
        ("headers", pa.array([[{"key": 1, "value": b""}]]), "must hold bytes or strings"),
        ("value", pa.array([b"a"]).cast(pa.binary()).dictionary_encode().dictionary.cast(pa.string()), None),
    ],
)
def test_types_that_a_column_cannot_have_are_named(part, column, text):
    if text is None:
        assert one(column, part) == [b"a"]
        return
    with pytest.raises(TypeError, match=text):
        one(column, part)


# ------------------------------------------------------------------------------------------------ names


def test_columns_are_found_by_the_names_given():
    table = pa.table({"k": ["a"], "body": ["b"], "key": ["not this"]})
    assert read(table, key="k", value="body")[0][:2] == (b"b", b"a")
    assert read(table, key=None, value="body")[0][:2] == (b"b", None)


def test_a_column_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"no column 'body' for the value; it has \['value'\]"):
        read(pa.table({"value": ["a"]}), value="body")
    with pytest.raises(ValueError, match="no column 'value'"):
        read(pa.table({"v": ["a"]}))
    with pytest.raises(ValueError, match="no column 'id' for the key"):
        read(pa.table({"value": ["a"]}), key="id")
    with pytest.raises(ValueError, match="no column 'topic'"):
        read(pa.table({"value": ["a"]}), topic="topic")


def test_two_columns_of_the_same_name_are_refused():
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(ValueError, match="2 columns named 'value'"):
        read(table)


def test_a_name_is_a_string():
    with pytest.raises(TypeError, match="key must be the name of a column or None, not int"):
        ColumnNames(key=1)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ other libraries


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC)
MOMENT_MS = 1_767_323_045_678


def test_polars():
    frame = pl.DataFrame(
        {
            "key": ["a", None, "a key that does not fit into a view"],
            "value": [b"1", b"2" * 100, None],
            "partition": pl.Series([0, None, 2], dtype=pl.UInt8),
            "timestamp": [MOMENT, None, MOMENT],
            "headers": [[{"key": "h", "value": b"x"}], [], None],
        }
    )
    expected = [
        (b"1", b"a", [("h", b"x")], 0, MOMENT_MS),
        (b"2" * 100, None, [], None, None),
        (None, b"a key that does not fit into a view", [], 2, MOMENT_MS),
    ]
    assert read(frame) == expected
    assert read(frame.slice(1)) == expected[1:]
    assert read(pl.concat([frame, frame], rechunk=False)) == expected * 2
    assert read(frame.with_columns(pl.col("key").cast(pl.Categorical))) == expected


def test_duckdb():
    relation = duckdb.sql(
        """
        select 'key-' || number as key, ('value-' || number)::blob as value, number % 3 as partition,
               timestamptz '2026-01-02 03:04:05.678+00' as timestamp, map {'h': number::varchar} as headers
        from range(3000) numbers(number)
        """
    )
    assert read(relation) == [
        (b"value-%d" % n, b"key-%d" % n, [("h", b"%d" % n)], n % 3, MOMENT_MS) for n in range(3000)
    ]
