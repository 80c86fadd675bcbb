# SPDX-License-Identifier: Apache-2.0
"""Answers that say that this client may not: the error names the right that is missing, and on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, KafkaError, broker_error, error_row

_NOT_AUTHORIZED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def answered(code: int, right: str, on: str, message: str | None = None) -> BrokerError:
    """The error for a code of an answer.

    Args:
        code: the broker's.
        right: what the request needs, such as WRITE.
        on: the resource, such as ``topic 'orders'``.
        message: the text, if there is a better one than that of the code.
    """
    if code in _NOT_AUTHORIZED:
        text = message or error_row(code).description
        return broker_error(code, f"{text}: the right {right} on {on} is needed")
    return broker_error(code, message)


def of_whole_answer(right: str, on: str) -> Callable[[Mapping[str, Any]], KafkaError | None]:
    """Give a function that tells the error of an answer with one code for all of it."""

    def error_in(body: Mapping[str, Any]) -> KafkaError | None:
        code = body["error_code"]
        return answered(code, right, on, body.get("error_message")) if code else None

    return error_in
