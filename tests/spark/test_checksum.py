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
    assert checksum() == checksum(batch([], [])) == checksum(batch([None], [None])) == 0
