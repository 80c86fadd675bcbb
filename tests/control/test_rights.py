# SPDX-License-Identifier: Apache-2.0
"""Refusals name the right that is missing; other errors stay as they are."""

from __future__ import annotations

import pytest

from penstock.control.rights import answered, of_whole_answer
from penstock.error_codes import ErrorCode
from penstock.errors import TopicAuthorizationError


@pytest.mark.parametrize("kind", ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"])
def test_a_missing_right_is_named(kind: str) -> None:
    error = answered(ErrorCode[f"{kind}_AUTHORIZATION_FAILED"], "WRITE", "topic 'orders'")
    assert ": the right WRITE on topic 'orders' is needed" in str(error)


def test_the_text_of_the_caller_comes_first() -> None:
    error = answered(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "CREATE", "it", "topic 'orders' was not created")
    assert isinstance(error, TopicAuthorizationError)
    assert error.message == "topic 'orders' was not created: the right CREATE on it is needed"


def test_other_errors_are_about_no_right() -> None:
    assert "right" not in str(answered(ErrorCode.NOT_COORDINATOR, "WRITE", "it"))
    assert answered(ErrorCode.NOT_COORDINATOR, "WRITE", "it", "moved").message == "moved"


def test_an_answer_with_one_code() -> None:
    error_in = of_whole_answer("WRITE", "transactional id 'x'")
    assert error_in({"error_code": 0}) is None
    error = error_in({"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "error_message": None})
    assert "the right WRITE on transactional id 'x' is needed" in str(error)
