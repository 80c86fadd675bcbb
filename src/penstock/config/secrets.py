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

# PEM text that everybody may see.
_PUBLIC: Final = frozenset({"ssl.truststore.certificates", "ssl.keystore.certificate.chain", "https.ca.pem"})
_JAAS: Final = "sasl.jaas.config"
# A secret of a login module whose value is no reference.
_JAAS_SECRET: Final = re.compile(r"(?i)(?:password|secret|passphrase|token)\s*=\s*[\"']?(?!\$\{)[^\s\"';]")


def is_secret_option(name: str) -> bool:
    """Whether the value of an option, in any spelling, is a secret or may hold one."""
    key = KEYS.get(try_meaning(name) or "")
    if key is None:
        return is_secret_name(name)
    return key.kind is Kind.PASSWORD and key.name not in _PUBLIC


def given_in_the_clear(options: Mapping[str, object]) -> list[str]:
    """The names of the options whose values show a secret, as they are written."""
    return [name for name, value in options.items() if _is_in_the_clear(name, value)]


def _is_in_the_clear(name: str, value: object) -> bool:
    if not isinstance(value, str) or not value or not is_secret_option(name):
        return False
    meaning = try_meaning(name)
    if meaning == _JAAS:
        return _JAAS_SECRET.search(value) is not None
    if meaning == "proxy.url":
        user, at, _ = value.rpartition("@")
        return bool(at) and ":" in user.partition("://")[2] and "${" not in value
    return "${" not in value.replace("$${", "")
