# SPDX-License-Identifier: Apache-2.0
"""One table of a definition: its values by key, each of the type that is wanted, or refused with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from penstock.spark.pipeline.file import Definition, KeyPath, as_text, nearest


class Table:
    """The table at a path of the definition; one that is not there is empty.

    Raises:
        PipelineDefinitionError: by every method that finds a value it cannot take.
    """

    def __init__(self, definition: Definition, path: KeyPath) -> None:
        self._definition = definition
        self._path = path
        found: Any = definition.data
        for key in path:
            found = found[key] if isinstance(key, int) else found.get(key, {})
        if not isinstance(found, Mapping):
            definition.refuse(path, f"must be a table, but is {kind_of(found)}")
        self._values = found

    @property
    def name(self) -> str:
        """The table's name, as its header in the file has it."""
        return ".".join(str(key) for key in self._path)

    def refuse(self, key: str | None, problem: str) -> NoReturn:
        """Say what is wrong with a key, or with the whole table."""
        self._definition.refuse(self._path if key is None else (*self._path, key), problem)

    def refuse_other_keys(self, known: Sequence[str]) -> None:
        """Refuse the first key that is not known: a misspelt one would be ignored in silence."""
        for key in self._values:
            if key not in known:
                hint = nearest(key, known) or f"; there are {', '.join(known)}"
                self.refuse(key, f"there is no such key{hint}")

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def get(self, key: str) -> Any:
        """The value as it is; None when it is not there."""
        return self._values.get(key)

    def below(self, key: str) -> Table:
        """The table that is the value of a key."""
        return Table(self._definition, (*self._path, key))

    def try_text(self, key: str) -> str | None:
        """A string that is not blank; None when it is not there."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.refuse(key, f"must be a string, but is {kind_of(value)}: put it in quotes")
        if not value.strip():
            self.refuse(key, "is empty: give it a value, or take the key out")
        return value

    def text(self, key: str, what: str) -> str:
        """A string that must be there."""
        value = self.try_text(key)
        if value is None:
            self.refuse(key, f"is missing: {what}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A string or a list of strings; empty when it is not there."""
        value = self._values.get(key)
        if not isinstance(value, list):
            text = self.try_text(key)
            return () if text is None else (text,)
        if not value:
            self.refuse(key, "is empty: name at least one column, or take the key out for all of them")
        for position, item in enumerate(value):
            if not isinstance(item, str) or not item.strip():
                self._definition.refuse(
                    (*self._path, key, position), f"must be a SQL expression as a string, but is {item!r}"
                )
        return tuple(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false; as a string too, because a variable gives one."""
        value = self._values.get(key, default)
        if value in ("true", "false"):
            return bool(value == "true")
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, but is {value!r}")
        return value

    def try_number(self, key: str, *, highest: int) -> int | None:
        """A whole number from 0 on; as a string too, because a variable gives one."""
        value = self._values.get(key)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
            self.refuse(key, f"must be a whole number from 0 to {highest}, but is {value!r}")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of a few words."""
        value = self.try_text(key)
        if value is None:
            return default
        if value not in choices:
            words = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
            self.refuse(key, f"{value!r} is not {words}{nearest(value, choices)}")
        return value

    def options(self, key: str) -> Mapping[str, str]:
        """A table of names and plain values.

        `kafka.linger.ms = 5` without quotes is a table in a table to TOML; here it is the name that it looks like.
        """
        flat: dict[str, str] = {}
        for path, value in self._leaves((*self._path, key), self._values.get(key, {})):
            name = ".".join(str(part) for part in path[len(self._path) + 1 :])
            if isinstance(value, list):
                self._definition.refuse(path, "must be a string, a number or true or false, but is an array")
            if name.lower() in {other.lower() for other in flat}:
                self._definition.refuse(path, "is there twice")
            flat[name] = as_text(value)
        return flat

    def refuse_option(self, name: str, problem: str) -> NoReturn:
        """Say what is wrong with one of the options, as `options` named it."""
        path = self.option_path(name)
        if path is not None:
            self._definition.refuse(path, problem)
        self.refuse("options", f"{name} {problem}")

    def option_path(self, name: str) -> KeyPath | None:
        """Where one of the options stands, as `options` named it; case does not matter."""
        for path, _ in self._leaves((*self._path, "options"), self._values.get("options", {})):
            if ".".join(str(part) for part in path[len(self._path) + 1 :]).lower() == name.lower():
                return path
        return None

    def _leaves(self, path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield from self._leaves((*path, key), item)
        elif len(path) == len(self._path) + 1:
            self._definition.refuse(path, f"must be a table of names and values, but is {kind_of(value)}")
        else:
            yield path, value


def read_tables(definition: Definition, name: str) -> list[Table]:
    """The items of an array of tables, `[[steps]]` for example; none when it is not there."""
    items = definition.data.get(name, [])
    if isinstance(items, Mapping):
        definition.refuse((name,), f"is a list: write [[{name}]] with two brackets")
    if not isinstance(items, list):
        definition.refuse((name,), f"must be tables under [[{name}]], but is {kind_of(items)}")
    return [Table(definition, (name, position)) for position in range(len(items))]


def kind_of(value: Any) -> str:
    """A value's type in TOML's words."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        (list, "an array"),
        (Mapping, "a table"),
    )
    return next((words for kind, words in kinds if isinstance(value, kind)), type(value).__name__)
