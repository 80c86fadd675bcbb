# SPDX-License-Identifier: Apache-2.0
"""The environment with Spark that the sinks are measured in. `python -m bench.spark.environment` makes it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from bench.process import ROOT
from bench.spark import sinks
from penstock.devbroker import DevBrokerError

_HOW = f"{Path(sys.executable).name} -m bench.spark.environment"


def missing() -> str | None:
    """What is not there yet, and how to get it; None when all is."""
    if not Path("/proc/self/stat").exists():
        return "this system does not tell the CPU time of a tree of processes"
    if not sinks.has_penstock():
        return "this Penstock has no data source for Spark"
    if not _tool().is_made(sinks.SPARK_VERSION, alone=True):
        return f"there is no environment with Spark {sinks.SPARK_VERSION}; {_HOW} makes it"
    if not sinks.jars_there():
        return f"the connector's jars are not there; {_HOW} fetches them"
    return None


def python() -> Path:
    """The interpreter that has Spark."""
    found: Path = _tool().interpreter(sinks.SPARK_VERSION, alone=True)
    return found


def _tool() -> ModuleType:
    """tools/spark_env.py, which is a program beside the package and not a part of one."""
    spec = importlib.util.spec_from_file_location("spark_env", ROOT / "tools" / "spark_env.py")
    if spec is None or spec.loader is None:
        raise ImportError("tools/spark_env.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Make the environment and fetch the connector, unless they are there."""
    tool = _tool()
    try:
        tool.make(sinks.SPARK_VERSION, alone=True)
        sinks.connector_jars()
    except (tool.SparkEnvError, DevBrokerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
