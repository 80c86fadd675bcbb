# SPDX-License-Identifier: Apache-2.0
"""Penstock on Spark: the data source `penstock`, and pipelines that are described by a file.

Nothing here imports pyspark before it is used: the command line reads pipeline files where Spark is not installed.
"""

from __future__ import annotations

from typing import Any

from penstock.spark.lasting_objects import BEFORE_IMPORTS, spare_lasting_objects

__all__ = ["activate_session", "run_pipeline"]

spare_lasting_objects(BEFORE_IMPORTS)


def __getattr__(name: str) -> Any:
    if name == "run_pipeline":
        from penstock.spark.pipeline.run import run_pipeline

        return run_pipeline
    if name == "activate_session":
        from penstock.spark.threads import activate_session

        return activate_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
