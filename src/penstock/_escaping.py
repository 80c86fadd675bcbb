# SPDX-License-Identifier: Apache-2.0
"""Text of others on a terminal or in a log file: shown as it is, as far as it can do no harm there.

A sink's name, a host or a topic may hold anything that somebody wrote to a topic: escape sequences that move the
cursor and repaint what stands above, line breaks that begin lines of their own, marks that turn the direction of
writing, halves of surrogate pairs on which printing itself fails.
"""

from __future__ import annotations


def escaped(text: str) -> str:
    """The text with everything that does not print as one visible character, or a blank, written as in `repr`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
