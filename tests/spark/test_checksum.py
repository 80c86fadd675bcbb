# SPDX-License-Identifier: Apache-2.0
"""The checksum is that of the rows, not of how they were cut."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.spark.checksum import RunningChecksum

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
