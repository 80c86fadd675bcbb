# SPDX-License-Identifier: Apache-2.0
"""The options that the environment can set: it wins over a file, and loses to arguments and the command line.

An empty variable is none. Where the environment wins, what a file says is left out; who needs the option asks the
environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from penstock._reporting import GLASS_BOX_VARIABLE
from penstock.config.names import try_meaning

GLASS_BOX: Final = "glass.box"
TOKEN: Final = "glass.box.token"  # noqa: S105 - its name
VARIABLES: Final = {GLASS_BOX: GLASS_BOX_VARIABLE, TOKEN: f"{GLASS_BOX_VARIABLE}_TOKEN"}


def from_environment(option: str) -> str | None:
    """What the environment says of an option; None when nothing.

    Args:
        option: its dotted name.
    """
    variable = VARIABLES.get(option)
    if variable is None or (option == GLASS_BOX and _is_spark_worker()):
        return None
    return os.environ.get(variable) or None


def of_file(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a file that the environment leaves to it; names in any spelling."""
    return {
        name: value for name, value in options.items() if from_environment(try_meaning(name) or name) is None
    }


def _is_spark_worker() -> bool:
    """Whether Spark has started this process: its workers inherit the environment, and are many."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    # The second is what starts where spark.python.use.daemon is off.
    return spec is not None and spec.name in ("pyspark.daemon", "pyspark.worker")
