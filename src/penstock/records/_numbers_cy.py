# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Columns of whole numbers, read where they lie: the memory of Arrow arrays. Compiled if possible.

The rules are those of `_columns_cy`. In plain Python a pointer is a memoryview of the same memory.
"""

from __future__ import annotations

from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.records._memory_cy import bytes_at, is_null, number_at
else:
    from penstock.records._memory import bytes_at, is_null, number_at

NULL = -(2**63)  # what a column of numbers gives for null

# C variables when compiled, so that their use costs nothing.
_NULL = cython.declare(cython.longlong, NULL)  # by name: C has no literal for the smallest number
_LARGEST = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_FORMATS = {1: "b", -1: "B", 2: "h", -2: "H", 4: "i", -4: "I", 8: "q", -8: "Q"}
_UNITS = {1: "ms", 1000: "s", -1000: "us", -1_000_000: "ns", 86_400_000: "days"}


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class IntColumn:
    """Whole numbers, scaled: partitions, timestamps, the codes of a dictionary.

    Args:
        layout: an ArrowColumn of whole numbers, or anything with its attributes.
        width: bytes of an item; negative for unsigned ones; 0 where all are null.
        times: what a value is multiplied by; negative: what it is divided by, and rounded down.
        keep: what holds the memory.
        smallest_is_null: whether the smallest number of 64 bits stands for null. Otherwise it is a number like any
            other that is negative.
    """

    def __init__(
        self,
        layout: Any,
        width: cython.int,
        times: cython.longlong,
        keep: object,
        smallest_is_null: cython.bint = True,
    ) -> None:
        end: cython.Py_ssize_t = layout.offset + layout.length
        self.length = layout.length
        self._offset = layout.offset
        self._width = width
        self._times = times
        self._keep = keep
        self._smallest_is_null = smallest_is_null
        self._has_nulls = bool(layout.validity)
        self._valid = bytes_at(layout.validity, (end + 7) // 8)
        size: cython.Py_ssize_t = abs(width) * end
        self._items = bytes_at(layout.buffers[0] if width else 0, size)
        if not cython.compiled and width:
            self._items = self._items.cast(_FORMATS[width])

    def at(self, row: cython.Py_ssize_t) -> cython.longlong:
        """A row's number, or NULL; -1 for what a signed number cannot hold: nothing that is good is negative."""
        at: cython.Py_ssize_t = row + self._offset
        value: cython.longlong
        if self._width == 0 or (self._has_nulls and is_null(self._valid, at)):
            return _NULL
        value = number_at(self._items, at, self._width)
        if self._width == -8 and (value < 0 or value > _LARGEST):
            value = -1
        if value == _NULL and not self._smallest_is_null:
            return -1
        return value if self._times == 1 else self._scaled(value)

    def as_given(self, row: cython.Py_ssize_t) -> int | None:
        """A row's number as the column has it, before it is scaled; None for null."""
        at: cython.Py_ssize_t = row + self._offset
        if self._width == 0 or (self._has_nulls and is_null(self._valid, at)):
            return None
        number: int = number_at(self._items, at, self._width)
        if self._width == -8 and number < 0:
            number += 2**64
        return None if self._smallest_is_null and number == NULL else number

    @property
    def unit(self) -> str:
        """What the numbers of a column of moments count."""
        return _UNITS.get(self._times, "ms")

    @cython.cdivision(True)
    def _scaled(self, value: cython.longlong) -> cython.longlong:
        if value < 0:
            # The moment before the epoch that it is does not matter: none of them can be sent.
            return value if value == _NULL else -1
        if self._times < 0:
            return value // -self._times
        # Beyond what milliseconds can count: refused like a moment before the epoch.
        return -1 if value > _LARGEST // self._times else value * self._times
