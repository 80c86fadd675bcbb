# SPDX-License-Identifier: Apache-2.0
"""Penstock on Spark: the data source `penstock`, and pipelines that are described by a file.

Nothing here imports pyspark before it is used: the command line reads pipeline files where Spark is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazy_names as _lazy_names
from penstock.spark.worker import BEFORE_IMPORTS, spare_lasting_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.run import run_pipeline

__all__ = ["activate_session", "run_pipeline"]

spare_lasting_objects(BEFORE_IMPORTS)

if not TYPE_CHECKING:  # to a type checker a module with a __getattr__ has every name
    __getattr__, __dir__ = _lazy_names(globals(), {"run_pipeline": "penstock.spark.pipeline.run"})


def activate_session(spark: SparkSession) -> None:
    """Let the calling thread write with `format("penstock")`; call it first in every thread that your program starts.

    Spark looks a data source of Python up in the active session of the calling thread. It makes a session active in the
    thread that made the session and in those that it starts itself, but not in a thread of Python: there a write fails
    with DATA_SOURCE_NOT_FOUND, whatever data source of Python it is for.

    It starts no job, and may be called again. Behind Spark Connect it is not needed, and does no harm.
    """
    # The one call of PySpark's API that makes the session active in the thread that calls it.
    spark.createDataFrame([], "nothing INT")
