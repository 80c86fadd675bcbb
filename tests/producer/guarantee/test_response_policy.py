# SPDX-License-Identifier: Apache-2.0
"""What becomes of a batch without idempotence, for every answer a broker can give."""

from __future__ import annotations

import pytest
from producer.fakes_answers import FAIL, RETRY, RETRY_AND_REFRESH, cases

from penstock.producer.guarantee.response_policy import Action, BatchSituation, Decision, decide

FRESH = BatchSituation(record_count=3, attempts=0, expired=False, done=False)
RETRIES = 5


@pytest.mark.parametrize("code", cases(RETRY))
def test_a_passing_condition_is_retried(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.RETRY, refresh_metadata=False)


@pytest.mark.parametrize("code", cases(RETRY_AND_REFRESH))
def test_an_answer_that_says_our_view_is_old_is_retried_and_refreshes_it(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.RETRY, refresh_metadata=True)


@pytest.mark.parametrize("code", cases(FAIL))
def test_any_other_error_fails_the_batch(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.FAIL, refresh_metadata=False)


@pytest.mark.parametrize("code", [0, 46])
def test_no_error_and_a_duplicate_are_successes(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.SUCCEED)


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({}, Action.SPLIT),
        ({"record_count": 2}, Action.SPLIT),
        ({"attempts": RETRIES}, Action.SPLIT),  # a split is no retry
        ({"record_count": 1}, Action.FAIL),
        ({"expired": True}, Action.FAIL),
        ({"done": True}, Action.FAIL),
    ],
)
def test_a_batch_that_is_too_large_is_split_where_that_can_help(changes, action):
    assert decide(10, FRESH._replace(**changes), RETRIES) == Decision(action)


@pytest.mark.parametrize("code", cases(RETRY | RETRY_AND_REFRESH))
@pytest.mark.parametrize("changes", [{"attempts": RETRIES}, {"expired": True}, {"done": True}], ids=str)
def test_nothing_is_retried_without_retries_or_time_left(code, changes):
    """Requirement 45."""
    decision = decide(code, FRESH._replace(**changes), RETRIES)
    assert decision == Decision(Action.FAIL, refresh_metadata=code in RETRY_AND_REFRESH)


def test_the_last_retry_is_still_made():
    assert decide(7, FRESH._replace(attempts=RETRIES - 1), RETRIES).action is Action.RETRY
    assert decide(7, FRESH, 0).action is Action.FAIL
