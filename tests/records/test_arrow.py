# SPDX-License-Identifier: Apache-2.0
"""Tables of other libraries: what is read of them, and that they get their memory back."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest

from penstock.records import arrow
from penstock.records.arrow import ArrowSource, type_name


class OnlyArray:
    """Has the older of the two ways."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.data.__arrow_c_array__(requested_schema)


def test_a_table_is_read_chunk_by_chunk():
    table = pa.concat_tables(
        [pa.table({"a": [1, 2]}), pa.table({"a": pa.array([], pa.int64())}), pa.table({"a": [3]})]
    )
    source = ArrowSource(table)
    assert source.names == ["a"]
    assert [chunk.length for chunk in source] == [2, 1]


def test_an_array_of_structs_is_a_table():
    array = pa.array([{"a": 1}, {"a": 2}, {"a": 3}])
    assert [chunk.length for chunk in ArrowSource(OnlyArray(array))] == [3]
    assert [chunk.length for chunk in ArrowSource(OnlyArray(array.slice(0, 0)))] == []


def test_the_offset_of_a_struct_is_that_of_its_children_too():
    array = pa.array([{"a": 1}, {"a": 2}, {"a": 3}]).slice(1)
    [chunk] = ArrowSource(OnlyArray(array))
    assert (chunk.columns[0].offset, chunk.length) == (1, 2)


def test_rows_that_are_null_as_a_whole_are_refused():
    with pytest.raises(ValueError, match="null as a whole"):
        list(ArrowSource(OnlyArray(pa.array([{"a": 1}, None]))))


class Uncounted(OnlyArray):
    """Does not say how many nulls it has."""

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        schema, array = self.data.__arrow_c_array__(requested_schema)
        arrow._Array.from_address(arrow._capsule_pointer(array, b"arrow_array")).null_count = -1
        return schema, array


@pytest.mark.parametrize("first", [0, 1, 7, 8, 13])
@pytest.mark.parametrize("null", [None, 0, 12, 13, 19, 20, 29])
def test_nulls_that_nobody_counted_are_found(first, null):
    array = pa.array([None if number == null else {"a": number} for number in range(29)] + [None])
    data = Uncounted(array.slice(first, 20 - first))
    if null is not None and first <= null < 20:
        with pytest.raises(ValueError, match="null as a whole"):
            list(ArrowSource(data))
    else:
        assert [chunk.length for chunk in ArrowSource(data)] == [20 - first]


@pytest.mark.parametrize("data", [None, [b"a"], {"value": [b"a"]}])
def test_what_is_no_arrow_data_is_refused(data):
    with pytest.raises(TypeError, match="data must be an Arrow table"):
        ArrowSource(data)


@pytest.mark.parametrize("data", [pa.array([1, 2]), pa.chunked_array([["a"]])])
def test_an_array_that_is_no_table_is_refused(data):
    with pytest.raises(TypeError, match="data must be a table, or an array of structs"):
        ArrowSource(data)


def test_what_a_source_raises_is_told():
    def batches() -> Any:
        yield pa.record_batch({"a": [1]})
        raise RuntimeError("the disk is gone")

    source = ArrowSource(pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int64()}), batches()))
    chunks = iter(source)
    assert next(chunks).length == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(chunks)


def test_memory_goes_back_with_the_last_chunk():
    gc.collect()
    before = pa.total_allocated_bytes()

    def batches() -> Any:
        for _ in range(3):
            yield pa.record_batch({"a": pa.array(range(10_000))})

    source = ArrowSource(pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int64()}), batches()))
    with source:
        held = list(source)
    assert pa.total_allocated_bytes() - before >= 3 * 80_000
    held.pop()
    assert pa.total_allocated_bytes() - before < 3 * 80_000
    del held
    gc.collect()
    assert pa.total_allocated_bytes() - before < 80_000


def test_a_chunk_outlives_its_source():
    source = ArrowSource(pa.table({"a": pa.array(range(1000))}))
    [chunk] = source
    source.close()
    del source
    gc.collect()
    assert chunk.columns[0].length == 1000
    chunk.owner.release()
    chunk.owner.release()  # twice is harmless


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (pa.array([1]), "int64"),
        (pa.array([1.5]), "float64"),
        (pa.array([True]), "boolean"),
        (pa.array([1], pa.timestamp("us", "UTC")), "timestamp"),
        (pa.array([b"1234"], pa.binary(4)), "fixed-size binary"),
        (pa.array([[1]], pa.list_(pa.int8(), 1)), "fixed-size list"),
        (pa.array([{"a": 1}]), "struct"),
    ],
    ids=str,
)
def test_types_are_called_what_people_call_them(array, name):
    (column,) = next(iter(ArrowSource(pa.table({"c": array})))).columns
    assert type_name(column.format) == name
