# SPDX-License-Identifier: Apache-2.0
"""From lines of input to records: `penstock produce` reads text or JSON, one record a line.

Bytes stay bytes: a line of text becomes the value as it is, whatever its encoding. Only JSON is decoded, and only where
a field is asked for; the whole object as value is the line itself, not a copy written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol

MAX_LINE_BYTES = (
    64 << 20
)  # far above any message.max.bytes; a file without line ends must not fill the memory


class BadLine(ValueError):
    """A line that is no record; the text says why."""


class LineRecord(NamedTuple):
    """What one line says."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class LineFormat(Protocol):
    """How a line is read."""

    def parse(self, line: bytes) -> LineRecord | None:
        """The record of a line; None for a line that is to be passed over.

        Raises:
            BadLine: it is malformed.
        """
        ...


def read_lines(stream: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    r"""The lines without their ends (\n or \r\n); None stands for one that is longer than the limit."""
    while line := stream.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(limit)
            yield None
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


@dataclass(frozen=True, slots=True)
class TextLines:
    """[headers SEPARATOR] [key SEPARATOR] value, where headers are name:value,name:value."""

    key_separator: bytes | None = None
    headers_separator: bytes | None = None
    null_marker: bytes | None = None  # a key or value of exactly these bytes is null

    def parse(self, line: bytes) -> LineRecord:
        """Cut the line at its separators."""
        headers: tuple[tuple[str, bytes | None], ...] = ()
        key: bytes | None = None
        rest = line
        if self.headers_separator is not None:
            text, rest = _cut(rest, self.headers_separator, "headers")
            headers = self._headers(text)
        if self.key_separator is not None:
            text, rest = _cut(rest, self.key_separator, "key")
            key = self._null_or(text)
        return LineRecord(self._null_or(rest), key, headers)

    def _headers(self, text: bytes) -> tuple[tuple[str, bytes | None], ...]:
        found = []
        for part in text.split(b",") if text else ():
            name, separator, value = part.partition(b":")
            if not separator or not name:
                raise BadLine(f"header {_shown(part)} is not name:value")
            try:
                found.append((name.decode(), self._null_or(value)))
            except UnicodeDecodeError:
                raise BadLine(f"the header name {_shown(name)} is not UTF-8") from None
        return tuple(found)

    def _null_or(self, text: bytes) -> bytes | None:
        return None if text == self.null_marker else text


@dataclass(frozen=True, slots=True)
class JsonLines:
    """One JSON object a line; fields name where key, value and the rest are. Empty lines are passed over."""

    key_field: str | None = None
    value_field: str | None = None  # None: the whole line is the value
    headers_field: str | None = None
    partition_field: str | None = None
    timestamp_field: str | None = None

    def parse(self, line: bytes) -> LineRecord | None:
        """Read the object and pick its fields."""
        if not line.strip():
            return None
        try:
            found = json.loads(line)
        except RecursionError:
            raise BadLine("not JSON that can be read: nested too deeply") from None
        except ValueError as error:
            raise BadLine(f"not JSON: {error}") from None
        if not isinstance(found, dict):
            raise BadLine(f"a JSON object is needed, not {_kind(found)}")
        return LineRecord(
            value=line if self.value_field is None else as_bytes(_field(found, self.value_field)),
            key=None if self.key_field is None else as_bytes(_field(found, self.key_field)),
            headers=() if self.headers_field is None else _json_headers(found.get(self.headers_field)),
            partition=_number(found, self.partition_field),
            timestamp_ms=_number(found, self.timestamp_field),
        )


def as_bytes(value: Any) -> bytes | None:
    """A JSON value as it goes on the wire: null is null, a string its text, anything else compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadLine("a string holds half of a surrogate pair, which has no UTF-8 form") from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def unescape(text: str) -> bytes:
    r"""A separator from the command line, where \t, \0, \\ and \xNN can be written out."""
    parts = re.split(r"(\\(?:t|0|\\|x[0-9a-fA-F]{2}))", text)
    names = {r"\t": b"\t", r"\0": b"\0", r"\\": b"\\"}
    return b"".join(
        names[part]
        if part in names
        else bytes([int(part[2:], 16)])
        if part.startswith(r"\x")
        else part.encode()
        for part in parts
    )


def _cut(text: bytes, separator: bytes, what: str) -> tuple[bytes, bytes]:
    before, found, behind = text.partition(separator)
    if not found:
        raise BadLine(f"no {what} separator {_shown(separator)} in {_shown(text)}")
    return before, behind


def _field(found: dict[str, Any], name: str) -> Any:
    if name not in found:
        raise BadLine(f"no field {name!r}; there are: {', '.join(map(repr, list(found)[:8])) or 'none'}")
    return found[name]


def _number(found: dict[str, Any], name: str | None) -> int | None:
    if name is None or found.get(name) is None:
        return None
    number = found[name]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise BadLine(f"field {name!r} must be a whole number from 0 up, not {_kind(number)}: {number!r}")
    return number


def _json_headers(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    if found is None:
        return ()
    if not isinstance(found, dict):
        raise BadLine(f"headers must be a JSON object, not {_kind(found)}")
    return tuple((name, as_bytes(value)) for name, value in found.items())


def _kind(value: Any) -> str:
    names = {"dict": "object", "list": "array", "str": "string", "bool": "boolean", "NoneType": "null"}
    name = type(value).__name__
    return names.get(name, "number")


def _shown(text: bytes, width: int = 60) -> str:
    cut = text if len(text) <= width else text[:width] + b"..."
    return repr(cut.decode(errors="backslashreplace"))
