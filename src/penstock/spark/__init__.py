# SPDX-License-Identifier: Apache-2.0
"""Penstock on Spark: the data source `penstock`, and pipelines that are described by a file.

Nothing here imports pyspark before it is used: the command line reads pipeline files where Spark is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazy_names as _lazy_names
from penstock.spark.lasting_objects import BEFORE_IMPORTS, spare_lasting_objects

if TYPE_CHECKING:
    from penstock.spark.pipeline.run import run_pipeline
    from penstock.spark.threads import activate_session

__all__ = ["activate_session", "run_pipeline"]

spare_lasting_objects(BEFORE_IMPORTS)

__getattr__, __dir__ = _lazy_names(
    globals(),
    {"activate_session": "penstock.spark.threads", "run_pipeline": "penstock.spark.pipeline.run"},
)
