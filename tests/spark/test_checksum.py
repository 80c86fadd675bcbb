# SPDX-License-Identifier: Apache-2.0
"""The checksums are those of the rows, not of how they were cut, and the one in use not of their order either."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.sink.messages import IN_ORDER, SUMMED
from penstock.spark.checksum import RowsChecksum, RunningChecksum, checksum_by

KEYS = [b"a", None, b"", b"ccc", b"dd"] * 20
VALUES = [b"one", b"two", None, b"", b"five"] * 20


def batch(keys: list[bytes | None], values: list[bytes | None], large: bool = False) -> pa.RecordBatch:
    kind = pa.large_binary() if large else pa.binary()
    return pa.RecordBatch.from_arrays([pa.array(keys, kind), pa.array(values, kind)], names=["key", "value"])


def checksum(*batches: pa.RecordBatch) -> int:
    running = RunningChecksum()
    for some in batches:
        running.add(some)
    return running.value


@pytest.mark.parametrize("cut", [1, 7, 50, 99])
def test_it_does_not_depend_on_the_batches(cut: int) -> None:
    whole = batch(KEYS, VALUES)
    sliced = [whole.slice(start, cut) for start in range(0, len(KEYS), cut)]
    copied = [
        batch(KEYS[start : start + cut], VALUES[start : start + cut]) for start in range(0, len(KEYS), cut)
    ]
    assert checksum(whole) == checksum(*sliced) == checksum(*copied)


def test_it_does_not_depend_on_the_width_of_offsets_or_on_text() -> None:
    text = pa.RecordBatch.from_pydict(
        {
            "key": [None if key is None else key.decode() for key in KEYS],
            "value": [None if value is None else value.decode() for value in VALUES],
        }
    )
    assert checksum(batch(KEYS, VALUES)) == checksum(batch(KEYS, VALUES, large=True)) == checksum(text)


def test_it_tells_other_rows_apart() -> None:
    assert checksum(batch([b"a"], [b"b"])) != checksum(batch([b"b"], [b"a"]))
    assert checksum(batch([b"a"], [b"b"])) != checksum(batch([b"a"], [b"c"]))
    assert checksum(batch([b"a"] * 2, [b"b", b"c"])) != checksum(batch([b"a"] * 2, [b"c", b"b"]))


def test_keys_may_be_missing_and_columns_empty() -> None:
    without = pa.RecordBatch.from_pydict({"value": pa.array([b"x"])})
    assert checksum(without) == checksum(batch([None], [b"x"]))
    assert checksum() == checksum(batch([], []))
    assert checksum(batch([None], [None])) != checksum()


def test_it_tells_where_a_row_ends_and_the_next_begins() -> None:
    assert checksum(batch([b"k"] * 2, [b"ab", b"c"])) != checksum(batch([b"k"] * 2, [b"a", b"bc"]))
    assert checksum(batch([b"ab", b"c"], [b"v"] * 2)) != checksum(batch([b"a", b"bc"], [b"v"] * 2))


def test_it_tells_nothing_from_an_empty_text() -> None:
    assert checksum(batch([None], [b"v"])) != checksum(batch([b""], [b"v"]))
    assert checksum(batch([b"k"], [None])) != checksum(batch([b"k"], [b""]))


@pytest.mark.parametrize(
    ("column", "rows", "others"),
    [
        ("topic", ["a", "b", None], ["b", "a", None]),
        ("topic", ["a", "b", None], ["a", "b", ""]),
        ("partition", [0, 1, None], [1, 0, None]),
        ("partition", [0, 1, None], [0, 1, 0]),
    ],
)
def test_it_tells_other_places_apart(
    column: str, rows: list[str | int | None], others: list[str | int | None]
) -> None:
    def placed(places: list[str | int | None]) -> pa.RecordBatch:
        kind = pa.string() if column == "topic" else pa.int32()
        return pa.RecordBatch.from_pydict({"value": [b"v"] * len(places), column: pa.array(places, kind)})

    assert checksum(placed(rows)) != checksum(placed(others))
    assert checksum(placed(rows)) == checksum(*(placed(rows).slice(number, 1) for number in range(3)))


# ---- the sum of the rows' hashes

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MOMENT = datetime.datetime(2026, 11, 14, 12, 30, 15, 123456, tzinfo=datetime.UTC)
ROW: dict[str, Any] = {
    "topic": "orders",
    "key": b"k",
    "value": b"v",
    "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    "timestamp": MOMENT,
    "partition": 3,
}
TYPES = {
    "topic": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("us", "UTC"),
    "partition": pa.int32(),
}


def table(rows: list[dict[str, Any]], names: tuple[str, ...] = tuple(TYPES), **types: Any) -> pa.RecordBatch:
    arrays = [pa.array([row[name] for row in rows], types.get(name, TYPES[name])) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def rows_sum(*batches: pa.RecordBatch) -> int:
    summed = RowsChecksum()
    for some in batches:
        summed.add(some)
    return summed.value


def many(count: int = 60) -> list[dict[str, Any]]:
    rng = random.Random(count)
    given: list[dict[str, Any]] = []
    for number in range(count):
        row = {
            "topic": f"t{number % 3}",
            "key": rng.randbytes(number % 11),
            "value": rng.randbytes(rng.randrange(90)),
            "headers": [{"key": f"h{n}", "value": rng.randbytes(n)} for n in range(number % 4)],
            "timestamp": MOMENT + datetime.timedelta(microseconds=number),
            "partition": number % 7,
        }
        given.append({name: None if rng.random() < 0.15 else value for name, value in row.items()})
    return given


def test_the_sum_does_not_depend_on_order_batches_or_tasks() -> None:
    rows = many()
    whole = rows_sum(table(rows))
    turned = rows[::-1]
    assert rows_sum(table(turned)) == whole
    assert rows_sum(*(table(rows).slice(start, 7) for start in range(0, 60, 7))) == whole
    assert rows_sum(*(table(turned[start : start + 9]) for start in range(0, 60, 9))) == whole
    assert (rows_sum(table(rows[:20])) + rows_sum(table(rows[20:]))) % 2**64 == whole
    assert rows_sum(table(rows[:-1])) != whole
    assert rows_sum() == rows_sum(table([])) == 0


def test_the_sum_of_known_rows_never_changes() -> None:
    assert f"{rows_sum(table(many())):016x}" == "c59578e60ecd8def"
    assert f"{rows_sum(table([ROW])):016x}" == "e9fa4836738aa77c"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("topic", "stock"),
        ("topic", None),
        ("topic", ""),
        ("key", b"K"),
        ("key", None),
        ("value", b"v "),
        ("value", None),
        ("value", b""),
        ("headers", []),
        ("headers", None),
        ("headers", [{"key": "b", "value": None}, {"key": "a", "value": b"1"}]),
        ("headers", [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]),
        ("headers", [{"key": "a", "value": b"1"}, None]),
        ("headers", [{"key": "a", "value": b"2"}, {"key": "b", "value": None}]),
        ("headers", [{"key": "a", "value": b"1"}]),
        ("timestamp", MOMENT + datetime.timedelta(microseconds=1)),
        ("timestamp", None),
        ("partition", 4),
        ("partition", None),
        ("partition", -1),
    ],
)
def test_everything_that_a_row_sends_counts(name: str, other: object) -> None:
    changed = ROW | {name: other}
    assert rows_sum(table([ROW])) != rows_sum(table([changed]))
    assert rows_sum(table([ROW, changed])) != rows_sum(table([ROW, ROW]))


def test_it_is_the_bytes_that_count_and_not_how_arrow_holds_them() -> None:
    rows = [row | {"key": None if row["key"] is None else row["key"].hex().encode()} for row in many()]
    large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    turned = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    expected = rows_sum(table(rows))
    for types in (
        {"key": pa.string()},
        {"key": pa.large_string(), "value": pa.large_binary(), "topic": pa.large_string()},
        {"headers": large},
        {"headers": turned},
        {"partition": pa.int64()},
        {"timestamp": pa.timestamp("ns", "UTC")},
        {"timestamp": pa.timestamp("us", "Asia/Tokyo")},
    ):
        assert rows_sum(table(rows, **types)) == expected, types


def test_a_column_that_is_missing_is_one_of_nulls() -> None:
    bare = [dict.fromkeys(TYPES, None) | {"value": b"v"}] * 3
    assert rows_sum(table(bare)) == rows_sum(table(bare, ("value",)))
    assert rows_sum(table([dict.fromkeys(TYPES, None)])) != 0


def test_a_method_that_is_known_is_used_for_a_repair() -> None:
    assert isinstance(checksum_by(IN_ORDER), RunningChecksum)
    assert isinstance(checksum_by(SUMMED), RowsChecksum)
    assert isinstance(checksum_by(99), RowsChecksum)  # which then does not compare
