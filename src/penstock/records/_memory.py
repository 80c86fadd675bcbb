# SPDX-License-Identifier: Apache-2.0
"""The memory of columns, by its address, and the fields of records, for plain Python.

A pointer is a memoryview of the same memory. Compiled modules use `_memory_cy.pxd` and `_columns_cy.pxd`, where the
same functions are inline and cost nothing. Beside them this module is imported by tools that walk through the package
alone, and finds no `put_varint`, which is not a function of Python there.
"""

from __future__ import annotations

import ctypes
from typing import Any

from penstock import _primitives_cy


def memory_at(address: int, size: int, form: Any) -> memoryview:
    """So many bytes at an address, as items of a format."""
    if size <= 0 or not address:
        return memoryview(b"").cast(form)
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B").cast(form)


def bytes_at(address: int, size: int) -> memoryview:
    return memory_at(address, size, "B")


def ints_at(address: int, count: int) -> memoryview:
    """Whole numbers of 32 bits."""
    return memory_at(address, 4 * count, "i")


def longs_at(address: int, count: int) -> memoryview:
    """Whole numbers of 64 bits."""
    return memory_at(address, 8 * count, "q")


def int_at(items: memoryview, at: int) -> int:
    """A number of 32 bits."""
    number: int = items[at]
    return number


def long_at(items: memoryview, at: int) -> int:
    """A number of 64 bits."""
    number: int = items[at]
    return number


def number_at(items: memoryview, at: int, width: int) -> int:
    """A number of the format that the items have."""
    del width
    number: int = items[at]
    return number


def is_null(valid: memoryview, at: int) -> bool:
    """Whether a bitmap of valid rows says that one is null."""
    return not (valid[at >> 3] >> (at & 7)) & 1


def word_at(data: memoryview, at: int) -> int:
    """Eight bytes as a number, the lowest first."""
    return int.from_bytes(data[at : at + 8], "little")


def half_at(data: memoryview, at: int) -> int:
    """Read four bytes as a number, the least significant byte first."""
    return int.from_bytes(data[at : at + 4], "little")


def folded(one: int, other: int) -> int:
    """The product of two numbers of 64 bits, its upper half over its lower one."""
    product = one * other
    return (product ^ product >> 64) & 0xFFFFFFFFFFFFFFFF


def find_in(column: Any, row: int) -> int:
    """Set what a column of bytes has found to those of a row, and give their number; -1 for null."""
    size: int = column.find(row)
    return size


def prefetch_in(column: Any, row: int) -> None:
    """Nothing: what the processor fetches ahead is not Python's to say."""


def copy(memory: Any, at: int, data: Any, size: int) -> int:
    """Write bytes; the position behind them."""
    if len(data) != size:  # a slice would change its size, and with it the size of the batch's memory
        raise ValueError(f"a column has {len(data)} bytes where it says {size}")
    memory[at : at + size] = data
    return at + size


def put_field(memory: Any, at: int, data: Any, size: int) -> int:
    """Write a length and the bytes; -1 is null."""
    at = _primitives_cy.put_varint(memory, at, size)
    if size > 0:
        at = copy(memory, at, data, size)
    return at


def field_size(size: int) -> int:
    """The bytes of a length and what it is the length of."""
    return 1 if size < 0 else _primitives_cy.varint_size(size) + size
