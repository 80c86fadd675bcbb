# SPDX-License-Identifier: Apache-2.0
"""What is measured. A new case is a new module here with a list CASES, or one more in such a list."""

from __future__ import annotations

import importlib
import pkgutil

from bench.model import Case


def all_cases() -> list[Case]:
    """Every case, in the order of the modules' names."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found.extend(importlib.import_module(module.name).CASES)
    return found
