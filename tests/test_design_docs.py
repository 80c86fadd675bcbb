# SPDX-License-Identifier: Apache-2.0
"""The page on the design says what the code is: its files, its layers, its states. And all links lead somewhere."""

from __future__ import annotations

import enum
import importlib.util
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.control import ending
from penstock.network import states
from penstock.producer.batch import _batch_cy
from penstock.producer.guarantee.transactions import requests as txn_requests
from penstock.producer.guarantee.transactions import states as transactions

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def exactly_once() -> str:
    return (ROOT / "docs" / "exactly-once.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one of the same level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/design.md has no section {title!r}"
    return found.group(1)


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# ---- the map of folders


def mapped_folders(page: str) -> dict[str, list[str]]:
    """The folders on the map, as paths below penstock, each with the modules that a reader begins with."""
    rows = re.findall(
        r"^\| `([\w./]+)` \| [^|]+ \| ([^|]+) \|$", section(page, "Map of folders"), re.MULTILINE
    )
    return {folder: re.findall(r"`(\w+\.py)`", modules) for folder, modules in rows}


def test_every_package_is_on_the_map(page: str) -> None:
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
    assert {folder.rstrip("/") for folder in mapped_folders(page)} == packages


def test_modules_to_begin_with_are_there(page: str) -> None:
    for folder, modules in mapped_folders(page).items():
        assert modules, f"which module of {folder} does a reader begin with?"
        assert [name for name in modules if not (PACKAGE / folder / name).is_file()] == []


@pytest.mark.parametrize("name", ["design.md", "exactly-once.md"])
def test_files_that_are_named_exist(name: str) -> None:
    """`producer/batch/_queue_cy.py`, or a file name alone that some folder has."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    gone = [
        named
        for named in re.findall(r"`([\w/]+\.py)`", text)
        if not (ROOT / named).is_file() and not any(f"/{path}".endswith(f"/{named}") for path in files)
    ]
    assert gone == []


# ---- layers


@pytest.mark.parametrize(("position", "container"), [(0, "penstock"), (1, "penstock.producer")])
def test_layers_are_those_that_import_linter_checks(page: str, position: int, container: str) -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        contract
        for contract in config["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and contract["containers"] == [container]
    )
    assert fenced(section(page, "Layers"), "text")[position].split("\n")[:-1] == contract["layers"]


# ---- states


def drawn_transitions(diagram: str) -> set[tuple[str, str]]:
    arrows = re.findall(r"^ +(\S+) --> (\w+)", diagram, re.MULTILINE)
    return {(source, target) for source, target in arrows if source != "[*]"}


Arrows = set[tuple[str, str]]


def arrows_of(table: Mapping[Any, frozenset[Any]]) -> Arrows:
    return {(source.name, target.name) for source, targets in table.items() for target in targets}


def arrows_by_event(table: Mapping[Any, enum.Enum]) -> Arrows:
    """Of a table that says which event leads from a state to the next: an arrow may stand for several events."""
    return {(source.name, target.name) for (source, _), target in table.items()}


@pytest.mark.parametrize(
    ("position", "arrows", "first"),
    [
        (0, arrows_of(_batch_cy.TRANSITIONS), "QUEUED"),
        (1, arrows_of(states.TRANSITIONS), "DISCONNECTED"),
        (2, arrows_of(transactions.TRANSITIONS), transactions.TransactionState().current.name),
    ],
    ids=["batch", "connection", "transactional producer"],
)
def test_state_diagrams_are_the_tables(page: str, position: int, arrows: Arrows, first: str) -> None:
    diagram = fenced(section(page, "States"), "mermaid")[position]
    assert drawn_transitions(diagram) == arrows
    assert f"[*] --> {first}\n" in diagram


def test_the_diagram_of_an_ending_is_its_table(exactly_once: str) -> None:
    (diagram,) = fenced(exactly_once, "mermaid")
    assert drawn_transitions(diagram) == arrows_by_event(ending.TRANSITIONS)
    assert "[*] --> ASKING\n" in diagram


# ---- transactions


def test_the_order_of_transaction_requests_is_theirs(page: str) -> None:
    """The page names them in the order of their priorities."""
    sentence = re.search(r"\*\*One request at a time\*\*, in this order: (.*?)\. ", page, re.DOTALL)
    assert sentence is not None
    named = re.findall(r"[A-Z]\w+|requests that add", sentence.group(1))
    assert named == ["FindCoordinator", "InitProducerId", "requests that add", "EndTxn", "InitProducerId"]
    manager: Any = None
    (add,) = {
        txn_requests.AddPartitionsRequest.priority,
        txn_requests.AddOffsetsRequest.priority,
        txn_requests.TxnOffsetCommitRequest.priority,
    }
    first, bump = (txn_requests.InitProducerIdRequest(manager, bump=bump).priority for bump in (False, True))
    find, end = txn_requests.FindCoordinatorRequest.priority, txn_requests.EndTxnRequest.priority
    assert find < first < add < end < bump


# ---- links


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_links", ROOT / "tools" / "check_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_links_lead_somewhere(checker: ModuleType) -> None:
    assert checker.broken_links() == []
