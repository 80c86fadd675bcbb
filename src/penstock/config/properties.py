# SPDX-License-Identifier: Apache-2.0
r"""Reader of Java's .properties text, the format in which Kafka's own tools keep their configuration.

Rules of the format:
1. A line is blank, a comment (its first visible character is # or !), or a property.
2. A property line that ends in an odd number of backslashes goes on in the next line, whose leading blanks are dropped.
   A comment does not go on.
3. The name ends at the first blank, = or : that no backslash protects. Blanks around that separator do not count.
4. In names and values \t \n \r \f and \uXXXX stand for characters; a backslash before anything else is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ConfigError

_LINE_END = re.compile(
    r"\r\n|\r|\n"
)  # not splitlines(): that would also break lines at characters that Java keeps
_BLANKS = " \t\f"
_NAME = re.compile(rf"(?:\\.|[^\\=:{_BLANKS}])*", re.DOTALL)
_SEPARATOR = re.compile(rf"[{_BLANKS}]*[=:]?[{_BLANKS}]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL)
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


# A configuration has a few hundred lines; what is larger was named by mistake.
MOST_CHARACTERS = 1024 * 1024


class Property(NamedTuple):
    """One property, and the number of the line where it begins."""

    name: str
    value: str
    line: int


def read_properties(path: str) -> str:
    """The text of a properties file. It may be a pipe: shells make one for `--config <(...)`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, too large, JSON, or the path cannot be one.
    """
    with open(
        path, encoding="utf-8-sig", newline=""
    ) as file:  # an editor's byte order mark is no part of a name
        text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    stripped = text.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        raise ValueError("it is JSON; each line must be name=value, for example linger.ms=20")
    return text


def parse_properties(text: str, source: str) -> Iterator[Property]:
    r"""Read the properties in the order of the file; a name that is there twice is given twice.

    Args:
        text: the content of the file.
        source: its name, for errors.

    Raises:
        ConfigError: a malformed \uXXXX escape.
    """
    for number, line in _logical_lines(text):
        name = _NAME.match(line)
        if name is None:  # cannot be: the pattern matches the empty string
            continue
        separator = _SEPARATOR.match(line, name.end())
        start = name.end() if separator is None else separator.end()
        try:
            yield Property(_unescape(name.group()), _unescape(line[start:]), number)
        except ValueError as error:
            raise ConfigError(f"line {number} of {source}: {error}") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = iter(enumerate(_LINE_END.split(text), start=1))
    for number, natural in lines:
        line = natural.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        pieces = [line]
        while _goes_on(pieces[-1]):  # what is left of those before ends in an even number of backslashes
            pieces[-1] = pieces[-1][:-1]
            _, following = next(lines, (0, ""))
            pieces.append(following.lstrip(_BLANKS))
        yield number, "".join(pieces)


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    unescaped = _ESCAPE.sub(_character, text)
    # Java writes a character beyond U+FFFF as two escapes, which mean one character only together.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16")


def _character(escape: re.Match[str]) -> str:
    code = escape.group(1)
    if len(code) > 1:
        return chr(int(code[1:], 16))
    if code == "u":
        raise ValueError("\\u must be followed by four hexadecimal digits")
    return _CHARACTERS.get(code, code)
