# SPDX-License-Identifier: Apache-2.0
"""Runs one test against every form of a hot module: compiled, as plain Python, and as Python without Cython's help.

    batch_module = implementations("penstock.records._batch_cy")

makes a fixture that gives the module in each form. All forms live in one process; only the one that the process runs
is in `sys.modules`. Where nothing is compiled there is no compiled form: a run that must have it says so with
PENSTOCK_EXPECT.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from penstock._compiled import PureSourceFinder, hot_modules, is_compiled

GOLDEN = Path(__file__).parent / "golden"


def forms(module: str) -> list[str]:
    """The forms of a hot module that can be had in this run."""
    return [*(["compiled"] if is_compiled(module) else []), "uncompiled", "no-cython"]


def implementations(module: str) -> Any:
    """A fixture that gives the named hot module in each of its forms."""

    @pytest.fixture(params=forms(module))
    def implementation(request: pytest.FixtureRequest) -> ModuleType:
        return load(module, request.param)

    return implementation


@functools.cache
def load(module: str, form: str) -> ModuleType:
    """A hot module in one of its forms."""
    if form == "compiled":
        return importlib.import_module(module)
    return _load_source(module, with_cython=form == "uncompiled")


def _load_source(module: str, *, with_cython: bool) -> ModuleType:
    # Everything that is not a hot module must be loaded by now, or it would be bound to the sources made here.
    importlib.import_module(module)
    parents = {
        name: importlib.import_module(name.rpartition(".")[0])
        for name in hot_modules()
        if name in sys.modules
    }
    before = {name: sys.modules[name] for name in parents}
    hidden = {} if with_cython else {"cython": None}
    with (
        mock.patch.dict(sys.modules, hidden),
        mock.patch.object(sys, "meta_path", [PureSourceFinder, *sys.meta_path]),
    ):
        # Sources call each other by functions that an extension does not show to Python: load all of them anew.
        for name in before:
            del sys.modules[name]
        source = importlib.import_module(module)
    # The import also set the parents' attributes; put the first form back there too.
    for name, parent in parents.items():
        setattr(parent, name.rpartition(".")[2], before[name])
    return source


def golden(file: str) -> list[Any]:
    """The cases of a golden file, each as a pytest parameter under its own name."""
    with (GOLDEN / file).open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    return [pytest.param(case, id=case["name"]) for case in cases]


def as_bytes(text: str | None) -> bytes | None:
    """A byte string of a golden file: hex, or null."""
    return None if text is None else bytes.fromhex(text)
