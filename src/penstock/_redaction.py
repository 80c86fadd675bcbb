# SPDX-License-Identifier: Apache-2.0
"""Keeps secrets out of what is printed. Whatever shows options, definitions or errors about them goes through here.

Three things are recognised:
1. The name of an option: password, secret, token, credential, account key and their like. Its value is not shown.
2. A value that is known to be secret, an environment variable for instance. It is not shown wherever it occurs, also
   as it is written in a URL, in JSON or in a text literal, and line by line.
3. A pair inside a text (`password=x` in a URL, `password 'x'` in SQL, `"password": "x"` in JSON), the password of
   `scheme://user:password@host` and of Oracle's `user/password@host`, of `IDENTIFIED BY`, and a bearer's token.

When in doubt it is hidden: a name too many that is not shown does no harm.

Texts of peers come here, so every pattern takes time in proportion to the text: what may be repeated without an end is
looked at once only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

HIDDEN: Final = "(hidden)"

# In any place of a name, however its words are joined.
_SECRET_PARTS: Final = (
    *("password", "passwd", "passphrase", "passcode", "secret", "token", "credential", "jaas", "userinfo"),
    *("proxyurl", "socks5proxy"),
    *(
        "apikey",
        "accesskey",
        "accountkey",
        "privatekey",
        "sharedkey",
        "masterkey",
        "storagekey",
        "signature",
        "bearer",
    ),
)
# As a word of its own.
_SECRET_WORDS: Final = frozenset(
    {"pass", "pwd", "pw", "sas", "sig", "auth", "authorization", "pat", "cookie", "otp", "hmac", "psk"}
)
_KEY_WORDS: Final = frozenset({"key", "keys"})
# Beside a key these say what it is: the key of a record, a table or a class, which is no secret.
_HARMLESS_BESIDE_KEY: Final = frozenset(
    {
        *(
            "serializer",
            "deserializer",
            "converter",
            "column",
            "columns",
            "field",
            "fields",
            "format",
            "schema",
            "type",
        ),
        *(
            "name",
            "names",
            "ignore",
            "primary",
            "partition",
            "partitioning",
            "sort",
            "row",
            "routing",
            "foreign",
        ),
        *("group", "merge", "join", "message", "record", "business", "natural"),
    }
)
# Beside a key these say that it opens something.
_SECRET_BESIDE_KEY: Final = frozenset(
    {
        *(
            "api",
            "access",
            "account",
            "private",
            "secret",
            "shared",
            "master",
            "storage",
            "encryption",
            "signing",
        ),
        *(
            "client",
            "service",
            "subscription",
            "ssh",
            "auth",
            "sas",
            "ssl",
            "tls",
            "aes",
            "rsa",
            "license",
            "admin",
        ),
    }
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_PAIR: Final = re.compile(
    r"""
    (?<![\w.\-])(?P<name>[\w.\-]+)
    (?:
        (?P<between>["'`\])]{0,2}(?:\s*(?:=>|:=|==?|:|(?<=["'`]),|(?<=["'`]\s),)\s*|\s+))
        (?P<quote>["'])(?P<quoted>(?:\\.|(?P=quote){2}|(?!(?P=quote)).)*)(?P=quote)?
      | (?P<equals>\s*=\s*)(?P<bare>(?:\$\{[^}]{0,400}\}|[^\s"'&;])+)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")
# Without the scheme: to look for it takes a time of its own at each letter. A password may hold what should have been
# written as %2F; a port before a path is none.
_URL_PASSWORD: Final = re.compile(
    r"(?P<before>://[^\s/@:]*:)(?!\$\{[^}]{0,400}\}@)(?:[^\s/]+(?=@)|(?!\d{1,5}[/,])\S{1,512}(?=@))"
)
# Where a secret follows words that are no name of it.
_AFTER_WORDS: Final = re.compile(
    r"""
    (?P<before>\bjdbc:oracle:\w{1,20}:[^\s/@"']{1,128}/)(?!\$\{[^}]{0,400}\}@)[^\s]{1,512}(?=@)
  | (?P<by>\bidentified\s+(?:with\s+[\w.'"`]{1,128}\s+)?by\s+(?:(?:password|values)\s+)?)
    (?:'(?:\\.|''|[^'\\])*'?|"(?:\\.|""|[^"\\])*"?|[^\s'";]+)
  | (?P<bearer>\b(?:bearer|authorization["']?\s*[:=]\s*["']?basic)\s+)[\w.~+/=\-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)

# Values that are everywhere: hiding them would hide the text, and they tell nobody anything.
_COMMON: Final = frozenset({"", "true", "false", "none", "null", "yes", "no", "on", "off"})
# Shorter ones are looked for as whole words only: three letters are part of many others.
_LONG_ENOUGH_ANYWHERE: Final = 6


def is_secret_name(name: str) -> bool:
    """Whether the value of an option with this name must not be shown."""
    return _is_secret(name, key_alone=True)


def _is_secret(name: str, *, key_alone: bool) -> bool:
    if _has_secret_part(name):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    if _SECRET_WORDS.intersection(words):
        return True
    if not _KEY_WORDS.intersection(words) or len(words) == 1:
        return False
    if _SECRET_BESIDE_KEY.intersection(words):
        return True
    return key_alone and not _HARMLESS_BESIDE_KEY.intersection(words)


def _has_secret_part(name: str) -> bool:
    joined = re.sub(r"[^a-z0-9]", "", name.lower())
    return any(part in joined for part in _SECRET_PARTS)


def shown_option(name: str, value: Any) -> str:
    """An option's value as it may be printed."""
    return HIDDEN if is_secret_name(name) else redacted(str(value))


def redacted(text: str) -> str:
    """A text without the secrets that it names as such."""
    text = _AFTER_WORDS.sub(_without_rest, text)
    return _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", _PAIR.sub(_without_value, text))


def _without_rest(found: re.Match[str]) -> str:
    return f"{found['before'] or found['by'] or found['bearer']}{HIDDEN}"


def _without_value(found: re.Match[str]) -> str:
    name, equals = found["name"], found["equals"]
    # `a.account_key = b.account_key` joins tables; without blanks, or with a plainer name, it is more likely a secret.
    is_secret = _has_secret_part(name) if equals not in (None, "=") else _is_secret(name, key_alone=False)
    if not is_secret:
        # What follows the name may itself be a text with pairs: a URL in an option, for instance.
        inner = found["quoted"]
        if inner is None or not inner:
            return found[0]
        return found[0].replace(inner, _PAIR.sub(_without_value, inner), 1)
    if _VARIABLE.fullmatch(found["quoted"] or found["bare"] or ""):
        return found[0]  # only where the secret is
    if found["quoted"] is not None:
        return f"{name}{found['between']}{found['quote']}{HIDDEN}{found['quote']}"
    return f"{name}{equals}{HIDDEN}"


class Redactor:
    """Hides secrets that are known by their values, and those that a text names as such.

    Args:
        secrets: what is shown in the place of each value: HIDDEN, or the name of the variable that it came from.
        whole: texts that are known as a whole, and how they are shown.
    """

    def __init__(
        self, secrets: Mapping[str, str] | None = None, whole: Mapping[str, str] | None = None
    ) -> None:
        self._shown: dict[str, str] = {}
        for value, shown in (secrets or {}).items():
            for form in _forms(value):
                self._shown.setdefault(form, shown)
        self._whole = {text: redacted(shown) for text, shown in (whole or {}).items()}
        # The longest first: one secret may be part of another.
        longest_first = sorted(self._shown, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_pattern_of, longest_first))) if longest_first else None
        # Characters of the longest value: where a text is cut, so many at its end may be part of one.
        self.longest = max(map(len, longest_first), default=0)

    def __call__(self, text: str) -> str:
        """The text as it may be printed."""
        if text in self._whole:
            return self._whole[text]
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._shown[found[0]], text)
        return redacted(text)

    def option(self, name: str, value: str) -> str:
        """An option's value as it may be printed."""
        return HIDDEN if is_secret_name(name) else self(value)


def _forms(value: str) -> set[str]:
    """A value as it may occur in texts: as it is, in a URL, in JSON, in a Python or SQL literal, line by line."""
    forms = {value, value.strip()}
    forms |= {quote(value), quote(value, safe=""), quote_plus(value)}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= {value.replace("'", "''"), value.replace("'", "\\'"), " ".join(value.split())}
    forms |= {line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG_ENOUGH_ANYWHERE}
    return {form for form in forms if form.lower() not in _COMMON}


def _pattern_of(value: str) -> str:
    plain = re.escape(value)
    if len(value) >= _LONG_ENOUGH_ANYWHERE:
        return plain
    return rf"(?<![A-Za-z0-9]){plain}(?![A-Za-z0-9])"
