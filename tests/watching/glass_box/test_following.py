# SPDX-License-Identifier: Apache-2.0
"""The sentences that the live page has for why a batch left; the way of a record is followed in `test_view`."""

from __future__ import annotations

import pytest

from penstock.producer.io.metric_names import LEAVING_REASONS
from penstock.watching.glass_box.following import _REASONS, FollowedRecord


def test_the_reasons_with_a_sentence_are_those_of_the_metrics() -> None:
    """A word without a sentence would be a KeyError on the page, in the middle of following a record."""
    assert list(_REASONS) == list(LEAVING_REASONS)


@pytest.mark.parametrize("number", range(len(LEAVING_REASONS)), ids=LEAVING_REASONS)
def test_the_way_of_a_record_says_why_its_batch_left(number: int) -> None:
    way = FollowedRecord(1, "t", begun=0.0)
    way.left = {
        "left_by": number,
        "drained_at": 2.0,
        "retried_for": 0.0,
        "records": 1,
        "fill": 0.5,
        "attempts": 0,
        "last_error": "",
        "in_flight": False,
    }
    (told,) = way._on_its_way(now=3.0, linger_ms=5)
    why = "linger.ms=5 was over" if LEAVING_REASONS[number] == "linger" else _REASONS[LEAVING_REASONS[number]]
    assert told[2] == f"The batch left with 1 record, 50 % full, because {why}."
