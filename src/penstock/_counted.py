# SPDX-License-Identifier: Apache-2.0
"""Numbers with their nouns, for texts that people read."""

from __future__ import annotations


def counted(number: int, noun: str, several: str | None = None) -> str:
    """A number of things: 1 record, 2,000 records, 3 batches.

    Args:
        number: how many.
        noun: the word for one of them.
        several: the word for more, where it is not the usual one.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {several or noun + ('es' if noun.endswith('ch') else 's')}"
