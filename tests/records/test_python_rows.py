# SPDX-License-Identifier: Apache-2.0
"""What send_many is given: checked, as records, and as columns."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.records.python_rows import ManyRecords, PythonRows
from penstock.types import Header, ProducerRecord


def many(values: Any, **more: Any) -> ManyRecords:
    given = {"keys": None, "headers": None, "partition": None, "timestamps_ms": None} | more
    return ManyRecords.of("t", values, **given)


def test_the_records_are_those_of_as_many_calls():
    records = many(
        ["a", "b"],
        keys=["k", None],
        headers=[{"h": b"1"}, None],
        partition=[None, 2],
        timestamps_ms=[None, 5],
    ).records()
    assert list(records) == [
        ProducerRecord("t", "a", "k", (Header("h", b"1"),)),
        ProducerRecord("t", "b", None, (), 2, 5),
    ]


def test_one_partition_is_for_all():
    assert [record.partition for record in many([b"a", b"b"], partition=1).records()] == [1, 1]


def test_generators_are_taken_too():
    assert many((b"%d" % n for n in range(3)), keys=iter([None] * 3)).rows(None).length == 3


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"keys": [b"a"]}, ValueError, "keys must have 2 items, one for each value, not 1"),
        ({"headers": [None] * 3}, ValueError, "headers must have 2 items, one for each value, not 3"),
        ({"timestamps_ms": [1]}, ValueError, "timestamps_ms must have 2 items, one for each value, not 1"),
        ({"partition": [1]}, ValueError, "partition must have 2 items, one for each value, not 1"),
        ({"partition": -1}, ValueError, "partition of row 0 must not be negative"),
        ({"partition": [None, "1"]}, TypeError, "partition of row 1 must be an int or None, not str"),
        ({"timestamps_ms": [1, True]}, TypeError, "timestamps_ms of row 1 must be an int or None, not bool"),
        ({"timestamps_ms": [1, 2**63]}, ValueError, "timestamps_ms of row 1"),
        ({"keys": b"ab"}, TypeError, "keys must be a sequence with an item for each record, not bytes"),
        ({"headers": [{"h": "text"}, None]}, TypeError, "header 'h' must be bytes"),
    ],
)
def test_arguments_that_cannot_be_are_named(more, error, text):
    with pytest.raises(error, match=text):
        many([b"a", b"b"], **more)


@pytest.mark.parametrize("topic", ["", 5, None])
def test_what_is_no_topic_is_refused(topic):
    with pytest.raises((TypeError, ValueError), match="topic"):
        ManyRecords.of(topic, [b"a"], None, None, None, None)


def test_serialized_parts_become_columns():
    def serialize(topic: str, keys: Any, values: Any, headers: Any) -> Any:
        assert (topic, keys, headers) == ("t", None, None)
        return [b"key of %d" % value for value in values], [b"%d" % value for value in values], None

    rows = many([1, 2]).rows(serialize)
    assert [rows.record(number)[:2] for number in range(2)] == [(b"1", b"key of 1"), (b"2", b"key of 2")]


def test_what_is_not_bytes_is_seen():
    assert many([b"a", None], keys=[None, b"b"]).are_bytes()
    assert not many([b"a", "b"]).are_bytes()
    assert not many([b"a"], keys=[bytearray(b"a")]).are_bytes()


def test_python_sequences():
    rows = PythonRows([b"a", None], [None, b"k"], None, [None, 3], [7, None]).as_rows()
    assert rows.length == 2
    assert [rows.record(0)[:2], rows.record(1)[:2]] == [(b"a", None), (None, b"k")]
    assert [rows.record(0)[3:], rows.record(1)[3:]] == [(None, 7), (3, None)]


def test_headers_of_python_sequences_are_encoded_once():
    rows = PythonRows([b"a", b"a"], headers=[(Header("h", None),), ()]).as_rows()
    assert rows.size_bound(0) - rows.size_bound(1) == 3  # two lengths and a letter
    with pytest.raises(ValueError, match="encoded before"):
        rows.record(0)


def test_python_sequences_hold_bytes_alone():
    with pytest.raises(TypeError, match="takes bytes and None, not str"):
        PythonRows(["a"]).as_rows()  # type: ignore[list-item]
