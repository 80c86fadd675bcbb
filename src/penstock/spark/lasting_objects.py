# SPDX-License-Identifier: Apache-2.0
"""Keeps Python's garbage collector away from what a Spark worker keeps for good.

Spark runs the collector after each task, and after each call on the driver. It looks at every function, class and table
of every module that was imported, for 25 to 50 ms each time, and finds nothing: as much CPU time as it takes to send
200,000 rows.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

# What forks Spark's workers, and runs the collector in them. Other processes belong to somebody else.
_SPARK_DAEMON: Final = "pyspark.daemon"


def spare_lasting_objects() -> None:
    """Let the collector leave out the objects that there are now, once in each of Spark's workers.

    To be called when the first work of a process is done: then all that it needs has been imported. Objects are freed
    as before when nothing refers to them; only of these, a cycle that is given up later stays.
    """
    if not gc.get_freeze_count() and _is_spark_worker():
        gc.freeze()


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _SPARK_DAEMON
