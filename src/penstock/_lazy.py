# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first asked for.

__getattr__, __dir__ = lazy_names(globals(), {"Producer": "penstock.producer.producer"})
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def lazy_names(
    package: dict[str, Any], modules: Mapping[str, str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What Python calls as `__getattr__` and `__dir__` of a package.

    Args:
        package: its globals. A name that was asked for is kept there, so that it is looked up once.
        modules: for each name, the module that has it.
        elsewhere: names that other clients have, and what to write instead. They stay AttributeErrors, because
            `hasattr` takes no other; so `from package import name` cannot say it: Python writes its own ImportError.
    """

    def getattr_(name: str) -> Any:
        if name not in modules:
            advice = f"; {elsewhere[name]}" if name in elsewhere else ""
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}{advice}")
        found = getattr(importlib.import_module(modules[name]), name)
        package[name] = found
        return found

    def dir_() -> list[str]:
        return sorted({*package, *modules})

    return getattr_, dir_
