# SPDX-License-Identifier: Apache-2.0
"""The text of an error is for people: what code must know of an error is a field of it.

Errors of others that have no such field are listed here; the list may only get shorter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"

# What Spark, Java and tomllib say; and a marker of ours that comes back inside of Spark's text.
TEXTS_OF_OTHERS = {
    "penstock/spark/pipeline/failure.py": 3,
    "penstock/spark/pipeline/file.py": 1,
    "penstock/spark/pipeline/source.py": 1,
}

SEARCHES = {"startswith", "endswith", "partition", "rpartition", "find", "index", "replace", "count"}
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "sub"}
# Fields that hold words for people.
LABELS = {"what"}


def is_text(node: ast.expr) -> bool:
    """Whether an expression is the text of an error, or a label: str(error), error.args[0], ticket.what."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return bool(node.args) and is_error(node.args[0])
    if isinstance(node, ast.Subscript):
        return (
            isinstance(node.value, ast.Attribute) and node.value.attr == "args" and is_error(node.value.value)
        )
    return isinstance(node, ast.Attribute) and node.attr in LABELS


def is_error(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    words = name.strip("_").split("_")
    return bool({"error", "cause", "trouble", "failure", "exception", "up"} & set(words))


def searched_texts(text: str) -> Iterator[str]:
    """Where a module searches a text of an error, or takes it apart."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            found = any(is_text(part) for part in node.comparators)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searches = node.func.attr in SEARCHES and is_text(node.func.value)
            found = searches or (node.func.attr in PATTERNS and any(is_text(part) for part in node.args))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # A function that finds something in a text is called try_...
            found = node.func.id.lstrip("_").startswith("try_") and any(is_text(part) for part in node.args)
        else:
            continue
        if found:
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_no_code_looks_into_the_text_of_an_error() -> None:
    found = {
        path.relative_to(SOURCES).as_posix(): places
        for path in sorted(SOURCES.rglob("*.py"))
        if (places := list(searched_texts(path.read_text(encoding="utf-8"))))
    }
    assert {name: len(places) for name, places in found.items()} == TEXTS_OF_OTHERS, found


@pytest.mark.parametrize(
    ("text", "searches"),
    [
        ("if repr(topic) in str(error): pass", True),
        ("_, found, rest = str(error).partition('needs ')", True),
        ("re.search(name, str(error))", True),
        ("print(str(error), str(path).endswith('/'))", False),
    ],
)
def test_a_search_is_found(text: str, searches: bool) -> None:
    assert bool(list(searched_texts(text))) == searches
