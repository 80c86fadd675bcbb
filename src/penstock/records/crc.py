# SPDX-License-Identifier: Apache-2.0
"""CRC-32C, the checksum of Kafka's batches: the function of the package crc32c, without the rest of that package.

When it is imported, crc32c also brings its command line and looks up its own version, which takes 13 ms: argparse, and
what reads the metadata of installed packages. Each process of a Spark job would wait for that. The function is in an
extension module inside, which needs nothing of it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder

_PACKAGE = "crc32c"
_INSIDE = "crc32c._crc32c"


def _load() -> Callable[..., int]:
    """The function by itself; or out of the package, where that is laid out in another way or imported already."""
    if _PACKAGE not in sys.modules:
        package = importlib.util.find_spec(_PACKAGE)  # which imports nothing
        places = None if package is None else package.submodule_search_locations
        found = None if places is None else PathFinder.find_spec(_INSIDE, list(places))
        if found is not None and found.loader is not None:
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            function: Callable[..., int] | None = getattr(module, "crc32c", None)
            if function is not None:
                return function
    from crc32c import crc32c

    whole: Callable[..., int] = crc32c
    return whole


crc32c = _load()
