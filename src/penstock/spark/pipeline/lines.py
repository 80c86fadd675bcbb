# SPDX-License-Identifier: Apache-2.0
"""Where each key of a TOML text stands: tomllib gives values without their lines, and an error should name one.

The text has been read by tomllib before, so it is valid; this scanner only has to find its way through it. It knows
tables, arrays of tables, dotted and quoted keys, all four kinds of strings, arrays and inline tables.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]  # ("steps", 1, "sql"): the key sql of the second of [[steps]]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^\s,\]\}#]+(?: [0-9:.Z+-]+)?")  # a date and a time may stand apart
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\]|\\.)*"'),
    re.compile(r"'[^']*'"),
)
_BLANKS = re.compile(r"[ \t]+")
_GAPS = re.compile(r"(?:\s+|#[^\n]*)+")


def find_lines(text: str) -> dict[Path, int]:
    """The line, counted from 1, of every table, key and array item of a valid TOML text."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._items: dict[Path, int] = {}  # of each array of tables: how many there are by now

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while not self._skip(_GAPS):
            if self._here("["):
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    # ---- tables and keys

    def _header(self) -> Path:
        is_array = self._take("[[")
        if not is_array:
            self._take("[")
        line = self._line()
        path = self._within_arrays(self._dotted_key())
        self._take("]]" if is_array else "]")
        if is_array:
            item = self._items.get(path, 0)
            self._items[path] = item + 1
            self._note(path, line)
            path = (*path, item)
        self._note(path, line)
        return path

    def _within_arrays(self, keys: Path) -> Path:
        """A header below an array of tables means the array's last item."""
        path: Path = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            if position < len(keys) - 1 and path in self._items:
                path = (*path, self._items[path] - 1)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._dotted_key())
        for end in range(len(table) + 1, len(path) + 1):
            self._note(path[:end], line)
        self._take("=")
        self._value(path)

    def _dotted_key(self) -> Path:
        keys = [self._key()]
        while self._take("."):
            keys.append(self._key())
        return tuple(keys)

    def _key(self) -> str:
        self._skip(_BLANKS)
        quoted = self._match(_STRINGS[2]) or self._match(_STRINGS[3])
        if quoted:
            key: str = tomllib.loads(f"key = {quoted}")["key"]
            return key
        return self._match(_BARE_KEY)

    # ---- values

    def _value(self, path: Path) -> None:
        self._skip(_BLANKS)
        if self._take("["):
            self._array(path)
        elif self._take("{"):
            self._inline_table(path)
        elif not any(self._match(pattern) for pattern in _STRINGS):
            self._match(_SCALAR)

    def _array(self, path: Path) -> None:
        item = 0
        self._skip(_GAPS)
        while not self._take("]"):
            self._note((*path, item), self._line())
            self._value((*path, item))
            item += 1
            self._skip(_GAPS)
            self._take(",")
            self._skip(_GAPS)

    def _inline_table(self, path: Path) -> None:
        self._skip(_GAPS)
        while not self._take("}"):
            self._pair(path)
            self._skip(_GAPS)
            self._take(",")
            self._skip(_GAPS)

    # ---- the text

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _here(self, mark: str) -> bool:
        return self._text.startswith(mark, self._at)

    def _take(self, mark: str) -> bool:
        """Go behind the mark, if it comes next."""
        self._skip(_BLANKS)
        if not self._here(mark):
            return False
        self._at += len(mark)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Go behind what needs no attention; whether that was the end of the text."""
        self._match(pattern)
        return self._at >= len(self._text)
