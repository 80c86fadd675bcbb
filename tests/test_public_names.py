# SPDX-License-Identifier: Apache-2.0
"""What the documentation lets people import stays where it is, whatever moves inside the package.

`golden/public_names.json` was written from commit dca378b; `penstock.watching` came later. A name may be added to it;
removing one breaks programs.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

NAMES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "golden" / "public_names.json").read_text(encoding="utf-8")
)


def test_all_documented_modules_are_listed() -> None:
    assert len(NAMES) == 16
    assert sum(len(names) for names in NAMES.values()) > 170


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(module, name, marks=[pytest.mark.spark] if module == "pyspark_penstock" else [])
        for module in NAMES
        for name in NAMES[module]
    ],
)
def test_a_public_name_stays(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)
