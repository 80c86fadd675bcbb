# SPDX-License-Identifier: Apache-2.0
"""Keeps Python's garbage collector away from what a Spark worker keeps for good.

Spark runs the collector after each task, and after each call on the driver. It looks at every function, class and table
of every module that was imported, for 25 to 50 ms each time, and finds nothing: as much CPU time as it takes to send
200,000 rows. It runs by itself too while modules are imported, since these make many objects, and then looks at those
of Spark: a third of the time that our imports take.
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from typing import Final

# What forks Spark's workers, and runs the collector in them. Other processes belong to somebody else.
_SPARK_DAEMON: Final = "pyspark.daemon"

BEFORE_IMPORTS: Final = "before imports"
AFTER_FIRST_WORK: Final = "after the first work"


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
