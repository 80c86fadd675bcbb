# SPDX-License-Identifier: Apache-2.0
"""Lengths and bytes of a record, for plain Python.

Compiled modules use `_fields_cy.pxd`, where the same functions are inline. Beside them this module is imported by tools
that walk through the package alone, and finds no `put_varint`, which is not a function of Python there.
"""

from __future__ import annotations

from typing import Any

from penstock import _primitives_cy


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
