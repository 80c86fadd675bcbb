# SPDX-License-Identifier: Apache-2.0
"""The Arrow C data interface: tables of other libraries, read where they lie.

Whatever has `__arrow_c_stream__` or `__arrow_c_array__` (pyarrow, Polars, DuckDB, pandas and others) hands over
structures of pointers. Here they become plain descriptions, `ArrowColumn`, once per chunk; nothing is copied, and no
Arrow library is needed.

Rules:
1. An ArrowChunk owns its data until it is released, by `release` or with its last reference: code that keeps an
   address keeps the chunk.
2. An offset counts from the first item of the buffers. The offset and the length of a struct are those of its children
   too (they may be longer, but what is behind has no meaning); those of a list are not.
3. Structures that contradict each other are refused here, as a whole. What a single row says of itself (offsets, codes,
   views) is compared with them where the row is read. The interface does not say how large a buffer is: that its last
   offset lies within the data cannot be checked, but where the library of the table can tell (see `_well_formed`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

_UNNAMED = ""
# More than any machine can address, so such a number is wrong. Sums of smaller numbers stay within 64 bits.
_MOST_ITEMS = 1 << 52
# A table, its column of lists, their structs, the fields of these, and their dictionaries: nothing below is looked at.
_DEEPEST = 5
_MOST_BUFFERS = 1 << 24

# The buffers that each type has, by its first letters; types that no column of a record can have are not here.
_BUFFERS = {
    **dict.fromkeys("cCsSiIlL", 2), "tdD": 2, "tdm": 2, "tss": 2, "tsm": 2, "tsu": 2, "tsn": 2,
    "z": 3, "u": 3, "Z": 3, "U": 3, "vz": 3, "vu": 3, "w:": 2, "n": 0,
    "+l": 2, "+L": 2, "+m": 2, "+vl": 3, "+vL": 3, "+w:": 1, "+s": 1,
}  # fmt: skip


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    pass


_GetSchema = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))
_GetNext = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))
_GetLastError = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_Stream._fields_ = [
    ("get_schema", _GetSchema),
    ("get_next", _GetNext),
    ("get_last_error", _GetLastError),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class ArrowColumn(NamedTuple):
    """One array: its type, and where its buffers are.

    Attributes:
        format: the type, as a format string of the C data interface.
        validity: the address of the bitmap of rows that are not null; 0: none is null.
        buffers: the addresses of the other buffers; none for types of which no column of a record can be.
    """

    name: str
    format: str
    length: int
    offset: int
    validity: int
    buffers: tuple[int, ...]
    children: tuple[ArrowColumn, ...]
    dictionary: ArrowColumn | None

    @property
    def width(self) -> int:
        """The number behind the colon of a type of fixed size.

        Raises:
            ValueError: it is none, or the column would be larger than any memory.
        """
        digits = self.format.partition(":")[2]
        width = int(digits) if digits.isdecimal() else -1
        if not 0 <= width * (self.offset + self.length) <= _MOST_ITEMS or width < 0:
            raise ValueError(f"column {self.name!r} cannot have the type {self.format!r}")
        return width

    def variadic_sizes(self) -> list[int]:
        """The sizes of a view array's data buffers; they are in its last buffer."""
        count = len(self.buffers) - 2
        return list((ctypes.c_int64 * count).from_address(self.buffers[-1])) if count else []


class ArrowChunk:
    """Some rows of a table: a struct array, and the columns in it.

    Args:
        columns: the description.
        length: how many rows.
        owner: what holds the data; its `release` gives them back.
    """

    def __init__(self, columns: tuple[ArrowColumn, ...], length: int, owner: Any) -> None:
        self.columns = columns
        self.length = length
        self.owner = owner


class _Owned:
    """A structure that this side must release."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure

    def release(self) -> None:
        """Give the data back; twice is harmless."""
        address = self.structure.release
        if address:
            _Release(address)(ctypes.addressof(self.structure))
            self.structure.release = None  # the callback has done so, unless it has a fault

    def __del__(self) -> None:
        self.release()


class ArrowSource:
    """The chunks of a table, one after the other.

    Args:
        data: anything with `__arrow_c_stream__` or `__arrow_c_array__`.

    Raises:
        TypeError: it has neither, or is no table.
    """

    def __init__(self, data: Any) -> None:
        self._capsules: tuple[Any, ...] = ()
        self._stream: _Stream | None = None
        self._array: _Array | None = None
        data = _well_formed(data)
        # What has both is one batch: there is nothing to stream.
        if hasattr(data, "__arrow_c_array__"):
            schema, array = self._capsules = data.__arrow_c_array__()
            self._schema = _Schema.from_address(_capsule_pointer(schema, b"arrow_schema"))
            self._array = _Array.from_address(_capsule_pointer(array, b"arrow_array"))
            if not self._array.release:
                raise ValueError("the Arrow data were released before they were sent")
        elif hasattr(data, "__arrow_c_stream__"):
            capsule = data.__arrow_c_stream__()
            self._capsules = (capsule,)
            self._stream = _Stream.from_address(_capsule_pointer(capsule, b"arrow_array_stream"))
            self._schema = _Schema()
            self._owned_schema: Any = _Owned(self._schema)
            self._check(self._stream.get_schema(self._stream, self._schema))
        else:
            raise TypeError(
                f"data must be an Arrow table: something with __arrow_c_stream__ or __arrow_c_array__, such as a "
                f"pyarrow Table, a Polars DataFrame or a DuckDB relation, not {type(data).__name__}"
            )
        if self._schema.format != b"+s":
            raise TypeError(
                "data must be a table, or an array of structs: it is an array of "
                f"{type_name(_text(self._schema.format))}"
            )

    @property
    def names(self) -> list[str]:
        return [_text(child.name) for child in _children(self._schema)]

    def __iter__(self) -> Iterator[ArrowChunk]:
        """The chunks that have rows.

        Raises:
            OSError: the source failed; the text is its own.
        """
        if self._array is not None:
            if self._array.length:
                yield _chunk(self._schema, self._array, self._capsules)
            return
        while self._stream is not None:
            array = _Array()
            self._check(self._stream.get_next(self._stream, array))
            if not array.release:
                return
            owned = _Owned(array)
            if array.length:
                yield _chunk(self._schema, array, owned)

    def _check(self, code: int) -> None:
        if code:
            assert self._stream is not None
            text = self._stream.get_last_error(self._stream)
            raise OSError(code, f"the Arrow stream failed: {_text(text) or 'it does not say why'}")

    def close(self) -> None:
        """Forget the source; chunks that were read stay good."""
        self._stream = None
        self._capsules = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _chunk(schema: _Schema, array: _Array, owner: Any) -> ArrowChunk:
    table = _describe(schema, array)
    if table.validity and (array.null_count > 0 or _has_null(table)):
        raise ValueError("rows of the table are null as a whole, which is neither a record nor a missing one")
    return ArrowChunk(table.children, array.length, owner)


def _has_null(column: ArrowColumn) -> bool:
    """Whether a row of a column with a bitmap is null: the count of nulls may be missing."""
    first, after = column.offset, column.offset + column.length
    bitmap = ctypes.string_at(column.validity + first // 8, (after + 7) // 8 - first // 8)
    all_valid = (1 << column.length) - 1
    return int.from_bytes(bitmap, "little") >> first % 8 & all_valid != all_valid


def _describe(
    schema: Any, array: Any, offset: int = 0, length: int | None = None, depth: int = 0
) -> ArrowColumn:
    """Turn a pair of structures into values; `offset` and `length` are those of the struct around it.

    Raises:
        ValueError: they contradict each other.
    """
    name, form = _text(schema.name), _text(schema.format)
    own = array.offset + offset
    rows = array.length if length is None else length
    if min(array.length, array.offset) < 0 or max(array.length, array.offset, own + rows) > _MOST_ITEMS:
        raise ValueError(f"column {name!r} of the table has {array.length} rows from {array.offset} on")
    if array.length < offset + rows:
        raise ValueError(f"column {name!r} has {array.length} rows, of which {offset + rows} are to be read")
    addresses = _buffers(schema, array, name, form)
    has_bitmap = bool(addresses)
    inner: tuple[int, int | None] = (own, rows) if form == "+s" else (0, None)
    children: tuple[ArrowColumn, ...] = ()
    if form in _BUFFERS or form.startswith("+w:"):
        pairs = zip(_children(schema, array.n_children), _children(array), strict=True)
        children = tuple(
            _describe(type_, data, *inner, depth + 1) for type_, data in pairs if depth < _DEEPEST
        )
    dictionary = None
    if bool(schema.dictionary) != bool(array.dictionary):
        raise ValueError(f"column {name!r} has a dictionary in its type or in its data, but not in both")
    if schema.dictionary and depth < _DEEPEST:
        dictionary = _describe(schema.dictionary.contents, array.dictionary.contents, depth=depth + 1)
    return ArrowColumn(
        name,
        form,
        rows,
        own,
        addresses[0] if has_bitmap and array.null_count else 0,
        tuple(addresses[1:]),
        children,
        dictionary,
    )


def _buffers(schema: Any, array: Any, name: str, form: str) -> list[int]:
    """The addresses of an array's buffers: the bitmap first, and each is there if it is needed."""
    count = _BUFFERS.get(form) or _BUFFERS.get(form[:3]) or _BUFFERS.get(form[:2])
    if not count:
        return []
    if not count <= array.n_buffers <= _MOST_BUFFERS or not array.buffers:
        raise ValueError(
            f"column {name!r} has {array.n_buffers} buffers; the type {type_name(form)} has {count}"
        )
    if form in ("vz", "vu"):
        count = array.n_buffers
    addresses = [array.buffers[number] or 0 for number in range(count)]
    # Behind the bitmap: numbers, offsets, views, sizes of lists. Bytes may be missing where there are none.
    needed = addresses[1:] if form in ("+vl", "+vL") else addresses[1:2]
    if form in ("vz", "vu") and count > 3:  # the sizes of the data buffers
        needed.append(addresses[-1])
    if array.length and form != "w:0" and not all(needed):
        raise ValueError(
            f"column {name!r} of the table has {array.length} rows, but a buffer of it is missing"
        )
    return addresses


def _children(structure: Any, wanted: int | None = None) -> list[Any]:
    """The structures below one.

    Raises:
        ValueError: there are not as many as wanted, or one is missing.
    """
    count = structure.n_children
    if count < 0 or (wanted is not None and count != wanted):
        raise ValueError(f"an array of the table has {wanted} parts, and its type has {count}")
    pointers = [structure.children[number] for number in range(count)]
    if not all(pointers):
        raise ValueError("a part of the table is missing")
    return [pointer.contents for pointer in pointers]


def _well_formed(data: Any) -> Any:
    """The same data, but seen to have buffers as large as their offsets say, where their library can tell.

    That of pyarrow can, and must be asked: it reads files and messages without a look at what is in them. It does not
    take long, for only the ends of buffers are looked at.

    Raises:
        ValueError: they have not.
    """
    kind = type(data)
    if kind.__module__.partition(".")[0] != "pyarrow":
        return data
    if hasattr(data, "validate"):
        _validate(data)
    elif hasattr(data, "read_next_batch"):
        return kind.from_batches(data.schema, map(_validate, data))
    return data


def _validate(data: Any) -> Any:
    try:
        data.validate()
    except ValueError as error:
        raise ValueError(f"the table is damaged: {error}") from error
    return data


def _text(data: bytes | None) -> str:
    return _UNNAMED if data is None else data.decode(errors="replace")


# The letters by which the C data interface calls the types, for people; what follows them is left out.
_TYPE_NAMES = {
    "n": "null", "b": "boolean", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32",
    "l": "int64", "L": "uint64", "e": "float16", "f": "float32", "g": "float64", "z": "binary", "Z": "large binary",
    "vz": "binary view", "u": "string", "U": "large string", "vu": "string view", "d": "decimal",
    "w": "fixed-size binary", "tdD": "date32", "tdm": "date64", "tt": "time", "ts": "timestamp", "tD": "duration",
    "ti": "interval", "+l": "list",
    "+L": "large list", "+vl": "list view", "+vL": "large list view", "+w": "fixed-size list", "+s": "struct",
    "+m": "map", "+ud": "union", "+us": "union", "+r": "run-end encoded",
}  # fmt: skip


def type_name(code: str) -> str:
    """What people call a type of the C data interface."""
    for length in (3, 2, 1):
        name = _TYPE_NAMES.get(code[:length])
        if name is not None:
            return name
    return f"of a type that Arrow calls {code!r}"
