# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first asked for.

__getattr__, __dir__ = lazy_names(globals(), {"Producer": "penstock.producer.producer"})
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What Python calls as `__getattr__` and `__dir__` of a package.

    Args:
        package: its globals. A name that was asked for is kept there, so that it is looked up once.
        modules: for each name, the module that has it.
    """

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(modules[name]), name)
        package[name] = found
        return found

    def dir_() -> list[str]:
        return sorted({*package, *modules})

    return getattr_, dir_
