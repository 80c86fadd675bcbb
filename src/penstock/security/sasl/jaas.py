# SPDX-License-Identifier: Apache-2.0
"""Reads `sasl.jaas.config`: one entry of Java's configuration of logins, with Java's rules for quotes and comments.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";

The text may also be a whole file, as JVMs are given it with `-Djava.security.auth.login.config`: its section
KafkaClient counts, and no other.

    KafkaClient {
        org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";
    };

What Java's reader refuses is refused here, and the error says how to write it. An error names the line and the column,
and repeats no word of the text: where words are in the wrong order, any of them may be the password.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

from penstock.errors import ConfigError

_OPTION: Final = "sasl.jaas.config"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
# They look names up in directories that the text names: attacks have been made with them.
_REFUSED_MODULES: Final = frozenset({"LdapLoginModule", "JndiLoginModule"})
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_OCTAL: Final = "01234567"
_MOST_CHARACTERS: Final = 100_000
# The section of a file that is for clients.
_SECTION: Final = "KafkaClient"


class JaasEntry:
    """One login module with its options.

    Attributes:
        module: the class of the module, as it is written.
        options: its options; values may be secrets.
    """

    __slots__ = ("module", "options")

    def __init__(self, module: str, options: dict[str, str]) -> None:
        self.module = module
        self.options = options

    @property
    def kind(self) -> str:
        """The last part of the class: the same however its package was renamed (`kafkashaded.` and the like)."""
        return self.module.rpartition(".")[2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaasEntry) and self.module == other.module and self.options == other.options

    def __repr__(self) -> str:
        return f"<JaasEntry {self.module} with {', '.join(self.options) or 'no options'}>"


def parse_jaas(text: str) -> JaasEntry:
    """Read the one entry, or that of the section KafkaClient.

    Raises:
        ConfigError: the text is not one entry, nor a file with such a section.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"{_OPTION} is longer than {_MOST_CHARACTERS} characters", _OPTION)
    reader = _Tokens(text)
    module = reader.take()
    if module.kind == _END:
        reader.refuse("it is empty", module)
    if module.kind != _WORD or not module.text:
        reader.refuse("it does not begin with the class of a login module", module)
    flag = reader.take()
    if flag.kind == "{":
        return _of_file(reader, module)
    entry = _entry(reader, module, flag)
    rest = reader.take()
    if rest.kind != _END:
        reader.refuse("there is something after the semicolon; one login module is allowed", rest)
    return entry


def _of_file(reader: _Tokens, name: _Token) -> JaasEntry:
    """Read a file, behind the first brace."""
    found: list[JaasEntry] = []
    names: list[str] = []
    while True:
        is_ours = name.text == _SECTION
        if is_ours and _SECTION in names:
            reader.refuse(f"there is a second section {_SECTION}", name)
        names.append(name.text)
        while (module := reader.take()).kind == _WORD:
            entry = _entry(reader, module, reader.take(), checked=is_ours)
            if is_ours and found:
                reader.refuse(f"the section {_SECTION} has a second login module; one is allowed", module)
            if is_ours:
                found.append(entry)
        if module.kind != "}" or (end := reader.take()).kind != ";":
            reader.refuse("a section ends with }; behind its login modules", module)
        name = reader.take()
        if name.kind == _END:
            break
        if name.kind != _WORD or reader.take().kind != "{":
            reader.refuse("a section begins with its name and {", name)
    if not found:
        reader.refuse(f"there is no section {_SECTION} with a login module", end)
    return found[0]


def _entry(reader: _Tokens, module: _Token, flag: _Token, *, checked: bool = True) -> JaasEntry:
    """Read a login module up to its semicolon; `checked`: one that is to be used."""
    if checked and module.text.rpartition(".")[2] in _REFUSED_MODULES:
        reader.refuse(f"the login module {module.text} is not allowed", module)
    if flag.kind != _WORD or flag.text.lower() not in _FLAGS:
        reader.refuse(
            "the class of the login module must be followed by required, requisite, sufficient or optional",
            flag,
        )
    return JaasEntry(module.text, _options(reader))


def _options(reader: _Tokens) -> dict[str, str]:
    options: dict[str, str] = {}
    while True:
        key = reader.take()
        if key.kind == ";":
            return options
        if key.kind == _END:
            hint = " (outside of quotes a / begins a comment)" if reader.slash_comment else ""
            reader.refuse(f"the entry does not end with a semicolon{hint}", key)
        if key.kind != _WORD:
            reader.refuse(
                "the name of an option is expected; a value with characters other than letters, digits, "
                "., -, _ and $ is written in quotes",
                key,
            )
        equals = reader.take()
        if equals.kind != "=":
            reader.refuse("the name of an option must be followed by = and its value", key)
        value = reader.take()
        if value.kind != _WORD:
            hint = "; a value that begins with a digit, - or . is written in quotes" * (value.kind == _NUMBER)
            reader.refuse(f"the option has no value{hint}", value)
        options[key.text] = value.text


# Kinds of tokens; a sign of its own is its kind.
_WORD: Final = "word"
_NUMBER: Final = "number"
_END: Final = "end"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Tokens:
    """Cuts the text as java.io.StreamTokenizer does, set up as Kafka does."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.slash_comment = (
            False  # a single / was met, which is a comment for Java and a surprise for people
        )

    def take(self) -> _Token:
        """Return the next token, and go on behind it."""
        self._skip_blanks_and_comments()
        start = self._at
        if start >= len(self._text):
            return _Token(_END, "", start)
        character = self._text[start]
        if character in "\"'":
            return self._quoted(character)
        if _begins_number(self._text, start):
            self._at = start + 1
            while self._at < len(self._text) and self._text[self._at] in "0123456789.":
                self._at += 1
            return _Token(_NUMBER, "", start)
        if _begins_word(character):
            while self._at < len(self._text) and _continues_word(self._text[self._at]):
                self._at += 1
            return _Token(_WORD, self._text[start : self._at], start)
        self._at += 1
        return _Token(character, character, start)

    def refuse(self, why: str, token: _Token) -> NoReturn:
        """Raise the error, with the place."""
        line = self._text.count("\n", 0, token.at) + 1
        column = token.at - self._text.rfind("\n", 0, token.at)
        raise ConfigError(f"{_OPTION}, line {line}, column {column}: {why}", _OPTION)

    def _skip_blanks_and_comments(self) -> None:
        text = self._text
        while self._at < len(text):
            if text[self._at] <= " ":
                self._at += 1
            elif text.startswith("/*", self._at):
                end = text.find("*/", self._at + 2)
                if end < 0:
                    self.refuse("a comment is not closed", _Token(_END, "", self._at))
                self._at = end + 2
            elif text[self._at] == "/":
                self.slash_comment = self.slash_comment or not text.startswith("//", self._at)
                while self._at < len(text) and text[self._at] not in "\r\n":
                    self._at += 1
            else:
                return

    def _quoted(self, quote: str) -> _Token:
        start = self._at
        self._at += 1
        found: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == quote:
                self._at += 1
                return _Token(_WORD, "".join(found), start)
            if character in "\r\n":
                break
            self._at += 1
            found.append(self._escaped() if character == "\\" else character)
        return self.refuse(
            "the quoted text that begins here is not closed on its line", _Token(_END, "", start)
        )

    def _escaped(self) -> str:
        text = self._text
        if self._at >= len(text):
            return ""
        character = text[self._at]
        self._at += 1
        if character not in _OCTAL:
            return _ESCAPES.get(character, character)
        digits = character
        # Three digits only up to \377.
        while (
            self._at < len(text) and text[self._at] in _OCTAL and len(digits) < (3 if character <= "3" else 2)
        ):
            digits += text[self._at]
            self._at += 1
        return chr(int(digits, 8))


def _begins_word(character: str) -> bool:
    return "a" <= character <= "z" or "A" <= character <= "Z" or character in "_$" or character >= "\xa0"


def _continues_word(character: str) -> bool:
    return _begins_word(character) or character in "0123456789.-"


def _begins_number(text: str, at: int) -> bool:
    character = text[at]
    if "0" <= character <= "9":
        return True
    # Java takes a dot or a minus without a digit for a sign; nothing that is allowed begins with it either way.
    return character in ".-"
