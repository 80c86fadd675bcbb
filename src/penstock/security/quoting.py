# SPDX-License-Identifier: Apache-2.0
"""Texts and errors of others, as they may stand in an error of ours: bounded, printable, without secrets."""

from __future__ import annotations

import traceback
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
        secrets: values that must not be shown, wherever they turn up.
    """
    redactor = Redactor({secret: HIDDEN for secret in secrets if secret})
    most = _MOST_READ + redactor.longest
    shown = redactor(text[:most])
    if len(text) > most:  # its end may be the half of a secret
        shown = shown[: max(0, len(shown) - redactor.longest)]
    shown = escaped(shown.strip())
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}..."


def told(error: BaseException) -> str:
    """An exception of somebody else's code: its type, and where it was raised.

    It stands in for the exception itself. Its text is not shown, nor its chain: nobody can tell what they hold. The
    text of an HTTP library, for instance, quotes the header that it refuses, and that is the token.
    """
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{name} (raised in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})" if frames else name
    )
