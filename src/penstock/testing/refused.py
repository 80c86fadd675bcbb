# SPDX-License-Identifier: Apache-2.0
"""The fake cluster's way to say no."""

from __future__ import annotations

from penstock.error_codes import ErrorCode


class Refused(Exception):
    """The broker's answer is an error; handlers turn it into a response.

    Attributes:
        message: the broker's own words, where the response has room for them.
        record_errors: (index in the batch, message) of the records at fault.
        reached_log: whether the partition's log was asked; before that, a broker does not tell where it begins.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        record_errors: list[tuple[int, str]] | None = None,
        *,
        reached_log: bool = True,
    ) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
        self.record_errors = record_errors or []
        self.reached_log = reached_log
