# SPDX-License-Identifier: Apache-2.0
"""What is measured. A new case is one more in a module's list CASES, or a new module that is named here."""

from __future__ import annotations

import importlib

from bench.model import Case

# In this order: what matters most first, should time run out.
_MODULES = (
    "throughput",
    "latency",
    "aio",
    "tls",
    "codecs",
    "arrow",
    "growth",
    "scale",
    "pure",
    "sizes",
    "old",
)


def all_cases() -> list[Case]:
    """Every case, in the order in which they are run."""
    found: list[Case] = []
    for name in _MODULES:
        found.extend(importlib.import_module(f"{__name__}.{name}").CASES)
    return found
