# SPDX-License-Identifier: Apache-2.0
"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things: 1 record, 2,000 records."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
