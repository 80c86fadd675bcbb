# SPDX-License-Identifier: Apache-2.0
"""Values that stand elsewhere: `${env:NAME}`, `${file:PATH}` and the like in the text of an option.

| text | stands for |
|---|---|
| `${env:NAME}` | an environment variable |
| `${file:PATH}` | what is in a file, without the line end at its end |
| `${file:PATH:KEY}` | a property of a properties file |
| `${directory:PATH:NAME}` | the file NAME of a directory, as Kafka's DirectoryConfigProvider has it |
| `${keystore:PATH:ALIAS}` | an entry of a PKCS#12 key store, as `keytool -importpass` makes it |
| `$${` | a plain `${` |

Rules:
1. A reference is looked up where a client is made, and is handed on as it was written until then. A secret is looked up
   again each time it is used (see `Password`), so that it can be replaced under a running client.
2. No error shows what a reference stands for.
3. What is looked up is not searched for references.
4. In sasl.jaas.config, which has quotes of its own, and in a URL, a value is written so that it is read back as it was.
   A reference that is the whole text stands for the whole text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.config.files import UnreadableError, read_file
from penstock.config.properties import parse_properties
from penstock.errors import ConfigError

MARK: Final = "${"
# A secret, a key or a chain of certificates is far smaller; what is larger was named by mistake.
MAX_FILE_BYTES: Final = 1024 * 1024

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?P<source>[A-Za-z]+):(?P<rest>[^}]*)\}|\$\{")
_KNOWN: Final = (
    "${env:NAME}, ${file:PATH}, ${file:PATH:KEY}, ${directory:PATH:NAME} and ${keystore:PATH:ALIAS}"
)
# The password of key stores; the second names a file that has it.
_OF_KEY_STORES: Final = "PENSTOCK_KEYSTORE_PASSWORD"
_FILE_OF_IT: Final = "PENSTOCK_KEYSTORE_PASSWORD_FILE"


def has_reference(value: object) -> bool:
    """Whether a value is a text that is not to be taken as it is written."""
    return isinstance(value, str) and MARK in value


def look_up(text: str, option: str) -> str:
    """Give the text with what its references stand for.

    Args:
        text: the value of an option, as it was written.
        option: its dotted name.

    Raises:
        ConfigError: a reference is malformed, or there is nothing where it points to.
    """

    def value_of(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return MARK
        value = _value(found, option)
        if option not in _WRITE or found[0] == text.strip():
            return value
        return _WRITE[option](value, text[: found.start()])

    return _REFERENCE.sub(value_of, text)


def _value(found: re.Match[str], option: str) -> str:
    source, rest = found["source"], found["rest"]
    read = _SOURCES.get(source)
    if read is None:
        # What stands there may be part of a password: it is not shown.
        raise ConfigError(
            f"{option} has a ${{ that begins no reference; there are {_KNOWN}, and $${{ is a plain ${{",
            option,
        )
    try:
        return read(rest)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}", option) from None


def _environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"the environment variable {name} is not set in this process")
    return value


def _file(rest: str) -> str:
    path, key = _split(rest)
    text = _text_of(path)
    if key is None:
        return text.removesuffix("\n").removesuffix("\r")
    for found in parse_properties(text, repr(path)):
        if found.name == key:
            return found.value
    raise ConfigError(f"the properties file {path!r} has no {key!r}")


def _directory(rest: str) -> str:
    path, name = _split(rest)
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise ConfigError(f"${{directory:PATH:NAME}} needs the name of one file; it has {name!r}")
    return _text_of(str(Path(path) / name)).removesuffix("\n").removesuffix("\r")


def _key_store(rest: str) -> str:
    path, alias = _split(rest)
    if not alias:
        raise ConfigError("${keystore:PATH:ALIAS} needs the alias of an entry")
    from penstock.security.key_store import read_secret
    from penstock.security.tls.material import StoreError

    content, password = _content_of(path), _key_store_password()
    try:
        return read_secret(content, alias, password)
    except StoreError as error:
        raise ConfigError(f"the key store {path!r}: {error}") from None


def _key_store_password() -> str:
    password = os.environ.get(_OF_KEY_STORES)
    if password is not None:
        return password
    place = os.environ.get(_FILE_OF_IT)
    if place is None:
        raise ConfigError(
            f"a key store needs its password, in the environment variable {_OF_KEY_STORES}, or in a file that "
            f"{_FILE_OF_IT} names"
        )
    return _text_of(place).removesuffix("\n").removesuffix("\r")


def _split(rest: str) -> tuple[str, str | None]:
    """Cut a path from what follows the last colon; the one after the letter of a drive is none of these."""
    path, colon, key = rest.rpartition(":")
    if not colon or (len(path) == 1 and key[:1] in ("\\", "/")):
        return rest, None
    return path, key


def _content_of(path: str) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except UnreadableError as error:
        raise ConfigError(f"the file {path!r} {error}") from None


def _text_of(path: str) -> str:
    try:
        return _content_of(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"the file {path!r} is not text in UTF-8") from None


_SOURCES: Final[dict[str | None, Callable[[str], str]]] = {
    "env": _environment,
    "file": _file,
    "directory": _directory,
    "keystore": _key_store,
}

_JAAS_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\r": "\\r"}


def _in_jaas(value: str, before: str) -> str:
    """A value as it must be written after that much of a JAAS text."""
    escaped = "".join(_JAAS_ESCAPES.get(character, character) for character in value)
    return escaped if _ends_inside_quotes(before) else f'"{escaped}"'


def _in_url(value: str, _: str) -> str:
    return quote(value, safe="")


# How a value is written inside the text of an option that has a form of its own.
_WRITE: Final[dict[str, Callable[[str, str], str]]] = {"sasl.jaas.config": _in_jaas, "proxy.url": _in_url}


def _ends_inside_quotes(text: str) -> bool:
    inside, skip = "", False
    for character in text:
        if skip:
            skip = False
        elif inside and character == "\\":
            skip = True
        elif inside:
            inside = "" if character == inside else inside
        elif character in "\"'":
            inside = character
    return bool(inside)
