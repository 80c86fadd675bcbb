# SPDX-License-Identifier: Apache-2.0
"""The page on errors has every exception, with its flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import errors
from penstock.errors import KafkaError

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "errors.md").read_text(encoding="utf-8")
CLASSES = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, KafkaError)
}
ROWS = re.findall(r"^\| `(\w+)` \| ?([A-Z]*) ?\| ([^|]+)\| ([^|]*)\|$", PAGE, re.MULTILINE)


def test_every_error_has_one_row() -> None:
    assert sorted(name for name, *_ in ROWS) == sorted(CLASSES)


@pytest.mark.parametrize(("name", "flags"), [row[:2] for row in ROWS])
def test_flags_are_those_of_the_class(name: str, flags: str) -> None:
    cls = CLASSES[name]
    assert flags == "R" * cls.retriable + "F" * cls.fatal + "A" * cls.requires_abort


def test_a_class_is_listed_below_its_parents() -> None:
    order = [name for name, *_ in ROWS]
    for name in order:
        parents = [base.__name__ for base in CLASSES[name].__mro__[1:] if base.__name__ in CLASSES]
        assert all(order.index(parent) < order.index(name) for parent in parents), name


def test_the_example_compiles() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    compile(example, "docs/errors.md", "exec")
    named = re.findall(r"errors\.(\w+)", example)
    assert named
    assert set(named) <= set(CLASSES)
