# SPDX-License-Identifier: Apache-2.0
"""Which options are secret, and which of them are given in the clear: seen by all who see a command line or a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock._redaction import is_secret_name
from penstock.config.keys import KEYS
from penstock.config.kinds import Kind
from penstock.config.names import try_meaning
from penstock.config.security_keys import SPELLINGS

# PEM text that everybody may see.
_PUBLIC: Final = frozenset({"ssl.truststore.certificates", "ssl.keystore.certificate.chain", "https.ca.pem"})
_JAAS: Final = "sasl.jaas.config"
_PROXY: Final = "proxy.url"
# A secret of a login module.
_JAAS_SECRET: Final = re.compile(
    r"""
    (?:password|secret|passphrase|token|keystore\.key)["']?\s*=\s*
    (?:"(?P<double>(?:\\.|[^"\\])*) | '(?P<single>(?:\\.|[^'\\])*) | (?P<bare>[^\s;"']+))
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# A quoted text, or a comment; a single slash begins one, too.
_JAAS_COMMENT: Final = re.compile(
    r"""(?P<quoted>"(?:\\.|[^"\\\r\n])*"? | '(?:\\.|[^'\\\r\n])*'?) | /\*.*?(?:\*/|\Z) | /[^\r\n]*""",
    re.VERBOSE | re.DOTALL,
)
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{[^}]{0,4096}\}")
# Stands for a reference: what is left is seen by all.
_ELSEWHERE: Final = "\0"


def is_secret_option(name: str) -> bool:
    """Whether the value of an option, in any spelling, is a secret or may hold one."""
    key = KEYS.get(try_meaning(name) or "")
    if key is None:
        return is_secret_name(name)
    return key.kind is Kind.PASSWORD and key.name not in _PUBLIC


def given_in_the_clear(options: Mapping[str, object]) -> list[str]:
    """The names of the options whose values show a secret, as they are written."""
    return [name for name, value in options.items() if _is_in_the_clear(name, value)]


def secret_names() -> list[str]:
    """The dotted names of all options whose values are secrets or may hold one, also those of other clients."""
    return [name for name in (*KEYS, *SPELLINGS) if is_secret_option(name)]


def _is_in_the_clear(name: str, value: object) -> bool:
    if not isinstance(value, str) or not is_secret_option(name):
        return False
    seen = _REFERENCE.sub(lambda found: "$" if found[0] == "$${" else _ELSEWHERE, value)
    meaning = try_meaning(name)
    if meaning == _JAAS:
        # With its comments as well: they are seen by all.
        return _shows_secret(seen) or _shows_secret(_JAAS_COMMENT.sub(_without_comment, seen))
    if meaning == _PROXY:
        identity, _, _ = (seen.partition("://")[2] or seen).rpartition("@")
        return _has_more(identity.partition(":")[2])
    return _has_more(seen)


def _shows_secret(jaas: str) -> bool:
    return any(_has_more(found[found.lastgroup or 0]) for found in _JAAS_SECRET.finditer(jaas))


def _without_comment(found: re.Match[str]) -> str:
    return found["quoted"] or " "


def _has_more(text: str) -> bool:
    """Whether there is anything but references."""
    return bool(text.replace(_ELSEWHERE, "").strip())
