# SPDX-License-Identifier: Apache-2.0
"""Reads JSON that anybody may have written: a mistake in it raises a ValueError that names the field.

The decision topic takes records from everyone who may write to it, and a file may be damaged or of another version. A
field is used only when it has the type that the protocol gives it; nothing is converted, so that "7", 7.0 and true do
not pass for 7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
# Of a value that is shown in an error: it may be a megabyte.
_MAX_SHOWN = 60


class Fields:
    """An object of JSON, whose fields are checked when they are asked for.

    Args:
        values: what was parsed.

    Raises:
        ValueError: it is no object.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Any) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{_shown(values)} where an object is expected")  # noqa: TRY004
        self._values: dict[str, Any] = values

    @classmethod
    def parse(cls, raw: bytes | str) -> Fields:
        """Read the text of an object.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(json.loads(raw))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def has(self, name: str) -> bool:
        """Whether there is such a field."""
        return name in self._values

    def names(self) -> list[str]:
        """The names of all fields, in their order."""
        return list(self._values)

    def value(self, name: str) -> Any:
        """A field of any type; it must be there."""
        if name not in self._values:
            raise ValueError(f"{name} is missing")
        return self._values[name]

    def text(self, name: str) -> str:
        return as_text(self.value(name), name)

    def optional_text(self, name: str) -> str | None:
        found = self.value(name)
        return None if found is None else as_text(found, name)

    def number(self, name: str, smallest: int = _INT64_MIN, largest: int = _INT64_MAX) -> int:
        """A whole number within bounds."""
        return as_number(self.value(name), name, smallest, largest)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; the default where the field is not there."""
        found = self._values.get(name, default)
        if not isinstance(found, bool):
            raise ValueError(f"{name} is {_shown(found)} where true or false is expected")  # noqa: TRY004
        return found

    def array(self, name: str) -> list[Any]:
        """A list; its elements are not checked."""
        return as_list(self.value(name), name)

    def numbers_by_text(self, name: str) -> dict[str, int]:
        """An object whose values are whole numbers, in its order."""
        found = self.value(name)
        if not isinstance(found, Mapping):
            raise ValueError(f"{name} is {_shown(found)} where an object is expected")  # noqa: TRY004
        return {key: as_number(number, name) for key, number in found.items()}


def as_text(value: Any, name: str) -> str:
    """The value, if it is a text.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_shown(value)} where a text is expected")  # noqa: TRY004
    return value


def as_number(value: Any, name: str, smallest: int = _INT64_MIN, largest: int = _INT64_MAX) -> int:
    """The value, if it is a whole number within bounds.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise ValueError(
            f"{name} is {_shown(value)} where a whole number from {smallest} to {largest} is expected"
        )
    return value


def as_list(value: Any, name: str, length: int | None = None) -> list[Any]:
    """The value, if it is a list, of that length where one is given.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, list) or length not in (None, len(value)):
        wanted = "a list" if length is None else f"a list of {length} values"
        raise ValueError(f"{name} is {_shown(value)} where {wanted} is expected")
    return value


def _shown(value: Any) -> str:
    """A value for an error text: short, on one line, and without making a long text of a long value first."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}...")
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)}"
    if isinstance(value, int) and not _INT64_MIN <= value <= _INT64_MAX:
        return "a number of more than 64 bits"
    return repr(value)
