# SPDX-License-Identifier: Apache-2.0
"""Error codes are named in the source: nothing called a code is compared with, or looked up among, bare numbers.

Zero is allowed, since it is success. Constants and tables of a module are followed to the numbers in them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.error_codes import ErrorCode

SOURCES = Path(__file__).resolve().parent.parent / "src"
# Where a number becomes a name.
ALLOWED = {"penstock/error_codes.py"}
# Codes of something else than a broker.
NOT_A_BROKERS = {"exit_code", "returncode"}


def is_code(node: ast.expr) -> bool:
    """Whether an expression is called a code: code, error.code, row["error_code"], body.get("error_code", 0)."""
    if isinstance(node, ast.NamedExpr):
        return is_code(node.target) or is_code(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return bool(node.args) and is_code_name(getattr(node.args[0], "value", None))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return is_code_name(getattr(node.args[1], "value", None))
    if isinstance(node, ast.Subscript):
        return is_code_name(getattr(node.slice, "value", None))
    if isinstance(node, ast.BoolOp):
        return any(is_code(value) for value in node.values)
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    return is_code_name(name)


def is_code_name(name: object) -> bool:
    return isinstance(name, str) and (name == "code" or name.endswith("_code")) and name not in NOT_A_BROKERS


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """What the names at the top of a module stand for."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = value
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=False)
                found |= {name.id: part for name, part in pairs if isinstance(name, ast.Name)}
    return found


def numbers_in(node: ast.expr, names: dict[str, ast.expr], seen: frozenset[str] = frozenset()) -> set[int]:
    """The numbers other than 0 that an expression consists of; values of a table do not count, its keys do."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, int) and not isinstance(node.value, bool) else set()
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return {-number for number in numbers_in(node.operand, names, seen)}
    if isinstance(node, ast.Name):
        if node.id in names and node.id not in seen:
            return numbers_in(names[node.id], names, seen | {node.id})
        return set()
    if isinstance(node, ast.Dict):
        inner = [key if key is not None else value for key, value in zip(node.keys, node.values, strict=True)]
        inner += [value for value in node.values if isinstance(value, ast.Dict)]
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        inner = node.elts
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        inner = node.args  # frozenset({...}), cython.declare(cython.int, 6)
    elif isinstance(node, ast.Subscript | ast.Starred):
        inner = [node.value]
    elif isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    else:
        inner = []
    return {number for part in inner for number in numbers_in(part, names, seen) if number}


def bare_codes(text: str) -> Iterator[str]:
    """Where a code meets bare numbers, and where a number gets the name of a code."""
    tree = ast.parse(text)
    names = constants(tree)
    members = set(ErrorCode.__members__) - {"NONE"}  # which is 0 here, and may be anything elsewhere
    for name, value in names.items():
        if name.lstrip("_") in members and isinstance(value, ast.Constant | ast.UnaryOp):
            yield f"{value.lineno}: {name} = {ast.unparse(value)}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(is_code(part) for part in (node.left, *node.comparators)):
            others = [part for part in (node.left, *node.comparators) if not is_code(part)]
        elif isinstance(node, ast.Subscript) and is_code(node.slice):
            others = [node.value]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
            and is_code(node.args[0])
        ):
            others = [node.func.value]
        else:
            continue
        if any(numbers_in(part, names) - {0} for part in others):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_codes_have_names_everywhere() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{where}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.relative_to(SOURCES).as_posix() not in ALLOWED
        for where in bare_codes(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("if body.get('error_code', 0) in (29, 31): pass", True),
        ("_DOUBT = frozenset({-1, 6})\nif code in _DOUBT: pass", True),
        ("_SPLIT = {10: 'split'}\nmeaning = _SPLIT[code]", True),
        ("_NOT_LEADER_OR_FOLLOWER = 6", True),
        ("if code == ErrorCode.NOT_CONTROLLER or exit_code == 2: pass", False),
    ],
)
def test_a_bare_number_is_found(text: str, bare: bool) -> None:
    assert bool(list(bare_codes(text))) == bare
