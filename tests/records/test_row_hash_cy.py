# SPDX-License-Identifier: Apache-2.0
"""Hashes of rows in every form: always the same number for the same bytes, and no byte is read that is not there."""

from __future__ import annotations

import ctypes
from array import array
from types import ModuleType

import pytest
from fix_impl import forms, implementations, load
from hypothesis import given, settings
from hypothesis import strategies as st

MODULE = "penstock.records._row_hash_cy"
TAG, OTHER_TAG = 0x243F6A8885A308D3, 0x13198A2E03707344
hashing = implementations(MODULE)


class Texts:
    """A column of bytes as Arrow lays it out, in memory of its own."""

    def __init__(self, texts: list[bytes | None], *, large: bool = False, before: int = 0) -> None:
        texts = [b"before"] * before + texts
        ends = [0]
        for text in texts:
            ends.append(ends[-1] + len(text or b""))
        bits = bytearray((len(texts) + 7) // 8)
        for number, text in enumerate(texts):
            bits[number // 8] |= (text is not None) << number % 8
        content = b"".join(text or b"" for text in texts)
        self.size, self.large, self.first, self.rows = len(content), large, before, len(texts) - before
        self.data = ctypes.create_string_buffer(content, len(content) or 1)
        self.validity = ctypes.create_string_buffer(bytes(bits), len(bits) or 1)
        self.offsets = array("q" if large else "i", ends)

    def add_to(self, module: ModuleType, hashes: bytearray, tag: int = TAG) -> bytearray:
        places = (
            self.offsets.buffer_info()[0],
            ctypes.addressof(self.validity),
            ctypes.addressof(self.data),
            self.size,
        )
        module.add_texts(hashes, tag, *places, self.large, self.first)
        return hashes

    def hashes(self, module: ModuleType, tag: int = TAG) -> bytearray:
        return self.add_to(module, bytearray(8 * self.rows), tag)


def number_of(module: ModuleType, text: bytes | None, tag: int = TAG) -> int:
    return int.from_bytes(Texts([text]).hashes(module, tag), "little")


# What the log holds was made with these numbers: they must never change.
KNOWN_BY_SIZE = {
    0: "5b2cd4c43eebf83e",
    1: "1be64794640bbb81",
    3: "4a06bf78b3ab7bdc",
    4: "431ed925fcabd278",
    7: "795534eb36b2ea97",
    8: "e938e4f76a878a7a",
    9: "0eb607e4644f4611",
    15: "1f6c03c35b0b19eb",
    16: "74e3c10d18fccdc9",
    17: "9f7a1764c823fd74",
    31: "baee993e5baa49dd",
    32: "badb48131e917d8d",
    33: "a87e5fd6c87ddcc9",
    48: "0fd143a41cd26452",
    64: "8be176218e84b620",
    100: "a6f1e76b62ed19dc",
}
KNOWN_SUM = "0f8fd38fd87a3282"


def test_the_numbers_of_the_log_never_change(hashing: ModuleType) -> None:
    found = {size: number_of(hashing, bytes(range(size))) for size in KNOWN_BY_SIZE}
    assert {size: f"{number:016x}" for size, number in found.items()} == KNOWN_BY_SIZE
    hashes = Texts([b"key", None, b""]).hashes(hashing)
    Texts([b"value", b"x" * 40, None]).add_to(hashing, hashes, OTHER_TAG)
    assert f"{hashing.hash_sum(hashes):016x}" == KNOWN_SUM


def test_a_null_adds_nothing_and_an_empty_text_does(hashing: ModuleType) -> None:
    assert number_of(hashing, None) == 0
    assert number_of(hashing, b"") != 0
    assert number_of(hashing, b"", OTHER_TAG) != number_of(hashing, b"")


def test_every_byte_and_every_length_counts(hashing: ModuleType) -> None:
    for size in (*range(1, 20), 31, 32, 33, 47, 48, 49, 63, 64, 65, 100):
        text = bytes(range(100, 100 + size))
        others = [text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :] for at in range(size)]
        others += [text[:at] + bytes([text[at] ^ 0x80]) + text[at + 1 :] for at in range(size)]
        others += [text[:-1], text + b"\0", b"\0" + text, bytes(size)]
        numbers = {number_of(hashing, each) for each in (text, *others)}
        assert len(numbers) == len({text, *others})


@pytest.mark.parametrize("form", [form for form in forms(MODULE) if form != "no-cython"])
@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.none() | st.binary(max_size=70), max_size=30),
    large=st.booleans(),
    before=st.integers(0, 9),
)
def test_it_is_the_same_in_all_forms_and_layouts(
    form: str, texts: list[bytes | None], large: bool, before: int
) -> None:
    plain = load(MODULE, "no-cython")
    expected = Texts(texts).hashes(plain)
    column = Texts(texts, large=large, before=before)
    module = load(MODULE, form)
    assert column.hashes(module) == expected
    assert module.hash_sum(column.hashes(module)) == plain.hash_sum(expected)


@pytest.mark.parametrize("large", [False, True])
def test_numbers_count_whatever_their_width(hashing: ModuleType, large: bool) -> None:
    def hashes(*numbers: int, wide: bool = large, null: int = -1) -> list[int]:
        items = array("q" if wide else "i", numbers)
        found = bytearray(8 * len(numbers))
        valid = ctypes.create_string_buffer(bytes([0xFF & ~(1 << null) if null >= 0 else 0xFF]))
        hashing.add_numbers(found, TAG, items.buffer_info()[0], ctypes.addressof(valid), wide, 0)
        return list(array("Q", bytes(found)))

    some = hashes(0, 1, -1, 2**31 - 1, -(2**31))
    assert len(set(some)) == 5
    assert some == hashes(0, 1, -1, 2**31 - 1, -(2**31), wide=not large)
    assert hashes(5, 6, null=1) == [hashes(5)[0], 0]


def test_the_entries_of_a_list_count_in_their_order(hashing: ModuleType) -> None:
    entries = Texts([b"a", b"b", b"c"]).hashes(hashing)

    def sums(*ends: int, null: int = -1, some: bytearray = entries, first: int = 0) -> list[int]:
        offsets, rows = array("i", ends), len(ends) - 1
        valid = ctypes.create_string_buffer(bytes([0xFF & ~(1 << null) if null >= 0 else 0xFF]))
        found = bytearray(8 * rows)
        places = (offsets.buffer_info()[0], ctypes.addressof(valid), False, 0)
        hashing.add_lists(found, TAG, *places, some, first)
        return list(array("Q", bytes(found)))

    turned = Texts([b"b", b"a", b"c"]).hashes(hashing)
    assert sums(0, 2, 3)[0] != sums(0, 2, 3, some=turned)[0]
    assert sums(0, 2, 3)[1] == sums(0, 2, 3, some=turned)[1]
    assert sums(0, 0, 3)[0] not in (0, sums(0, 1, 3)[0])
    assert sums(0, 2, 3, null=0)[0] == 0
    assert sums(5, 7, 8, first=5) == sums(0, 2, 3)
    for wrong in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(ValueError, match="row 0 of an Arrow column"):
            sums(*wrong)
    with pytest.raises(ValueError, match="row 0 of an Arrow column"):
        sums(0, 2, first=1)


@pytest.mark.parametrize("offsets", [(0, 7), (-1, 3), (3, 2), (0, 2**31 - 1), (5, 6)])
@pytest.mark.parametrize("large", [False, True])
def test_a_row_outside_of_its_data_is_refused(
    hashing: ModuleType, offsets: tuple[int, int], large: bool
) -> None:
    column = Texts([b"four"], large=large)
    column.offsets = array("q" if large else "i", offsets)
    with pytest.raises(ValueError, match="row 0 of an Arrow column lies outside"):
        column.hashes(hashing)


def test_the_sum_does_not_depend_on_the_order_of_rows_but_on_which_field_is_whose(
    hashing: ModuleType,
) -> None:
    def total(*rows: tuple[bytes, bytes]) -> int:
        hashes = Texts([key for key, _ in rows]).hashes(hashing)
        found: int = hashing.hash_sum(Texts([value for _, value in rows]).add_to(hashing, hashes, OTHER_TAG))
        return found

    assert total((b"1", b"a"), (b"2", b"b")) == total((b"2", b"b"), (b"1", b"a"))
    assert total((b"1", b"a"), (b"2", b"b")) != total((b"1", b"b"), (b"2", b"a"))
    assert total((b"1", b"2")) != total((b"2", b"1"))
    assert total((b"1", b"1"), (b"1", b"1")) != total((b"2", b"2"), (b"2", b"2"))
