# SPDX-License-Identifier: Apache-2.0
"""One of something is told as one."""

from __future__ import annotations

import pytest

from penstock._counted import counted
from penstock.sink.messages import PartitionCount


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (0, ("record",), "0 records"),
        (1, ("record",), "1 record"),
        (2000, ("record",), "2,000 records"),
        (1, ("batch",), "1 batch"),
        (2, ("batch",), "2 batches"),
        (1, ("retry", "retries"), "1 retry"),
        (3, ("retry", "retries"), "3 retries"),
    ],
)
def test_a_number_has_the_noun_that_fits(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert counted(number, *nouns) == text


def test_one_record_of_a_task_is_told_as_one() -> None:
    assert [str(PartitionCount("t", 0, records)) for records in (1, 2)] == ["t-0: 1 record", "t-0: 2 records"]
