# SPDX-License-Identifier: Apache-2.0
"""What others wrote or raised can be printed."""

from __future__ import annotations

import pytest

from penstock._escaping import escaped, told

SECRET = "hunter2-of-the-pod"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("Bestellungen für Köln", "Bestellungen für Köln"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x9b", r"\x1b[2J\x9b"),
        ("\u202eabc\u200b\ufeff", r"\u202eabc\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
        ("\x00\x7f", r"\x00\x7f"),
    ],
)
def test_only_what_prints_is_left_as_it_is(text: str, shown: str) -> None:
    assert escaped(text) == shown
    escaped(text).encode()


def test_an_error_of_others_is_told_without_its_text() -> None:
    try:
        raise ValueError(f"the passphrase {SECRET} is too short")
    except ValueError as error:
        shown = told(error)
    assert SECRET not in shown
    assert shown.startswith("ValueError (raised in test_an_error_of_others_is_told_without_its_text, ")
    assert told(KeyError(SECRET)) == "KeyError"
