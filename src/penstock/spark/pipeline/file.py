# SPDX-License-Identifier: Apache-2.0
"""A pipeline's definition as it was written: its values with variables filled in, and the line of each.

It may be a TOML file or a dict with the same keys; a dict has no lines, and errors then name the key alone.

Variables: `${name}` in any string stands for `--var name=value`, else for the default in [variables]; `${env:NAME}`
for an environment variable and `${file:PATH}` for the content of a file, which keeps passwords out of definitions;
`$${` is a plain `${`. In the secret options of the sink (`kafka.sasl.password`) the last three stay as they are: they
are looked up by each client, on the driver and in the tasks, so that no secret is part of what Spark sends and keeps.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from penstock._redaction import HIDDEN, Redactor, is_secret_name
from penstock.config.references import look_up
from penstock.config.secrets import is_secret_option
from penstock.errors import ConfigError, PipelineDefinitionError, PipelineError

_VARIABLE = re.compile(r"\$?\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"(?:env:)?[A-Za-z_][A-Za-z0-9_]*")
# What stands for a value that is kept elsewhere; `penstock.config.references` looks it up.
_IN_FILES = ("file:", "directory:", "keystore:")
_ELSEWHERE = ("env:", *_IN_FILES)
# A variable with the letters and digits that touch it. It begins with the first of them: to try each takes the square.
_RUN = re.compile(r"(?<!\w)(?:\w|\$?\$\{[^}]*\})*\$\{[^}]*\}(?:\w|\$?\$\{[^}]*\})*")
_KAFKA = "kafka."
_OPTION_TABLES = ("options", "settings")
_TOML_PLACE = re.compile(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", re.DOTALL)

KeyPath = tuple[str | int, ...]  # ("steps", 1, "sql"): the key sql of the second of [[steps]]

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


@dataclass(frozen=True)
class Definition:
    """The values of a definition, and where they stand."""

    data: Mapping[str, Any] = field(repr=False)  # may hold secrets
    file: str | None  # as the user named it; None for a dict
    folder: Path  # where modules of Python steps are looked for first
    lines: Mapping[KeyPath, int] = field(repr=False)
    hide: Redactor = field(default_factory=Redactor, repr=False)  # makes a text one that may be printed

    def refuse(self, path: KeyPath, problem: str) -> NoReturn:
        """Say what is wrong with the value at the path, which begins with its table.

        Raises:
            PipelineDefinitionError: always.
        """
        raise self.refusal(path, problem)

    def refusal(self, path: KeyPath, problem: str) -> PipelineDefinitionError:
        """The same, to be raised with a cause."""
        return PipelineDefinitionError(self.describe(path, problem), name_of(path))

    def cause(self, error: BaseException) -> BaseException:
        """The error as the cause of another; if it shows a secret, its redacted text in its place.

        A traceback shows its own causes and notes as well.
        """
        if all(self.hide(words) == words for words in _words_of(error)):
            return error
        return PipelineError(f"{type(error).__name__}: {self.hide(str(error))}")

    def describe(self, path: KeyPath, problem: str) -> str:
        """`orders.toml:12: [sink] topic: ` and the problem, without secrets."""
        return f"{self.place(path)}{name_of(path)}: {self.hide(problem)}"

    def place(self, path: KeyPath) -> str:
        """`orders.toml:12: `, with the line of the nearest part of the path that has one."""
        if self.file is None:
            return ""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return f"{self.file}:{self.lines[path[:end]]}: "
        return f"{self.file}: "


def _words_of(error: BaseException) -> Iterator[str]:
    """All that a traceback says of an error, but for the lines of code."""
    told: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in told:
            continue
        told.add(id(each))
        yield str(each)
        yield from map(str, getattr(each, "__notes__", ()))
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def name_of(path: KeyPath) -> str:
    """The path in TOML's words: `[sink] topic`, `[[steps]] 2, sql`."""
    table, *rest = path
    if rest and isinstance(rest[0], int):
        words = f"[[{table}]] {rest[0] + 1}"
        return f"{words}, {_dotted(rest[1:])}" if len(rest) > 1 else words
    return f"[{table}] {_dotted(rest)}" if rest else f"[{table}]"


def _dotted(keys: Iterable[str | int]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean topic?`, or nothing where no known name looks like this one."""
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""


# ---- reading


def read_definition(
    source: str | os.PathLike[str] | Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> Definition:
    """Read a file, or take a dict, and fill in the variables.

    Raises:
        PipelineDefinitionError: the file cannot be read, is not TOML, or a variable has no value.
    """
    if isinstance(source, Mapping):
        raw = Definition(data=source, file=None, folder=Path.cwd(), lines={})
    else:
        raw = _read_file(source)
    return _fill_in(raw, variables or {})


def _read_file(source: str | os.PathLike[str]) -> Definition:
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PipelineDefinitionError(f"cannot read the pipeline file {str(path)!r}: {reason}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineDefinitionError(_not_toml(str(path), text, error)) from error
    return Definition(data=data, file=str(path), folder=path.resolve().parent, lines=find_lines(text))


def _not_toml(file: str, text: str, error: tomllib.TOMLDecodeError) -> str:
    found = _TOML_PLACE.match(str(error))
    if found is None:
        return f"{file}: not TOML: {error}"
    line = found[2] or text.rstrip("\n").count("\n") + 1
    hint = " (a text needs quotes)" if found[1] == "Invalid value" else ""
    return f"{file}:{line}: not TOML: {found[1][:1].lower()}{found[1][1:]}{hint}"


# ---- variables


def _fill_in(raw: Definition, given: Mapping[str, str]) -> Definition:
    defaults = raw.data.get("variables", {})
    if not isinstance(defaults, Mapping):
        raw.refuse(("variables",), 'must be a table of defaults, like day = "2026-01-31"')
    values: dict[str, str] = {}
    for name, default in defaults.items():
        if not _VARIABLE_NAME.fullmatch(name) or name.startswith("env:"):
            raw.refuse(("variables", name), "a variable's name has letters, digits and _ only")
        if isinstance(default, list | Mapping):
            raw.refuse(("variables", name), "must be a string, a number or true or false")
        values[name] = as_text(default)
    filler = _Filler(raw, {**values, **given})
    data = {name: filler.fill((name,), value) for name, value in raw.data.items() if name != "variables"}
    unknown = [name for name in given if name not in values and name not in filler.used]
    if unknown:
        where = "the definition" if raw.file is None else raw.file
        raise PipelineDefinitionError(
            f"{where}: --var {unknown[0]}=...: nothing in it is called ${{{unknown[0]}}}"
            f"{nearest(unknown[0], {*values, *filler.used})}"
        )
    hide = Redactor(filler.secrets, filler.whole)
    return Definition(data=data, file=raw.file, folder=raw.folder, lines=raw.lines, hide=hide)


class _Filler:
    """Puts values in the place of variables, and remembers which of them must not be shown.

    Attributes:
        used: the variables that stand somewhere.
        secrets: values that must not be shown, and what is shown in their place.
        whole: texts that hold such a value, and the same with the variables' names.
    """

    def __init__(self, raw: Definition, values: Mapping[str, str]) -> None:
        self._raw = raw
        self._values = values
        self.used: set[str] = set()
        self.secrets: dict[str, str] = {}
        self.whole: dict[str, str] = {}

    def fill(self, path: KeyPath, value: Any) -> Any:
        if isinstance(value, str):
            return self._fill_text(path, value)
        if isinstance(value, Mapping):
            return {key: self.fill((*path, key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill((*path, position), item) for position, item in enumerate(value)]
        return value

    def _fill_text(self, path: KeyPath, text: str) -> str:
        if _is_sink_secret(path):
            filled = _VARIABLE.sub(lambda found: self._keep_reference(path, found), text)
            if filled and "${" not in filled:
                self.secrets.setdefault(filled, HIDDEN)
            return filled
        filled = _VARIABLE.sub(lambda found: self._replace(path, found), text)
        shown = _VARIABLE.sub(lambda found: self._shown(found, self._replace(path, found)), text)
        if shown != filled:
            self.whole[filled] = self.whole[filled.strip()] = shown
            self._remember_runs(path, text)
        if len(path) > 2 and path[1] in _OPTION_TABLES and is_secret_name(_dotted(path[2:])):
            self.secrets.setdefault(filled, HIDDEN if shown == filled else shown)
        return filled

    def _shown(self, found: re.Match[str], value: str) -> str:
        """What stands for a variable where it is printed."""
        if found[0].startswith("$$"):
            return value
        is_secret = found[1].startswith(_ELSEWHERE) or is_secret_name(found[1])
        return found[0] if is_secret else value

    def _remember_runs(self, path: KeyPath, text: str) -> None:
        """Remember each secret value, and what it becomes where letters or digits stand directly beside it."""
        for run in _RUN.findall(text):
            filled = _VARIABLE.sub(lambda found: self._replace(path, found), run)
            shown = _VARIABLE.sub(lambda found: self._shown(found, self._replace(path, found)), run)
            if shown != filled:
                self.secrets.setdefault(filled, shown)
        for found in _VARIABLE.finditer(text):
            value = self._replace(path, found)
            shown = self._shown(found, value)
            if shown != value:
                self.secrets.setdefault(value, shown)

    def _keep_reference(self, path: KeyPath, found: re.Match[str]) -> str:
        """Fill in a variable where a client will look up what else there is."""
        if found[0].startswith("$$") or found[1].startswith(_ELSEWHERE):
            return found[0]
        value = self._replace(path, found)
        if is_secret_name(found[1]):
            self.secrets.setdefault(value, found[0])
        return value.replace("${", "$${")

    def _replace(self, path: KeyPath, found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        name = found[1]
        if name.startswith(_IN_FILES):
            return self._file(path, found[0])
        if not _VARIABLE_NAME.fullmatch(name):
            self._raw.refuse(path, f"{found[0]} is no variable: write ${{name}}, or $${{ for a plain ${{")
        self.used.add(name)
        if name.startswith("env:"):
            return self._environment(path, name.removeprefix("env:"))
        if name not in self._values:
            self._raw.refuse(
                path,
                f"${{{name}}} has no value: give it with --var {name}=..., or a default in [variables]"
                f"{nearest(name, self._values)}",
            )
        return self._values[name]

    def _file(self, path: KeyPath, reference: str) -> str:
        try:
            return look_up(reference, reference)
        except ConfigError as error:
            self._raw.refuse(path, str(error))

    def _environment(self, path: KeyPath, name: str) -> str:
        value = os.environ.get(name)
        if value is None:
            self._raw.refuse(path, f"the environment variable {name} is not set")
        return value


def _is_sink_secret(path: KeyPath) -> bool:
    name = _dotted(path[2:])
    return (
        path[:2] == ("sink", "options")
        and name.lower().startswith(_KAFKA)
        and is_secret_option(name[len(_KAFKA) :].lower())
    )


def as_text(value: Any) -> str:
    """A TOML value as Spark's options want it: true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- lines


def find_lines(text: str) -> dict[KeyPath, int]:
    """The line, counted from 1, of every table, key and array item of a valid TOML text.

    tomllib gives values without their lines, and an error should name one. The text has been read by tomllib before, so
    it is valid; the scanner only has to find its way through it. It knows tables, arrays of tables, dotted and quoted
    keys, all four kinds of strings, arrays and inline tables.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._items: dict[KeyPath, int] = {}  # of each array of tables: how many there are by now

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while not self._skip(_GAPS):
            if self._here("["):
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    # ---- tables and keys

    def _header(self) -> KeyPath:
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

    def _within_arrays(self, keys: KeyPath) -> KeyPath:
        """A header below an array of tables means the array's last item."""
        path: KeyPath = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            if position < len(keys) - 1 and path in self._items:
                path = (*path, self._items[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = (*table, *self._dotted_key())
        for end in range(len(table) + 1, len(path) + 1):
            self._note(path[:end], line)
        self._take("=")
        self._value(path)

    def _dotted_key(self) -> KeyPath:
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

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANKS)
        if self._take("["):
            self._array(path)
        elif self._take("{"):
            self._inline_table(path)
        elif not any(self._match(pattern) for pattern in _STRINGS):
            self._match(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        item = 0
        self._skip(_GAPS)
        while not self._take("]"):
            self._note((*path, item), self._line())
            self._value((*path, item))
            item += 1
            self._skip(_GAPS)
            self._take(",")
            self._skip(_GAPS)

    def _inline_table(self, path: KeyPath) -> None:
        self._skip(_GAPS)
        while not self._take("}"):
            self._pair(path)
            self._skip(_GAPS)
            self._take(",")
            self._skip(_GAPS)

    # ---- the text

    def _note(self, path: KeyPath, line: int) -> None:
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
