# SPDX-License-Identifier: Apache-2.0
"""What identifies the rows of a task, or of a whole batch, so that a replay can be compared with what was written.

A checksum is only comparable with one that was made in the same way, so each carries the number of its method. Where
two were made in different ways, or there is none, the numbers of rows are all that can be compared.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from penstock.sink.fields import as_list, as_number

# The methods, as they are in the log: their numbers never get another meaning.
NO_CHECKSUM: Final = 0
IN_ORDER: Final = (
    1  # of a task's columns, in the order of the rows; what the log has where it names no method
)
SUMMED: Final = (
    2  # the hashes of the rows added up modulo 2**64: independent of order, and can be added over tasks
)

_CHECKSUM_MASK: Final = 2**64 - 1


class Content(NamedTuple):
    """The rows of a task or of a batch, as far as it takes to recognise the same ones."""

    rows: int
    checksum: int = 0
    method: int = NO_CHECKSUM


NO_ROWS: Final = Content(0, 0, SUMMED)


class Comparison(enum.Enum):
    """What a replay turns out to be."""

    SAME = "as many rows with the same checksum"
    SAME_NUMBER = "as many rows, and nothing else to compare"
    OTHER_ROWS = "as many rows with another checksum"
    OTHER_NUMBER = "another number of rows"


def added_up(contents: Iterable[Content]) -> Content:
    """The content of all; without a checksum where one of them has none that can be added."""
    total = NO_ROWS
    for content in contents:
        if content.rows == 0:
            continue
        rows = total.rows + content.rows
        if content.method == SUMMED == total.method:
            total = Content(rows, (total.checksum + content.checksum) & _CHECKSUM_MASK, SUMMED)
        else:
            total = Content(rows)
    return total


def compared(before: Content, now: Content) -> Comparison:
    """How the rows of a replay compare with those that were written."""
    if before.rows != now.rows:
        return Comparison.OTHER_NUMBER
    if before.method != now.method or before.method == NO_CHECKSUM:
        return Comparison.SAME_NUMBER
    return Comparison.SAME if before.checksum == now.checksum else Comparison.OTHER_ROWS


def content_from_json(values: Any) -> Content:
    """Read what a Content is in JSON: a list of its numbers; a later release may have added some.

    Raises:
        ValueError: it is something else.
    """
    rows, checksum, method = as_list(values, "contents")[: len(Content._fields)]
    return Content(
        as_number(rows, "contents", 0),
        as_number(checksum, "contents", 0, _CHECKSUM_MASK),
        as_number(method, "contents", 0),
    )
