# SPDX-License-Identifier: Apache-2.0
"""What a Kafka message looks like, as data.

An API is two structs (request and response) whose fields say in which versions they exist. `codec` turns a struct and
a version into a plan once, and works from the plan. Nothing here knows a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Buffer = bytes | bytearray | memoryview

_NO_LAST_VERSION: Final = 32767


class Versions(NamedTuple):
    """An inclusive range of versions, written "3+", "0-3" or "5" in the message tables."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read the short form of the tables.

        Raises:
            ValueError: the text is none of "3+", "0-3" and "5".
        """
        if text.endswith("+"):
            return cls(int(text[:-1]), _NO_LAST_VERSION)
        first, dash, last = text.partition("-")
        return cls(int(first), int(last if dash else first))

    def includes(self, version: int) -> bool:
        """Whether the version is in the range."""
        return self.first <= version <= self.last


NO_VERSIONS: Final = Versions(0, -1)


class Primitive(NamedTuple):
    """A type without parts. `layout` is its struct character when its width is fixed, else None."""

    name: str
    layout: str | None
    zero: Any


BOOL: Final = Primitive("bool", "?", False)
INT8: Final = Primitive("int8", "b", 0)
INT16: Final = Primitive("int16", "h", 0)
INT32: Final = Primitive("int32", "i", 0)
INT64: Final = Primitive("int64", "q", 0)
UUID: Final = Primitive("uuid", "16s", bytes(16))
STRING: Final = Primitive("string", None, "")
BYTES: Final = Primitive("bytes", None, b"")
RECORDS: Final = Primitive("records", None, None)  # bytes on the wire; never copied on the way out

ZERO_UUID: Final = bytes(16)


class Array(NamedTuple):
    """A list of elements of one type."""

    element: Primitive | Struct


class Field(NamedTuple):
    """One field of a struct.

    Attributes:
        versions: where the field exists.
        nullable: where it may be null.
        tag: its number when it is a tagged field (an optional one, at the end of the struct), else None.
        default: what an absent field means. Lists and structs are made anew by `default_value`.
        ignorable: whether a value may be dropped when it is encoded for a version that has no such field.
    """

    name: str
    type: Primitive | Array | Struct
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any
    ignorable: bool

    def default_value(self) -> Any:
        """The field's default; each call makes its own list or dict."""
        if isinstance(self.type, Struct):
            return self.type.defaults()
        if isinstance(self.type, Array):
            return []
        return self.default


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """Fields in the order of the wire."""

    fields: tuple[Field, ...]

    def defaults(self) -> dict[str, Any]:
        """A body in which each field has its default."""
        return {each.name: each.default_value() for each in self.fields}


_TYPE_ZERO: Final = object()


def field(
    name: str,
    type_: Primitive | Array | Struct,
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    default: Any = _TYPE_ZERO,
    ignorable: bool = False,
) -> Field:
    """A row of a message table; without a default, that of the type."""
    if default is _TYPE_ZERO:
        default = type_.zero if isinstance(type_, Primitive) else None
    nullable_in = NO_VERSIONS if nullable is None else Versions.parse(nullable)
    return Field(name, type_, Versions.parse(versions), nullable_in, tag, default, ignorable)


def struct(*fields: Field) -> Struct:
    """A struct of these fields."""
    return Struct(fields)


def array_of_structs(*fields: Field) -> Array:
    """A list of structs with these fields."""
    return Array(Struct(fields))


@dataclass(frozen=True, slots=True, eq=False)
class ApiSchema:
    """One API: its number, the versions that this client uses, and its two messages.

    Attributes:
        flexible_from: the first version with compact lengths and tagged fields; None when there is none.
        throttles_from: the first version in which a broker that throttles answers at once, and leaves it to the client
            to wait (KIP-219); before it, the answer itself comes late. None when there is none.
        plain_response_header: the response header has no tagged fields even in flexible versions.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int | None
    request: Struct
    response: Struct
    throttles_from: int | None = None
    plain_response_header: bool = False

    def is_flexible(self, version: int) -> bool:
        """Whether the version has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def client_throttles(self, version: int) -> bool:
        """Whether the throttle time of an answer is for the client to wait."""
        return self.throttles_from is not None and version >= self.throttles_from

    def request_header_version(self, version: int) -> int:
        """1, or 2 (with tagged fields) in flexible versions."""
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """0, or 1 (with tagged fields) in flexible versions."""
        return 1 if self.is_flexible(version) and not self.plain_response_header else 0

    def __repr__(self) -> str:
        return f"<{self.name} ({self.key}) {self.min_version}-{self.max_version}>"
