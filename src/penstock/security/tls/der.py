# SPDX-License-Identifier: Apache-2.0
"""DER and BER, as far as key stores need them: elements, and how much work a file asks for.

A password is turned into a key by repeating a hash as often as the file says. A file that says two thousand million
would keep a processor busy for an hour, so the count is looked at first.

What is in a string of octets is not looked at here: it may be a structure, or a salt that looks like one. Who knows
which it is reads that with `parse` as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from penstock.security.tls.material import StoreError

SEQUENCE: Final = 0x30
INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_ID: Final = 0x06
_CONSTRUCTED: Final = 0x20
_UTC_TIME: Final = 0x17  # has two digits for the year
_TIMES: Final = (_UTC_TIME, 0x18)

# OpenSSL writes 2048 rounds, Java 10,000; the longest advice of today is about a million.
_MOST_ROUNDS: Final = 5_000_000
# N * r * p of scrypt: 2^14 * 8 * 1 is usual.
_MOST_SCRYPT: Final = 1 << 24
_MOST_DEPTH: Final = 40
# A bag with a certificate has 15.
_MOST_ELEMENTS: Final = 100_000


class Element(NamedTuple):
    """One element: its tag, and where its content is. `end` is -1 where the content says itself where it ends."""

    tag: int
    start: int
    end: int


def element_at(data: bytes, at: int, stop: int) -> Element:
    """The element that begins there and ends before `stop`.

    Raises:
        StoreError: there is none, or it is longer than what is there.
    """
    if at + 2 > stop:
        raise StoreError(f"it is cut at byte {at}")
    tag, length, start = data[at], data[at + 1], at + 2
    if tag & 0x1F == 0x1F:
        raise StoreError(f"the tag at byte {at} is not known")
    if length == 0x80 and tag & _CONSTRUCTED:
        return Element(tag, start, -1)
    if length >= 0x80:
        size = length & 0x7F
        if not 1 <= size <= 4 or start + size > stop:
            raise StoreError(f"the length at byte {at + 1} is not possible")
        length = int.from_bytes(data[start : start + size], "big")
        start += size
    if start + length > stop:
        raise StoreError(f"the element at byte {at} has {length} bytes, but only {stop - start} are there")
    return Element(tag, start, start + length)


def elements(data: bytes, start: int, stop: int) -> Iterator[Element]:
    """The elements side by side between two places; only those whose lengths are given."""
    while start < stop:
        element = element_at(data, start, stop)
        if element.end < 0:
            raise StoreError(f"the element at byte {start} has no length")
        yield element
        start = element.end


def is_sequence(data: bytes) -> bool:
    """Whether it is one sequence, and nothing more."""
    try:
        element = element_at(data, 0, len(data))
    except StoreError:
        return False
    return element.tag == SEQUENCE and element.end == len(data)


class Node(NamedTuple):
    """An element with all that is in it.

    Attributes:
        tag: what it is.
        content: the bytes of one that is not constructed; else empty.
        parts: the elements of one that is constructed; else empty.
    """

    tag: int
    content: bytes
    parts: tuple[Node, ...]

    @property
    def is_string(self) -> bool:
        """Whether it is a string of octets, in one piece or in several."""
        return self.tag & ~_CONSTRUCTED == OCTET_STRING

    @property
    def octets(self) -> bytes:
        """The bytes of a string, also of one in pieces."""
        return b"".join(part.octets for part in self.parts) if self.tag & _CONSTRUCTED else self.content


def parse(data: bytes) -> list[Node]:
    """The elements side by side, with all that is in them.

    Raises:
        StoreError: it is not DER (or BER) at all, or has too many elements.
    """
    return _Parser(data).row(0, len(data), 0)[0]


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when an X.509 certificate is valid.

    Raises:
        ValueError: it does not say so.
    """
    try:
        fields = parse(certificate)[0].parts[0].parts
        start, end = next(each.parts for each in fields if each.parts and each.parts[0].tag in _TIMES)
        return _moment(start), _moment(end)
    except (IndexError, StopIteration) as error:
        raise ValueError("it is no certificate") from error


def _moment(node: Node) -> datetime:
    text = node.content.decode("ascii")
    if node.tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


class _Parser:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST_ELEMENTS

    def row(self, at: int, stop: int, depth: int, *, open_end: bool = False) -> tuple[list[Node], int]:
        """One row of elements, and where it ends; with `open_end` that is before two bytes of zero."""
        if depth > _MOST_DEPTH:
            raise StoreError(f"it is nested more than {_MOST_DEPTH} times at byte {at}")
        found: list[Node] = []
        while at < stop:
            if open_end and self._data[at : at + 2] == b"\0\0":
                return found, at
            self._left -= 1
            if self._left < 0:
                raise StoreError(f"it has more than {_MOST_ELEMENTS} elements")
            tag, start, end = element_at(self._data, at, stop)
            content = b""
            parts: list[Node] = []
            if end < 0:
                parts, end = self.row(start, stop, depth + 1, open_end=True)
                at = end + 2
            else:
                if tag & _CONSTRUCTED:
                    parts, _ = self.row(start, end, depth + 1)
                else:
                    content = self._data[start:end]
                at = end
            found.append(Node(tag, content, tuple(parts)))
        if open_end:
            raise StoreError(f"it is cut at byte {at}")
        return found, at


def check_rounds(data: bytes) -> None:
    """Refuse what would take too long to decrypt.

    Raises:
        StoreError: it asks for too many rounds, or is not DER (or BER) at all.
    """
    Work().add(parse(data))


class Work:
    """How much work it is to decrypt all parts of a store: each asks for its own."""

    def __init__(self) -> None:
        self._rounds = 0
        self._steps = 0

    def add(self, nodes: Iterable[Node]) -> None:
        """Look at the numbers that stand behind a salt.

        Raises:
            StoreError: with these it is too much.
        """
        salted = False
        numbers: list[int] = []
        for node in nodes:
            if node.tag == INTEGER and salted:
                if len(node.content) <= 8:  # a longer one is no count
                    numbers.append(int.from_bytes(node.content, "big"))
            elif numbers:
                salted = False
            if node.is_string:
                salted = True
            self.add(node.parts)
        self._count(numbers)

    def _count(self, numbers: list[int]) -> None:
        if len(numbers) >= 3:
            self._steps += numbers[0] * numbers[1] * numbers[2]
            if self._steps > _MOST_SCRYPT:
                raise StoreError(
                    f"its scrypt parameters ask for {self._steps} steps, more than {_MOST_SCRYPT}"
                )
        elif numbers:
            self._rounds += numbers[0]
            if self._rounds > _MOST_ROUNDS:
                raise StoreError(f"its password is hashed {self._rounds} times, more than {_MOST_ROUNDS}")
