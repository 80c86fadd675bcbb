# SPDX-License-Identifier: Apache-2.0
"""What this package does to a Python process of Spark: plain errors, and less work for the garbage collector.

Errors. What a Python worker raises reaches the query as text: Spark puts the whole traceback, its own frames first, in
front of the message. For errors that say by themselves what to do, Spark is asked to leave the traceback out. It reads
that wish from the environment when it writes the error down, and ends the process afterwards, so nothing else is
affected.

Garbage. Spark runs Python's collector after each task, and after each call on the driver. It looks at every function,
class and table of every module that was imported, for 25 to 50 ms each time, and finds nothing: as much CPU time as it
takes to send 200,000 rows. It runs by itself too while modules are imported, since these make many objects, and then
looks at those of Spark: a third of the time that our imports take.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from penstock.errors import KafkaError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

# What forks Spark's workers, and runs the collector in them. Other processes are not ours.
_SPARK_DAEMON: Final = "pyspark.daemon"

BEFORE_IMPORTS: Final = "before imports"
AFTER_FIRST_WORK: Final = "after the first work"


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


@cache  # at each moment once: what comes and goes later is the collector's
def spare_lasting_objects(moment: str) -> None:
    """Let the collector leave out the objects that there are now, in Spark's workers.

    Objects are freed as before when nothing refers to them; only of these, a cycle that is given up later stays.
    """
    if not _is_spark_worker():
        return
    if moment == AFTER_FIRST_WORK:
        gc.collect()  # or what garbage there is would last as well; Spark is about to do it anyway
    gc.freeze()


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _SPARK_DAEMON
