# SPDX-License-Identifier: Apache-2.0
"""DER, as far as key stores need it: one element at a time, and how much work a file asks for.

A password is turned into a key by repeating a hash as often as the file says. A file that says two thousand million
would keep a processor busy for an hour, so the count is looked at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.security.tls.material import StoreError

SEQUENCE: Final = 0x30
INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_ID: Final = 0x06
_CONSTRUCTED: Final = 0x20
_CONSTRUCTED_STRING: Final = OCTET_STRING | _CONSTRUCTED

# OpenSSL writes 2048 rounds, Java 10,000; the longest advice of today is about a million.
_MOST_ROUNDS: Final = 5_000_000
# N * r * p of scrypt: 2^14 * 8 * 1 is usual.
_MOST_SCRYPT: Final = 1 << 24
_MOST_DEPTH: Final = 40
_MOST_ELEMENTS: Final = 200_000


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


def check_rounds(data: bytes) -> None:
    """Refuse what would take too long to decrypt.

    Raises:
        StoreError: it asks for too many rounds, or is not DER (or BER) at all.
    """
    _Walk(data).run()


class _Walk:
    """Goes through everything that is not encrypted, and looks at numbers that stand behind a salt."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST_ELEMENTS
        # Of all that is encrypted: each part of a store asks for its own.
        self._rounds = 0
        self._steps = 0

    def run(self) -> None:
        self._level(0, len(self._data), 0)

    def _level(self, at: int, stop: int, depth: int, *, open_end: bool = False) -> int:
        """One row of elements; where it ends."""
        if depth > _MOST_DEPTH:
            raise StoreError(f"it is nested more than {_MOST_DEPTH} times at byte {at}")
        salted = False
        numbers: list[int] = []
        while at < stop:
            if open_end and self._data[at : at + 2] == b"\0\0":
                break
            self._left -= 1
            if self._left < 0:
                raise StoreError(f"it has more than {_MOST_ELEMENTS} elements")
            element = element_at(self._data, at, stop)
            tag, start, end = element
            if tag == INTEGER and salted:
                if end - start <= 8:  # a longer one is no count
                    numbers.append(int.from_bytes(self._data[start:end], "big"))
            elif numbers:
                salted = False
            if tag in (OCTET_STRING, _CONSTRUCTED_STRING):
                salted = True
            at = self._inside(element, stop, depth)
        else:
            if open_end:
                raise StoreError(f"it is cut at byte {at}")
        self._check(numbers)
        return at

    def _inside(self, element: Element, stop: int, depth: int) -> int:
        """What is inside of an element; where the next one begins."""
        tag, start, end = element
        if end < 0:
            return self._level(start, stop, depth + 1, open_end=True) + 2
        if tag & _CONSTRUCTED:
            self._level(start, end, depth + 1)
        elif tag == OCTET_STRING and end - start > 2 and self._data[start] == SEQUENCE:
            # A structure in a string, or bytes that look like the beginning of one.
            inner = element_at_or_none(self._data, start, end)
            if inner is not None:
                self._level(start, end, depth + 1)
        return end

    def _check(self, numbers: list[int]) -> None:
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


def element_at_or_none(data: bytes, start: int, end: int) -> Element | None:
    """The element that fills a place to its end; None where it holds something else."""
    try:
        element = element_at(data, start, end)
    except StoreError:
        return None
    return element if element.end in (end, -1) else None
