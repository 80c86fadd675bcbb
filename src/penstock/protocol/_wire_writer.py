# SPDX-License-Identifier: Apache-2.0
"""From a struct and a version to a function that writes it.

The counterpart of `_wire_reader`. What the caller got wrong (an unknown name, a value that does not fit, a field that
the version does not have) is Unencodable, with the path of the field: better here than as a broken frame at the broker.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Mapping
from typing import Any

from penstock.protocol.schema import RECORDS, STRING, Array, Buffer, Field, Primitive, Struct

_INT16 = _struct.Struct(">h")
_INT32 = _struct.Struct(">i")


class Unencodable(Exception):
    """The value does not fit the schema; the path is filled in on the way up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def inside(self, outer: str) -> Unencodable:
        """The same, seen from the struct or list around it."""
        self.path = outer + self.path if self.path[:1] in ("", "[") else f"{outer}.{self.path}"
        return self


class Output:
    """Bytes written so far; records stay where they are and are listed in their place."""

    __slots__ = ("_finished", "tail")

    def __init__(self) -> None:
        self.tail = bytearray()
        self._finished: list[Buffer] = []

    def refer(self, buffer: Buffer) -> None:
        """Put a buffer into the output without copying it."""
        if self.tail:
            self._finished.append(self.tail)
            self.tail = bytearray()
        self._finished.append(buffer)

    def buffers(self) -> list[Buffer]:
        """What was written, in order."""
        return [*self._finished, self.tail] if self.tail or not self._finished else self._finished

    def joined(self) -> bytes:
        """The same in one piece."""
        return b"".join(self.buffers())


Writer = Callable[[Output, Any], None]


def append_uvarint(out: bytearray, number: int) -> None:
    """Write an unsigned number, 7 bits to the byte, lowest first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def struct_writer(struct: Struct, version: int, flexible: bool) -> Writer:
    """A function that writes the struct as the version has it."""
    names = frozenset(field.name for field in struct.fields)
    here = [field for field in struct.fields if field.versions.includes(version)]
    plain = [(field, _field_writer(field, version, flexible)) for field in here if field.tag is None]
    tagged = sorted((field for field in here if field.tag is not None), key=lambda field: field.tag or 0)
    write_tagged = _tagged_writer(tagged, version)
    elsewhere = [
        field for field in struct.fields if not field.versions.includes(version) and not field.ignorable
    ]

    def write(out: Output, body: Any) -> None:
        if not isinstance(body, Mapping):
            raise Unencodable(f"a dict expected, not {type(body).__name__}")
        if not names.issuperset(body):
            raise Unencodable("no such field").inside(str(min(map(str, set(body) - names))))
        for field in elsewhere:
            if field.name in body and not is_default(field, body[field.name]):
                raise Unencodable("this version has no such field").inside(field.name)
        for field, writer in plain:
            try:
                writer(out, body[field.name] if field.name in body else field.default_value())
            except Unencodable as error:
                raise error.inside(field.name) from None
        if flexible:
            write_tagged(out, body)

    return write


def is_default(field: Field, value: Any) -> bool:
    """Whether the value says no more than an absent field does."""
    if isinstance(field.type, Struct):
        if not isinstance(value, Mapping):
            return False
        return all(is_default(inner, value[inner.name]) for inner in field.type.fields if inner.name in value)
    return bool(value == field.default_value())


def _tagged_writer(fields: list[Field], version: int) -> Writer:
    writers = [(field, _field_writer(field, version, True)) for field in fields]

    def write(out: Output, body: Any) -> None:
        present: list[tuple[int, bytes]] = []
        for field, writer in writers:
            if field.name not in body or is_default(field, body[field.name]):
                continue
            content = Output()
            try:
                writer(content, body[field.name])
            except Unencodable as error:
                raise error.inside(field.name) from None
            present.append((field.tag or 0, content.joined()))
        append_uvarint(out.tail, len(present))
        for tag, data in present:
            append_uvarint(out.tail, tag)
            append_uvarint(out.tail, len(data))
            out.tail += data

    return write


def _field_writer(field: Field, version: int, flexible: bool) -> Writer:
    nullable = field.nullable.includes(version)
    kind = field.type
    if isinstance(kind, Struct):
        return struct_writer(kind, version, flexible)
    if isinstance(kind, Array):
        return _array_writer(kind.element, nullable, version, flexible)
    return _primitive_writer(kind, nullable, flexible)


def _primitive_writer(kind: Primitive, nullable: bool, flexible: bool) -> Writer:
    if kind.layout is not None:
        return _fixed_writer(kind)
    return _string_writer(nullable, flexible) if kind is STRING else _bytes_writer(kind, nullable, flexible)


def _fixed_writer(kind: Primitive) -> Writer:
    pack = _struct.Struct(f">{kind.layout}").pack
    wanted: type = type(kind.zero)

    def write(out: Output, value: Any) -> None:
        # struct would take any object as a bool, and pad or cut a short or long uuid.
        if not isinstance(value, wanted) or (isinstance(value, bytes) and len(value) != 16):
            raise Unencodable(f"not a {kind.name}: {value!r}")
        try:
            out.tail += pack(value)
        except _struct.error:
            raise Unencodable(f"{value!r} does not fit in {kind.name}") from None

    return write


def _length_writer(kind: Primitive | None, nullable: bool, flexible: bool) -> Callable[[Output, int], None]:
    """Writes the length of a string, byte string or (kind None) list; -1 is null."""
    layout = _INT16 if kind is STRING else _INT32

    def write(out: Output, size: int) -> None:
        if size < 0 and not nullable:
            raise Unencodable("it may not be null in this version")
        if flexible:
            append_uvarint(out.tail, size + 1)
            return
        try:
            out.tail += layout.pack(size)
        except _struct.error:
            raise Unencodable(f"too long: {size}") from None

    return write


def _string_writer(nullable: bool, flexible: bool) -> Writer:
    write_length = _length_writer(STRING, nullable, flexible)

    def write(out: Output, value: Any) -> None:
        if value is None:
            write_length(out, -1)
            return
        if not isinstance(value, str):
            raise Unencodable(f"a str expected, not {type(value).__name__}")
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            raise Unencodable("the text cannot be encoded as UTF-8") from None
        if len(raw) > 0x7FFF:  # compact strings could be longer on the wire, but brokers refuse them
            raise Unencodable(f"too long: {len(raw)} bytes")
        write_length(out, len(raw))
        out.tail += raw

    return write


def _bytes_writer(kind: Primitive, nullable: bool, flexible: bool) -> Writer:
    write_length = _length_writer(kind, nullable, flexible)
    is_referred: bool = kind is RECORDS

    def write(out: Output, value: Any) -> None:
        if value is None:
            write_length(out, -1)
            return
        pieces = value if is_referred and isinstance(value, list) else (value,)
        for piece in pieces:
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise Unencodable(f"bytes expected, not {type(piece).__name__}")
        write_length(out, sum(map(byte_length, pieces)))
        for piece in pieces:
            if is_referred:
                out.refer(piece)
            else:
                out.tail += piece

    return write


def byte_length(buffer: Buffer) -> int:
    """The number of bytes in a buffer; len() of a memoryview counts elements."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _array_writer(element: Primitive | Struct, nullable: bool, version: int, flexible: bool) -> Writer:
    write_length = _length_writer(None, nullable, flexible)
    if isinstance(element, Struct):
        write_one = struct_writer(element, version, flexible)
    else:
        write_one = _primitive_writer(element, False, flexible)

    def write(out: Output, value: Any) -> None:
        if value is None:
            write_length(out, -1)
            return
        if not isinstance(value, list | tuple):
            raise Unencodable(f"a list expected, not {type(value).__name__}")
        write_length(out, len(value))
        for index, one in enumerate(value):
            try:
                write_one(out, one)
            except Unencodable as error:
                raise error.inside(f"[{index}]") from None

    return write
