# SPDX-License-Identifier: Apache-2.0
"""Which implementation of the hot modules runs: the compiled one, or the Python source it was compiled from.

Each `*_cy.py` module is one source in Cython's pure-Python mode. Where it was compiled, the extension lies beside it
and Python's own import prefers it. With PENSTOCK_PURE=1 in the environment, `install_finder` (called first thing in
`penstock/__init__`) puts a finder in front of Python's, which loads the sources instead. The choice is made here, once
per process, for all of them; nothing else in the package asks. The same happens where Python runs without its
interpreter lock.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Imported where it is needed: every process imports this module, and few need more of it than the finder.
    from pathlib import Path

Implementation = Literal["compiled", "pure", "mixed"]

PURE_SWITCH = "PENSTOCK_PURE"

_PACKAGE = __name__.partition(".")[0]
_SUFFIX = "_cy"


def _package_folder() -> Path:
    from pathlib import Path

    return Path(__file__).resolve().parent


@functools.cache
def hot_modules() -> tuple[str, ...]:
    """The modules that setup.py compiles: all whose name ends in _cy. None where the package is inside an archive."""
    folder = _package_folder()
    sources = sorted(folder.rglob(f"*{_SUFFIX}.py"))
    return tuple(".".join((_PACKAGE, *path.relative_to(folder).with_suffix("").parts)) for path in sources)


def is_hot(module: str) -> bool:
    """Whether a module, by its name, is one that is compiled."""
    return module.startswith(f"{_PACKAGE}.") and module.endswith(_SUFFIX)


def pure_wanted() -> bool:
    """Whether the environment asks for the Python sources, or the compiled modules cannot be relied on here.

    They rely on the interpreter lock: between two calls of Python no other thread runs.
    """
    asked_for = os.environ.get(PURE_SWITCH, "").strip().lower() not in ("", "0", "no", "false")
    return asked_for or not has_interpreter_lock()


def has_interpreter_lock() -> bool:
    """Whether one thread at a time runs Python: always, but for builds of Python without that lock."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def source_path(module: str) -> Path:
    """The source of a hot module."""
    return _package_folder().joinpath(*module.split(".")[1:]).with_suffix(".py")


def extension_path(module: str) -> Path | None:
    """The extension compiled from a hot module for this Python; None when there is none."""
    source = source_path(module)
    for suffix in EXTENSION_SUFFIXES:
        candidate = source.with_name(source.stem + suffix)
        if candidate.exists():
            return candidate
    return None


class PureSourceFinder:
    """A meta-path finder that answers for the hot modules alone, with their Python source."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the source file; None for every other module, which leaves it to Python's own finders."""
        del path, target
        if not is_hot(fullname):
            return None
        return importlib.util.spec_from_file_location(fullname, source_path(fullname))


def install_finder() -> None:
    """Put the finder in front when PENSTOCK_PURE is set; harmless when called again."""
    if pure_wanted() and PureSourceFinder not in sys.meta_path:
        sys.meta_path.insert(0, PureSourceFinder)


def is_compiled(module: str) -> bool:
    """Whether this process runs, or would import, the compiled form of a hot module."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return str(loaded.__file__).endswith(tuple(EXTENSION_SUFFIXES))
    # Not by `find_spec`, which imports the module's package: that may need a package of an extra.
    return PureSourceFinder not in sys.meta_path and extension_path(module) is not None


def implementation() -> Implementation:
    """What this process runs: "compiled", "pure", or "mixed" when only some of the modules were built."""
    compiled = {is_compiled(module) for module in hot_modules()}
    if len(compiled) > 1:
        return "mixed"
    return "compiled" if compiled == {True} else "pure"


def stale_extensions() -> list[str]:
    """The hot modules whose extension is older than its source: edited, but not built again."""
    stale = []
    for module in hot_modules():
        extension, source = extension_path(module), source_path(module)
        if extension is None:
            continue
        inputs = [path for path in (source, source.with_suffix(".pxd")) if path.exists()]
        if any(path.stat().st_mtime > extension.stat().st_mtime for path in inputs):
            stale.append(module)
    return stale


def up_to_date() -> bool:
    """Whether all hot modules were compiled after the last edit of any: they know each other's C layout."""
    extensions = [extension_path(module) for module in hot_modules()]
    sources = [source_path(module) for module in hot_modules()]
    # Some signatures have no module of their own: what is in them is written where it is used.
    signatures = {path for source in sources for path in source.parent.glob(f"*{_SUFFIX}.pxd")}
    inputs = [*sources, *signatures]
    built = [path.stat().st_mtime for path in extensions if path is not None]
    return len(built) == len(hot_modules()) and min(built) > max(path.stat().st_mtime for path in inputs)


def describe() -> str:
    """Implementation and interpreter in a few words, for --version and test reports."""
    import platform

    return f"{implementation()}, {platform.python_implementation()} {platform.python_version()}"
