# SPDX-License-Identifier: Apache-2.0
"""Errors as a person reads them who wrote a query, not this package.

What a Python worker raises reaches the query as text: Spark puts the whole traceback, its own frames first, in front of
the message. For errors that say by themselves what to do, Spark is asked to leave the traceback out. It reads that wish
from the environment when it writes the error down, and ends the process afterwards, so nothing else is affected.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import KafkaError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors(*, pickling: bool = False) -> Iterator[None]:
    """What is raised in here reaches the user's query as its message alone, if it is an error of ours.

    Anything else is a mistake in this package, and keeps its traceback.

    Args:
        pickling: Spark is pickling a writer. It takes whatever goes wrong then for an object that cannot be pickled,
            and says so instead of what happened, unless the error belongs to pickle's own.
    """
    try:
        yield
    except KafkaError as error:
        os.environ[_HIDE_TRACEBACK] = "1"
        # Spark shows no causes without the traceback; the texts have what matters of them.
        raise (_as_pickling_error(error) if pickling else error) from None


def _as_pickling_error(error: KafkaError) -> KafkaError:
    """An error of the same name and text that Spark lets pass while it pickles."""
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    passing: type[KafkaError] = type(kind.__name__, (KafkaError, pickle.PickleError), names)
    return passing(str(error))
