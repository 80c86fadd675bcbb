# SPDX-License-Identifier: Apache-2.0
"""Who is measured. A new one is a new module here with a list CONTENDERS; the order is that of the names.

A module may also be the program that does the work (`bench.worker`). It imports the client it measures only then, so
that a client which is not installed is left out and nothing more.
"""

from __future__ import annotations

import importlib
import pkgutil

from bench.model import Contender


def all_contenders() -> list[Contender]:
    """Every contender: Penstock's first, the limit last."""
    found: list[Contender] = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found.extend(importlib.import_module(module.name).CONTENDERS)
    return sorted(found, key=lambda one: (not one.name.startswith("penstock"), one.name == "limit", one.name))
