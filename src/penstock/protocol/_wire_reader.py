# SPDX-License-Identifier: Apache-2.0
"""From a struct and a version to a function that reads it.

The version is looked at once, when the plan is built: what remains is a flat list of steps without a condition on the
version. Neighbouring fields of fixed width are read together. A decoded body has every field of the schema: those
which the version does not have get their default, so that callers need not ask for the version.

Rule 1: no length is used before it was compared with what is left of the frame.
Rule 2: whatever is wrong with the bytes is Malformed, with the path of the field.
Rule 3: what is made of a frame takes at most `most_decoded_bytes` of memory. Whatever is made is charged for, at no
less than it takes, and mostly before it is made. So large answers of real brokers stay far below, short lists of
numbers that are the same, and defaults, are one object in all places of an answer: nobody may change what was decoded.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final

from penstock.protocol.schema import RECORDS, STRING, Array, Field, Primitive, Struct
from penstock.records.format import DECODED_PER_BYTE, most_decoded_bytes

_INT16 = _struct.Struct(">h")
_INT32 = _struct.Struct(">i")

# What things take at most, in bytes: a number, and a list and its elements, which grows in steps and is copied then.
_NUMBER_COST: Final = 32
_LIST_COST: Final = getsizeof([]) + 32
_ELEMENT_COST: Final = 18
_RECORDS_COST: Final = 256  # a view of the frame
# Of a short list that is remembered: its bytes, and a place in a dict.
_REMEMBERED_COST: Final = 256
_SHORT_LIST: Final = 16


class Malformed(Exception):
    """The bytes do not fit the schema; the path is filled in on the way up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def inside(self, outer: str) -> Malformed:
        """The same, seen from the struct or list around it."""
        self.path = outer + self.path if self.path[:1] in ("", "[") else f"{outer}.{self.path}"
        return self


class Cursor:
    """A place in a frame."""

    __slots__ = ("data", "end", "pos", "room", "shared")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.pos = 0
        self.end = len(data)
        self.room = most_decoded_bytes(self.end)  # bytes of memory that may still be taken
        self.shared: dict[Any, Any] = {}  # what is the same in many places: short lists, and defaults

    def charge(self, size: int) -> None:
        """Take so many bytes of memory for what is made of the frame."""
        self.room -= size
        if self.room < 0:
            raise Malformed(
                f"what is said in {self.end} bytes would take more than {DECODED_PER_BYTE} times as much memory and "
                f"1 MiB ({most_decoded_bytes(self.end)} bytes): no broker answers like that"
            )

    def advance(self, size: int) -> int:
        """Step over `size` bytes; where they begin."""
        start = self.pos
        if size > self.end - start:
            raise Malformed(f"{size} bytes expected, {self.end - start} left")
        self.pos = start + size
        return start

    def uvarint(self) -> int:
        """An unsigned number of at most 32 bits, 7 bits to the byte, lowest first."""
        data, pos, end = self.data, self.pos, self.end
        result = shift = 0
        while pos < end:
            byte = data[pos]
            pos += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                if result > 0xFFFFFFFF:
                    break
                self.pos = pos
                return result
            shift += 7
            if shift > 28:  # a fifth byte that says that a sixth follows
                break
        else:
            raise Malformed("the frame ends inside a number")
        raise Malformed("a variable-length number is larger than 32 bits")

    def skip_tagged_fields(self) -> None:
        """Step over a tagged section of which nothing is known."""
        for _ in range(self.tag_count()):
            self.uvarint()
            self.advance(self.uvarint())

    def tag_count(self) -> int:
        """How many tagged fields follow."""
        count = self.uvarint()
        if count * 2 > self.end - self.pos:  # each has a tag and a size
            raise Malformed(f"{count} tagged fields cannot be in {self.end - self.pos} bytes")
        return count


Reader = Callable[[Cursor], Any]
Step = Callable[[Cursor, dict[str, Any]], None]


def struct_reader(struct: Struct, version: int, flexible: bool, *, is_whole: bool = True) -> Reader:
    """A function that reads the struct as the version has it.

    Args:
        struct: its fields.
        version: the version of the message.
        flexible: whether the version has tagged fields.
        is_whole: False for the first fields of a struct, which no tagged fields follow.
    """
    steps: list[Step] = []
    run: list[Field] = []  # neighbours of fixed width, not yet made a step
    tagged: dict[int, tuple[str, Reader]] = {}
    constants: dict[str, Any] = {}
    fresh: list[Field] = []  # defaults that must not be shared between bodies
    for field in struct.fields:
        present = field.versions.includes(version)
        if not present or field.tag is not None:
            if isinstance(field.type, Primitive):
                constants[field.name] = field.default
            else:
                fresh.append(field)
            if present and field.tag is not None:
                tagged[field.tag] = (field.name, _field_reader(field, version, flexible))
        elif isinstance(field.type, Primitive) and field.type.layout is not None:
            run.append(field)
        else:
            _end_run(run, steps)
            steps.append(_step(field.name, _field_reader(field, version, flexible)))
    _end_run(run, steps)
    if flexible and is_whole:
        steps.append(_tagged_step(tagged))
    cost = _struct_cost(struct, constants)

    def read(cursor: Cursor) -> dict[str, Any]:
        cursor.charge(cost)
        body = constants.copy()
        for field in fresh:
            body[field.name] = _shared_default(cursor, field)
        for step in steps:
            step(cursor, body)
        return body

    return read


def _struct_cost(struct: Struct, constants: dict[str, Any]) -> int:
    """What the dict of a struct and its numbers take; what else is in it is charged for where it is read."""
    body = constants.copy()
    for field in struct.fields:  # a dict grows in steps, which depend on how it is filled
        body[field.name] = None
    kinds = [field.type for field in struct.fields if isinstance(field.type, Primitive)]
    numbers = sum(2 if kind.layout == "16s" else 1 for kind in kinds if kind.layout not in (None, "?", "b"))
    return getsizeof(body) + _NUMBER_COST * numbers


def _shared_default(cursor: Cursor, field: Field) -> Any:
    """The default of a list or struct: one for the whole answer."""
    found = cursor.shared.get(id(field))
    if found is None:
        found = cursor.shared[id(field)] = field.default_value()
    return found


def _end_run(run: list[Field], steps: list[Step]) -> None:
    if run:
        steps.append(_run_step(tuple(run)))
        run.clear()


def _run_step(fields: tuple[Field, ...]) -> Step:
    layout = _struct.Struct(">" + "".join(_layout(field) for field in fields))
    names = tuple(field.name for field in fields)
    size, unpack_from = layout.size, layout.unpack_from

    def step(cursor: Cursor, body: dict[str, Any]) -> None:
        start = cursor.pos
        end = start + size
        if end > cursor.end:
            raise Malformed(f"{end - cursor.end} bytes missing").inside(
                _first_cut_off(fields, cursor.end - start)
            )
        body.update(zip(names, unpack_from(cursor.data, start), strict=True))
        cursor.pos = end

    return step


def _first_cut_off(fields: tuple[Field, ...], available: int) -> str:
    for field in fields:
        available -= _struct.calcsize(">" + _layout(field))
        if available < 0:
            return field.name
    return fields[-1].name


def _layout(field: Field) -> str:
    return field.type.layout or "" if isinstance(field.type, Primitive) else ""


def _step(name: str, reader: Reader) -> Step:
    def step(cursor: Cursor, body: dict[str, Any]) -> None:
        try:
            body[name] = reader(cursor)
        except Malformed as error:
            raise error.inside(name) from None

    return step


def _tagged_step(known: dict[int, tuple[str, Reader]]) -> Step:
    def step(cursor: Cursor, body: dict[str, Any]) -> None:
        for _ in range(cursor.tag_count()):
            tag, size = cursor.uvarint(), cursor.uvarint()
            start = cursor.advance(size)
            if tag not in known:
                continue
            name, reader = known[tag]
            cursor.pos = start
            try:
                body[name] = reader(cursor)
                if cursor.pos != start + size:
                    raise Malformed(f"{cursor.pos - start} bytes read, its size says {size}")
            except Malformed as error:
                raise error.inside(name) from None

    return step


def _field_reader(field: Field, version: int, flexible: bool) -> Reader:
    nullable = field.nullable.includes(version)
    kind = field.type
    if isinstance(kind, Struct):
        return struct_reader(kind, version, flexible)
    if isinstance(kind, Array):
        return _array_reader(kind.element, nullable, version, flexible)
    if kind.layout is not None:
        return _fixed_reader(kind.layout)
    return _sized_reader(kind, nullable, flexible)


def _fixed_reader(layout: str) -> Reader:
    fixed = _struct.Struct(">" + layout)
    size, unpack_from = fixed.size, fixed.unpack_from
    return lambda cursor: unpack_from(cursor.data, cursor.advance(size))[0]


def _length_reader(kind: Primitive | None, flexible: bool) -> Callable[[Cursor], int]:
    """Reads the length of a string, byte string or (kind None) list; -1 is null."""
    if flexible:
        return lambda cursor: cursor.uvarint() - 1
    layout = _INT16 if kind is STRING else _INT32
    size, unpack_from = layout.size, layout.unpack_from
    return lambda cursor: int(unpack_from(cursor.data, cursor.advance(size))[0])


def _sized_reader(kind: Primitive, nullable: bool, flexible: bool) -> Reader:
    read_length = _length_reader(kind, flexible)

    def read(cursor: Cursor) -> Any:
        size = read_length(cursor)
        if size < 0:
            _check_null(size, nullable)
            return None
        start = cursor.advance(size)
        raw = cursor.data[start : cursor.pos]
        if kind is RECORDS:
            cursor.charge(_RECORDS_COST)
            return raw
        if kind is not STRING:
            cursor.charge(size + _NUMBER_COST + _NUMBER_COST)
            return bytes(raw)
        try:
            text = str(raw, "utf-8")
        except UnicodeDecodeError:
            raise Malformed("a string is not UTF-8") from None
        cursor.charge(getsizeof(text))  # up to four times its bytes, by its characters
        return text

    return read


def _check_null(length: int, nullable: bool) -> None:
    if length != -1:
        raise Malformed(f"negative length {length}")
    if not nullable:
        raise Malformed("null where the version allows none")


def _array_reader(element: Primitive | Struct, nullable: bool, version: int, flexible: bool) -> Reader:
    read_count = count_reader(element, nullable, version, flexible)
    read_elements = elements_reader(element, version, flexible)

    def read(cursor: Cursor) -> list[Any] | None:
        count = read_count(cursor)
        if count < 0:
            return None
        return read_elements(cursor, count) if count else _shared_list(cursor)

    return read


def count_reader(
    element: Primitive | Struct, nullable: bool, version: int, flexible: bool
) -> Callable[[Cursor], int]:
    """A function that reads how many elements a list has; -1 is null."""
    read_length = _length_reader(None, flexible)
    smallest = smallest_size(element, version, flexible)

    def read(cursor: Cursor) -> int:
        count = read_length(cursor)
        if count < 0:
            _check_null(count, nullable)
        elif count * smallest > cursor.end - cursor.pos:
            raise Malformed(f"{count} elements cannot be in {cursor.end - cursor.pos} bytes")
        return count

    return read


def elements_reader(
    element: Primitive | Struct, version: int, flexible: bool
) -> Callable[[Cursor, int], list[Any]]:
    """A function that reads so many elements of a list."""
    if isinstance(element, Primitive) and element.layout is not None:
        layout, width = element.layout, _struct.calcsize(">" + element.layout)

        def read_fixed(cursor: Cursor, count: int) -> list[Any]:
            start = cursor.advance(count * width)
            if count > _SHORT_LIST:
                cursor.charge(_LIST_COST + count * (_ELEMENT_COST + 2 * _NUMBER_COST))
                return _numbers(layout, cursor.data[start : cursor.pos], count)
            key = (layout, bytes(cursor.data[start : cursor.pos]))
            found: list[Any] | None = cursor.shared.get(key)
            if found is None:
                cursor.charge(_REMEMBERED_COST + _LIST_COST + count * (_ELEMENT_COST + 2 * _NUMBER_COST))
                found = cursor.shared[key] = _numbers(layout, key[1], count)
            return found

        return read_fixed

    if isinstance(element, Struct):
        read_one = struct_reader(element, version, flexible)
    else:
        read_one = _sized_reader(element, False, flexible)

    def read_each(cursor: Cursor, count: int) -> list[Any]:
        elements: list[Any] = []
        cursor.charge(_LIST_COST + count * _ELEMENT_COST)
        try:
            # Not a comprehension: the number of elements read so far tells where it broke off.
            elements.extend(read_one(cursor) for _ in range(count))
        except Malformed as error:
            raise error.inside(f"[{len(elements)}]") from None
        return elements

    return read_each


def _shared_list(cursor: Cursor) -> list[Any]:
    """The empty list of an answer."""
    found: list[Any] = cursor.shared.setdefault("", [])
    return found


def _numbers(layout: str, data: memoryview | bytes, count: int) -> list[Any]:
    """Numbers, or UUIDs, that lie one behind the other."""
    if layout == "16s":  # a repeat count would make one long string of it
        return [bytes(data[at : at + 16]) for at in range(0, 16 * count, 16)]
    return list(_struct.unpack_from(f">{count}{layout}", data))


def smallest_size(kind: Primitive | Array | Struct, version: int, flexible: bool) -> int:
    """The fewest bytes that a value of the type can take."""
    if isinstance(kind, Struct):
        present = (field for field in kind.fields if field.versions.includes(version) and field.tag is None)
        return sum(smallest_size(field.type, version, flexible) for field in present) + flexible
    if isinstance(kind, Primitive) and kind.layout is not None:
        return _struct.calcsize(">" + kind.layout)
    if flexible:
        return 1
    return 2 if kind is STRING else 4
