# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays made by hand, correct and wrong, and what each row of them is worth.

A table here is memory from malloc, each buffer just as large as the C data interface lets a reader know, and not a byte
more: under the address sanitizer every look beyond it ends the program. What is expected of a row is worked out from
the numbers that were written, in Python.

The interface does not tell how large the bytes behind offsets are but by the last of these: so that one is true.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.records import arrow

LIE: Final = object()  # the row contradicts the table
BAD_NAME: Final = object()  # of a header: null, or not UTF-8

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_RELEASED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)

_LIES_32 = (-(2**31), -70, -2, -1, 2**31 - 1, 60_000)
_LIES_64 = (*_LIES_32, -(2**63), 2**63 - 1, 2**62, 2**33)
WIDTHS = {"c": "b", "C": "B", "s": "h", "S": "H", "i": "i", "I": "I", "l": "q", "L": "Q"}


class Memory:
    """All memory of one table, until it is freed.

    Attributes:
        numbers: address and size of buffers with offsets, codes, views and bitmaps: what a second thread may change.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self.keep: list[Any] = []
        self.numbers: list[tuple[int, int]] = []

    def buffer(self, content: bytes, *, numbers: bool = False) -> int:
        """A buffer of just these bytes."""
        address: int = _libc.malloc(len(content))
        self._held.append(address)
        ctypes.memmove(address, content, len(content))
        if numbers and content:
            self.numbers.append((address, len(content)))
        return address

    def free(self) -> None:
        while self._held:
            _libc.free(self._held.pop())
        self.keep.clear()


class Made(NamedTuple):
    """A column: its two structures, and what each of its rows is worth."""

    schema: Any
    array: Any
    rows: list[Any]


class Shape(NamedTuple):
    """Which part of an array is looked at.

    Attributes:
        own: the array's own offset.
        skip: the offset of the struct around it.
        rows: how many rows are looked at.
        behind: how many more the array has.
    """

    own: int
    skip: int
    rows: int
    behind: int

    @property
    def first(self) -> int:
        return self.own + self.skip

    @property
    def end(self) -> int:
        return self.first + self.rows


class Maker:
    """Makes columns.

    Args:
        rng: decides everything.
        wrong_numbers: whether numbers may be wrong.
        memory: where the buffers go.
    """

    def __init__(self, rng: random.Random, wrong_numbers: bool, memory: Memory) -> None:
        self.rng = rng
        self.wrong_numbers = wrong_numbers
        self.memory = memory

    def table(self, columns: dict[str, Made], rows: int, skip: int) -> Table:
        """The struct around columns."""
        made = self._made("+s", Shape(skip, 0, rows, 0), [0], [], list(columns.items()))
        return Table(made.schema, made.array)

    def shape(self, rows: int, skip: int = 0) -> Shape:
        return Shape(self.rng.choice((0, 0, 1, 9)), skip, rows, self.rng.choice((0, 0, 2)))

    def text(self, shape: Shape, contents: Sequence[bytes | None] | None = None) -> Made:
        """A column of bytes of any layout; `contents` are what rows may have."""
        makers: list[Callable[..., Made]] = [self._offsets, self._offsets, self._views, self._dictionary]
        if contents is None:
            makers.append(self._fixed)
        return self.rng.choice(makers)(shape, contents)

    def numbers(self, shape: Shape, form: str, choices: Sequence[int]) -> Made:
        """A column of whole numbers; the rows are the numbers as they stand."""
        letter = WIDTHS[form if form in WIDTHS else "i" if form == "tdD" else "l"]
        low, high = _range(letter)
        total = shape.end + shape.behind
        values = [min(max(self.rng.choice(choices), low), high) for _ in range(total)]
        valid = self._valid(total)
        data = self.memory.buffer(struct.pack(f"={total}{letter}", *values), numbers=True)
        rows = [values[at] if valid[at] else None for at in range(shape.first, shape.end)]
        return self._made(form, shape, [self._bitmap(valid), data], rows)

    def headers(self, shape: Shape) -> Made:
        """A column of lists of pairs, in any form of list."""
        count = self.rng.choice((0, 1, 5, 12))
        inner = self.shape(count)._replace(behind=0)
        names = self.text(self.shape(count, inner.first), [b"", b"name", "n\u00e4me".encode(), b"\xff", None])
        values = self.text(self.shape(count, inner.first))
        valid = self._valid(inner.end, nulls=0.1)
        pairs = self._made("+s", inner, [self._bitmap(valid)], [], [("key", names), ("value", values)])
        entries = [
            (name, value) if valid[inner.first + at] else BAD_NAME
            for at, (name, value) in enumerate(zip(names.rows, values.rows, strict=True))
        ]
        form, buffers, ranges = self._ranges(shape, count)
        valid = self._valid(shape.end)
        rows = [_section(entries, *ranges[at]) if valid[at] else [] for at in range(shape.first, shape.end)]
        return self._made(form, shape, [self._bitmap(valid), *buffers], rows, [("entries", pairs)])

    # ------------------------------------------------------------------------------------------ layouts of bytes

    def _content(self, contents: Sequence[bytes | None] | None) -> bytes:
        if contents is not None:
            return self.rng.choice([item for item in contents if item is not None])
        return self.rng.randbytes(self.rng.choice((0, 1, 5, 12, 13, 64, 70, 300)))

    def _offsets(self, shape: Shape, contents: Sequence[bytes | None] | None) -> Made:
        total = shape.end + shape.behind
        items = [self._content(contents) for _ in range(total)]
        offsets = [0]
        for item in items:
            offsets.append(offsets[-1] + len(item))
        last = offsets[shape.end]
        is_large = self.rng.random() < 0.4
        for at in self._lied_about(total + 1):
            if at != shape.end:
                offsets[at] = self.rng.choice((*(_LIES_64 if is_large else _LIES_32), last + 1, last, 0))
        # What is behind the rows that are looked at may have no bytes at all.
        data = b"".join(items)[:last]
        address = 0 if not data and self.rng.random() < 0.5 else self.memory.buffer(data)
        valid = self._valid(total)
        packed = struct.pack(f"={total + 1}{'q' if is_large else 'i'}", *offsets)
        buffers = [self._bitmap(valid), self.memory.buffer(packed, numbers=True), address]
        rows = []
        for at in range(shape.first, shape.end):
            start, end = offsets[at : at + 2]
            good = 0 <= start <= end <= last
            rows.append(None if not valid[at] else data[start:end] if good else LIE)
        form = self.rng.choice("ZU" if is_large else "zu")
        return self._made(form, shape, buffers, rows)

    def _fixed(self, shape: Shape, contents: Sequence[bytes | None] | None) -> Made:
        del contents
        width = self.rng.choice((0, 1, 7, 80))
        total = shape.end + shape.behind
        data = self.rng.randbytes(width * total)
        valid = self._valid(total)
        rows = [
            data[at * width : (at + 1) * width] if valid[at] else None for at in range(shape.first, shape.end)
        ]
        return self._made(f"w:{width}", shape, [self._bitmap(valid), self.memory.buffer(data)], rows)

    def _views(self, shape: Shape, contents: Sequence[bytes | None] | None) -> Made:
        total = shape.end + shape.behind
        pool = [self.rng.randbytes(self.rng.choice((0, 13, 200))) for _ in range(self.rng.randrange(4))]
        views, found = [], []
        lied = set(self._lied_about(total))
        for at in range(total):
            view, item = self._view(self._content(contents), pool, contents is not None, at in lied)
            views.append(view)
            found.append(item)
        valid = self._valid(total)
        sizes = struct.pack(f"={len(pool)}q", *map(len, pool))
        buffers = [
            self._bitmap(valid),
            self.memory.buffer(b"".join(views), numbers=True),
            *(self.memory.buffer(data) for data in pool),
            self.memory.buffer(sizes) if pool or self.rng.random() < 0.5 else 0,
        ]
        rows = [found[at] if valid[at] else None for at in range(shape.first, shape.end)]
        return self._made(self.rng.choice(("vz", "vu")), shape, buffers, rows)

    def _view(self, content: bytes, pool: list[bytes], exact: bool, lied: bool) -> tuple[bytes, Any]:
        """A view, and what it shows."""
        if len(content) <= 12 and not lied:
            return struct.pack("=i12s", len(content), content), content
        number, size, start = 0, len(content), 0
        if pool and not exact and not lied:
            number = self.rng.randrange(len(pool))
            start = self.rng.randint(0, len(pool[number]))
            size = self.rng.randint(0, len(pool[number]) - start)
        elif not lied:
            pool.append(content)
            number = len(pool) - 1
        else:
            number = self.rng.choice((*_LIES_32, len(pool), 0))
            size, start = self.rng.choice((*_LIES_32, 13, 200)), self.rng.choice((*_LIES_32, 0, 190))
        if 0 <= size <= 12:
            data = pool[number][start : start + size] if pool and not lied else bytes(size)
            return struct.pack("=i12s", size, data), data
        good = size >= 0 and 0 <= number < len(pool) and 0 <= start <= len(pool[number]) - size
        shown = pool[number][start : start + size] if good else LIE
        if good and lied:
            number, shown = len(pool) + 9, LIE  # more buffers may come behind
        return struct.pack("=i4sii", size, b"pref", number if good or not lied else -1, start), shown

    def _dictionary(self, shape: Shape, contents: Sequence[bytes | None] | None) -> Made:
        words_shape = self.shape(self.rng.choice((0, 1, 5)))._replace(behind=0)
        words = self.rng.choice((self._offsets, self._views))(words_shape, contents)
        form = self.rng.choice(list(WIDTHS))
        good = range(words_shape.rows) if words_shape.rows else [0]
        choices = list(good)
        if self.wrong_numbers:
            choices += [words_shape.rows, -1, 127, -128, 2**63 - 1, -(2**63)]
        codes = self.numbers(shape, form, choices)
        rows = []
        for code in codes.rows:
            in_range = code is not None and 0 <= code < words_shape.rows
            rows.append(None if code is None else words.rows[code] if in_range else LIE)
        codes.schema.dictionary = ctypes.pointer(words.schema)
        codes.array.dictionary = ctypes.pointer(words.array)
        return Made(codes.schema, codes.array, rows)

    # ------------------------------------------------------------------------------------------ lists

    def _ranges(self, shape: Shape, count: int) -> tuple[str, list[int], list[tuple[int, int]]]:
        """A form of list, its buffers behind the bitmap, and first entry and number of entries of each row."""
        total = shape.end + shape.behind
        form = self.rng.choice(("+l", "+L", "+m", "+vl", "+vL", "+w:2"))
        if form == "+w:2":
            return form, [], [(2 * at, 2) for at in range(total)]
        letter, lies = ("q", _LIES_64) if form in ("+L", "+vL") else ("i", _LIES_32)
        lied = self._lied_about(total + 1)
        if form in ("+vl", "+vL"):
            starts = [self.rng.randint(0, count) for _ in range(total + 1)]
            sizes = [self.rng.randint(0, min(3, count - start)) for start in starts]
            for at in lied:
                self.rng.choice((starts, sizes))[at] = self.rng.choice((*lies, count + 1))
            packed = [struct.pack(f"={total}{letter}", *some[:total]) for some in (starts, sizes)]
            buffers = [self.memory.buffer(some, numbers=True) for some in packed]
            return form, buffers, list(zip(starts, sizes, strict=True))
        offsets = sorted(self.rng.randint(0, count) for _ in range(total + 1))
        for at in lied:
            offsets[at] = self.rng.choice((*lies, count + 1))
        packed = [struct.pack(f"={total + 1}{letter}", *offsets)]
        ranges = [(offsets[at], offsets[at + 1] - offsets[at]) for at in range(total)]
        return form, [self.memory.buffer(packed[0], numbers=True)], ranges

    # ------------------------------------------------------------------------------------------ parts

    def _lied_about(self, count: int) -> list[int]:
        if not self.wrong_numbers or not count or self.rng.random() < 0.3:
            return []
        return [self.rng.randrange(count) for _ in range(self.rng.choice((1, 1, 3)))]

    def _valid(self, count: int, nulls: float = 0.2) -> list[bool]:
        if self.rng.random() < 0.4:
            return [True] * count
        return [self.rng.random() >= nulls for _ in range(count)]

    def _bitmap(self, valid: list[bool]) -> int:
        if all(valid):
            return 0
        bits = sum(1 << at for at, is_valid in enumerate(valid) if is_valid)
        return self.memory.buffer(bits.to_bytes((len(valid) + 7) // 8, "little"), numbers=True)

    def _made(
        self,
        form: str,
        shape: Shape,
        buffers: list[int],
        rows: list[Any],
        children: Sequence[tuple[str, Made]] = (),
    ) -> Made:
        schema, array = arrow._Schema(), arrow._Array()
        schema.format = form.encode()
        array.length = shape.skip + shape.rows + shape.behind
        array.offset = shape.own
        array.null_count = -1 if buffers[0] else 0
        array.n_buffers = len(buffers)
        array.buffers = (ctypes.c_void_p * len(buffers))(*buffers)
        schema.n_children = array.n_children = len(children)
        for name, child in children:
            child.schema.name = name.encode()
        schema.children = _pointers(arrow._Schema, [child.schema for _, child in children])
        array.children = _pointers(arrow._Array, [child.array for _, child in children])
        schema.release = array.release = ctypes.cast(_RELEASED, ctypes.c_void_p).value
        self.memory.keep += [schema, array, array.buffers, schema.children, array.children]
        return Made(schema, array, rows)


class Table:
    """A table, as the C data interface hands it over."""

    def __init__(self, schema: Any, array: Any) -> None:
        self.schema = schema
        self.array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _new_capsule(ctypes.addressof(self.schema), b"arrow_schema", None),
            _new_capsule(ctypes.addressof(self.array), b"arrow_array", None),
        )


def _pointers(kind: Any, items: list[Any]) -> Any:
    return (ctypes.POINTER(kind) * len(items))(*(ctypes.pointer(item) for item in items))


def _range(letter: str) -> tuple[int, int]:
    bits = 8 * struct.calcsize(f"={letter}")
    return (0, 2**bits - 1) if letter.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _section(entries: list[Any], first: int, count: int) -> Any:
    """The headers of a row, LIE, or BAD_NAME: whichever is met first."""
    if first < 0 or count < 0 or first + count > len(entries):
        return LIE
    found = []
    for entry in entries[first : first + count]:
        if entry is BAD_NAME:
            return BAD_NAME
        name, value = entry
        if name is LIE:
            return LIE
        if name is None or not _is_text(name):
            return BAD_NAME
        if value is LIE:
            return LIE
        found.append((name.decode(), value))
    return found


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
