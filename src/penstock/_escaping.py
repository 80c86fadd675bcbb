# SPDX-License-Identifier: Apache-2.0
"""Texts and errors of others on a terminal or in a log file: shown as far as that can do no harm there.

A sink's name, a host or a topic may hold anything that somebody wrote to a topic: escape sequences that move the
cursor and repaint what stands above, line breaks that begin lines of their own, marks that turn the direction of
writing, halves of surrogate pairs on which printing itself fails.
"""

from __future__ import annotations

import traceback


def escaped(text: str) -> str:
    """The text with everything that does not print as one visible character, or a blank, written as in `repr`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")


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


def with_notes(error: BaseException) -> str:
    """What an error of ours says, and what was noted on it: without a traceback nothing else shows that."""
    return "; ".join(filter(None, (str(error), *map(str, getattr(error, "__notes__", ())))))
