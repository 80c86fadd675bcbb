# SPDX-License-Identifier: Apache-2.0
"""Errors as a person reads them who wrote a query, not this package.

What a Python worker raises reaches the query as text: Spark puts the whole traceback, its own frames first, in front of
the message. For errors that say by themselves what to do, Spark is asked to leave the traceback out. It reads that wish
from the environment when it writes the error down, and ends the process afterwards, so nothing else is affected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import KafkaError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors() -> Iterator[None]:
    """What is raised in here reaches the user's query as its message alone, if it is an error of ours.

    Anything else is a mistake in this package, and keeps its traceback.
    """
    try:
        yield
    except KafkaError as error:
        os.environ[_HIDE_TRACEBACK] = "1"
        # Spark shows neither causes nor notes without the traceback; they have been made part of the text.
        raise error from None
