# SPDX-License-Identifier: Apache-2.0
"""Texts of others, as they may stand in an error of ours: bounded, printable, without secrets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock._escaping import escaped
from penstock._redaction import HIDDEN, Redactor

MOST_CHARACTERS: Final = 400
# What is looked at: it takes a time of its own, and some of it is taken by the I/O thread.
_MOST_READ: Final = 2_000


def quoted(text: str, secrets: Iterable[str] = ()) -> str:
    """A text that a broker, a provider of tokens or a library wrote.

    Args:
        text: what was written.
        secrets: values that must not be shown, wherever they occur.
    """
    redactor = Redactor({secret: HIDDEN for secret in secrets if _may_be_in(text, secret)})
    most = _MOST_READ + redactor.longest
    shown = redactor(text[:most])
    if len(text) > most:  # its end may be the half of a secret
        shown = shown[: max(0, len(shown) - redactor.longest)]
    shown = escaped(shown.strip())
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}..."


def _may_be_in(text: str, secret: str) -> bool:
    # To look for half a megabyte takes a second. What has blanks or lines is looked for in other forms as well.
    return len(secret) <= len(text) or any(map(str.isspace, secret))
