# SPDX-License-Identifier: Apache-2.0
"""Varints and the hash of keys, in every form of the module."""

from __future__ import annotations

import pytest
from fix_impl import as_bytes, forms, golden, implementations, load
from hypothesis import given
from hypothesis import strategies as st

MODULE = "penstock._primitives_cy"

primitives = implementations(MODULE)
all_forms = [load(MODULE, form) for form in forms(MODULE)]
pure = load(MODULE, "uncompiled")

INT64 = st.integers(-(2**63), 2**63 - 1)

VARINTS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (-8192, "ff7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


def test_forms_are_what_they_are_called():
    assert {form: load(MODULE, form).is_compiled() for form in forms(MODULE)} == {
        form: form == "compiled" for form in forms(MODULE)
    }


@pytest.mark.parametrize("case", golden("murmur2.jsonl"))
def test_murmur2_is_javas(primitives, case):
    key = as_bytes(case["key"])
    assert primitives.murmur2(key) == case["murmur2"]
    for count, partition in case["partition"].items():
        assert primitives.partition_for_key(key, int(count)) == partition


@pytest.mark.parametrize(("value", "encoded"), VARINTS)
def test_varint_bytes(primitives, value, encoded):
    data = bytes.fromhex(encoded)
    assert primitives.varint_size(value) == len(data)
    assert primitives.read_varint(data, 0) == (value, len(data))
    assert primitives.read_varint(b"\xff\xff" + data + b"\xff", 2) == (value, 2 + len(data))


@pytest.mark.parametrize(("value", "encoded"), VARINTS)
@pytest.mark.parametrize("form", ["uncompiled", "no-cython"])
def test_put_varint_writes_those_bytes_and_no_others(form, value, encoded):
    # The compiled one writes through a pointer and is out of Python's reach; the batch writer's tests cover it.
    module = load(MODULE, form)
    data = bytes.fromhex(encoded)
    memory = bytearray(b"\xaa" * 20)
    assert module.put_varint(memory, 3, value) == 3 + len(data)
    assert memory == b"\xaa" * 3 + data + b"\xaa" * (17 - len(data))


@given(value=INT64)
def test_forms_agree_on_varints(value):
    memory = bytearray(10)
    size = pure.put_varint(memory, 0, value)
    for module in all_forms:
        assert module.varint_size(value) == size
        assert module.read_varint(bytes(memory[:size]), 0) == (value, size)


@given(key=st.binary(max_size=300))
def test_forms_agree_on_the_hash(key):
    assert len({module.murmur2(key) for module in all_forms}) == 1


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "80",
        "ffffffffffffffffff",
        "ffffffffffffffffff02",
        "ffffffffffffffffff81",
        "80808080808080808080" + "00",
    ],
)
def test_read_varint_refuses_what_is_cut_off_or_too_long(primitives, encoded):
    with pytest.raises(ValueError, match="varint"):
        primitives.read_varint(bytes.fromhex(encoded), 0)


def test_read_varint_refuses_a_start_behind_the_data(primitives):
    with pytest.raises(ValueError, match="varint"):
        primitives.read_varint(b"\x00", 1)


def test_longer_encodings_than_needed_are_read(primitives):
    assert primitives.read_varint(b"\x80\x80\x00", 0) == (0, 3)


@pytest.mark.parametrize("key", [None, 7])
def test_murmur2_refuses_what_is_not_bytes(primitives, key):
    with pytest.raises(TypeError):
        primitives.murmur2(key)


def test_no_partitions_is_an_error(primitives):
    with pytest.raises(ZeroDivisionError):
        primitives.partition_for_key(b"key", 0)
