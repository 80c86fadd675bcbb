# SPDX-License-Identifier: Apache-2.0
"""Writing from a thread that Python started.

Spark looks a data source of Python up in the active session of the calling thread. It makes a session active in the
thread that made the session and in those that it starts itself, but not in a thread of Python: there a write fails with
DATA_SOURCE_NOT_FOUND, whatever data source of Python it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def activate_session(spark: SparkSession) -> None:
    """Let the calling thread write with `format("penstock")`; call it first in every thread that your program starts.

    It starts no job, and may be called again. Behind Spark Connect it is not needed, and does no harm.
    """
    # The one call of PySpark's API that makes the session active in the thread that calls it.
    spark.createDataFrame([], "nothing INT")
