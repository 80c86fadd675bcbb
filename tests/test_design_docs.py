# SPDX-License-Identifier: Apache-2.0
"""The page on the design says what the code is: its files, its layers, its states. And all links lead somewhere."""

from __future__ import annotations

import enum
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from penstock.network import states
from penstock.producer import batch

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one of the same level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/design.md has no section {title!r}"
    return found.group(1)


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# ---- the map of files


def mapped_modules(page: str) -> list[str]:
    """The modules on the map, as paths below src."""
    modules = []
    folder = None
    for line in section(page, "Map of files").splitlines():
        if heading := re.fullmatch(r"### `(penstock/.*)`", line):
            folder = heading.group(1)
        elif row := re.match(r"\| `(\w+\.py)` \| \S", line):
            assert folder is not None
            modules.append(folder + row.group(1))
    return modules


def existing_modules() -> set[str]:
    """All modules; a package is known by its folder, so that only the top one's __init__ is on the map."""
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")}
    return {name for name in modules if not name.endswith("/__init__.py") or name == "penstock/__init__.py"}


def test_every_module_is_on_the_map(page: str) -> None:
    missing = existing_modules() - set(mapped_modules(page))
    assert not missing, f"give each a line in docs/design.md, Map of files: {sorted(missing)}"


def test_every_module_on_the_map_exists_and_is_there_once(page: str) -> None:
    mapped = mapped_modules(page)
    assert set(mapped) <= existing_modules(), "docs/design.md, Map of files, names modules that are gone"
    assert len(mapped) == len(set(mapped))


def test_every_package_has_its_part_of_the_map(page: str) -> None:
    packages = {
        f"{path.parent.relative_to(PACKAGE.parent).as_posix()}/" for path in PACKAGE.rglob("__init__.py")
    }
    assert set(re.findall(r"^### `(penstock/.*)`$", page, re.MULTILINE)) == packages


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


@pytest.mark.parametrize(
    ("position", "table", "first"),
    [(0, batch.TRANSITIONS, "QUEUED"), (1, states.TRANSITIONS, "DISCONNECTED")],
    ids=["batch", "connection"],
)
def test_state_diagrams_are_the_tables(
    page: str, position: int, table: dict[enum.Enum, frozenset[enum.Enum]], first: str
) -> None:
    diagram = fenced(section(page, "States"), "mermaid")[position]
    assert drawn_transitions(diagram) == {
        (source.name, target.name) for source, targets in table.items() for target in targets
    }
    assert f"[*] --> {first}\n" in diagram


def test_final_states_of_a_batch_are_named(page: str) -> None:
    final = {state.name for state, targets in batch.TRANSITIONS.items() if not targets}
    sentence = re.search(r"([A-Z, ]+ and [A-Z]+) are final", section(page, "States"))
    assert sentence is not None
    assert set(re.findall(r"[A-Z]+", sentence.group(1))) == final


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


def test_a_link_that_leads_nowhere_is_found(checker: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "# Top\n\n[good](docs/a.md#two-words) [good](#top) [gone](docs/b.md) [no heading](docs/a.md#three)\n"
        "```text\n[in code](nowhere.md)\n```\n`[x](y.md)`\n[outside](mailto:somebody)\n"
    )
    (tmp_path / "docs" / "a.md").write_text("## Two *words*\n\n```text\n# three\n```\n")
    assert [line.split(" (")[0] for line in checker.broken_links(tmp_path)] == [
        "README.md: docs/b.md",
        "README.md: docs/a.md#three",
        "README.md: mailto:somebody",
    ]
