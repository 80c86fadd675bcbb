# SPDX-License-Identifier: Apache-2.0
"""The parts of the matrix find what they are there to find; otherwise a table without failures would mean nothing."""

from __future__ import annotations

import pytest

from brokers.records import Found, Sent, difference, without_repeats

SENT = [Sent(b"k", b"one", (("h", b"x"),), 7), Sent(None, b"two", (), 8)]
FOUND = [Found(b"k", b"one", (("h", b"x"),), 7, 0), Found(None, b"two", (), 8, 1)]


def test_equal_records_do_not_differ() -> None:
    assert difference(SENT, FOUND) is None
    # What a reader cannot show is not compared.
    assert difference(SENT, [Found(b"k", b"one"), Found(None, b"two")]) is None


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (FOUND[:1], "1 records instead of 2"),
        ([*FOUND, FOUND[0]], "3 records instead of 2"),
        (FOUND[::-1], "record 0 of 2 has key None instead of b'k'"),
        ([FOUND[0], Found(None, b"", (), 8)], "record 1 of 2 has value b'' instead of b'two'"),
        ([FOUND[0], Found(b"", b"two", (), 8)], "key b'' instead of None"),
        ([Found(b"k", b"one", (), 7), FOUND[1]], "headers () instead of"),
        ([FOUND[0], Found(None, b"two", (), 9)], "timestamp 9 instead of 8"),
    ],
)
def test_each_kind_of_difference_is_found(found: list[Found], text: str) -> None:
    assert text in str(difference(SENT, found))


def test_repeats_of_a_retry_are_left_out() -> None:
    assert without_repeats([*FOUND, FOUND[0], FOUND[1]]) == FOUND
