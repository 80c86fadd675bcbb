# SPDX-License-Identifier: Apache-2.0
"""The three rules of where code is: a class has one file, parts are owned and not inherited, a prefix is a folder.

What breaks a rule today is listed here. A list may only get shorter: an entry that is no longer true fails, too.
Modules, folders and the way of a record have limits. The tests have rules of their own: what two of them need is in a
module that is no test, and none is a long read.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SOURCES = TESTS.parent / "src"

LONGEST_TEST = 1000  # lines of a module
ROOT = TESTS.parent

MOST_LINES = 600  # of a module
MOST_MODULES = 9  # of a folder of the producer; __init__.py and .pxd files do not count
MOST_FILES = 102  # of the three folders that make a producer; .py and .pxd
MOST_ON_THE_WAY = 30  # modules that a record passes

# On a record's way in plain Python only: compiled code writes records in records/_batch_cy alone, and reads and writes
# Produce in protocol/_produce_cy alone.
IN_PLAIN_PYTHON = {
    "penstock.protocol._wire_reader",
    "penstock.protocol._wire_writer",
    "penstock.protocol.codec",
    "penstock.protocol.schema",
    "penstock.records.format",
    "penstock.records.plain_record",
}
# For these the walk has a network in memory. In place of _short_lock_cy plain Python has _locks.
OF_THE_NETWORK = {
    "penstock.network._system_calls_cy",
    "penstock.network._sockets_cy",
    "penstock.network.transport",
}

# Bases that users derive from: within the package they may have one child.
FOR_USERS = {"penstock.partitioners.Partitioner", "penstock._serializers_cy.Serializer"}
# Names that say what a class is, not what it is made of.
NOT_A_PART = {
    "Protocol",
    "NamedTuple",
    "Enum",
    "IntEnum",
    "StrEnum",
    "IntFlag",
    "TypedDict",
    "Generic",
    "Exception",
}

# bases that have one child, in another file
STILL_IN_TWO = {
    "producer.send._send_cy.TrySendFace",  # to stay: its docstring says why
}

# folder -> prefixes that more than two of its modules share
STILL_A_PREFIX: dict[str, set[str]] = {}

# What named tuples, enums, C structures and the standard library call by such names, which anybody may use.
NOT_PRIVATE = {
    "_current_frames",
    "_asdict",
    "_fields",
    "_fields_",
    "_replace",
    "_value_",
    "_exit",
    "_ActionsContainer",
    "_SubParsersAction",
}


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """Millions of nodes: with them, each garbage collection of a later test would take a second longer."""
    yield
    trees.cache_clear()


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package, parsed, by its dotted name."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What a name of a module means elsewhere: Batch -> penstock.producer.batch._batch_cy.Batch."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.removeprefix("cython.cimports.")
            names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    return names


def classes() -> Iterator[tuple[str, ast.ClassDef, dict[str, str]]]:
    """Every class with its module, and what the names in it mean."""
    for module, tree in trees().items():
        here = {
            node.name: f"{module}.{node.name}" for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        }
        names = imported_names(tree) | here
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield module, node, names


def bases_of(node: ast.ClassDef, names: dict[str, str]) -> list[str]:
    """The bases of a class, by their dotted names as far as they are known."""
    written = [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
    heads = [(name.partition(".")[0], name) for name in written]
    return [names.get(head, head) + name[len(head) :] for head, name in heads]


def only_children() -> dict[str, str]:
    """The bases of the package that have one child, which is in another file; errors and protocols aside."""
    children: dict[str, list[str]] = defaultdict(list)
    aside = set(FOR_USERS)
    for module, node, names in classes():
        own = f"{module}.{node.name}"
        bases = bases_of(node, names)
        if any(base.rpartition(".")[2] in NOT_A_PART for base in bases) or own.endswith("Error"):
            aside.add(own)
        for base in bases:
            children[base].append(own)
    return {
        base: found[0]
        for base, found in children.items()
        if len(found) == 1
        and base not in aside
        and base.rpartition(".")[0] in trees()
        and base.rpartition(".")[0] != found[0].rpartition(".")[0]
    }


def shared_prefixes() -> dict[str, set[str]]:
    """The folders in which more than two modules begin with the same word."""
    found = {}
    for folder in {path.parent for path in SOURCES.rglob("*.py")}:
        stems = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
        words = Counter(stem.lstrip("_").removesuffix("_cy").split("_")[0] for stem in stems)
        common = {word for word, count in words.items() if count > 2}
        if common:
            found[folder.relative_to(SOURCES).as_posix()] = common
    return found


def private_uses() -> list[str]:
    """Where a module uses a private name that it does not have itself: `queue._lock` outside of the queue's module."""
    found = []
    for module, tree in trees().items():
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        own |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        }
        for node in ast.walk(tree):
            if (
                not isinstance(node, ast.Attribute)
                or not node.attr.startswith("_")
                or node.attr.startswith("__")
            ):
                continue
            if node.attr not in own | NOT_PRIVATE:
                found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_a_class_has_one_file() -> None:
    assert {base.removeprefix("penstock.") for base in only_children()} == STILL_IN_TWO


def test_a_prefix_is_a_folder() -> None:
    assert shared_prefixes() == STILL_A_PREFIX


def test_private_names_stay_in_their_module() -> None:
    assert private_uses() == []


def test_test_modules_do_not_import_each_other() -> None:
    """What pytest collects, and a conftest, is imported by nobody."""
    wrong = re.compile(r"^ *(?:from|import) .*?(?:import \([^)]*)?\b(?:conftest|test_\w+)\b", re.MULTILINE)
    assert wrong.search("from x import (\n    y,\n    test_z,\n)\n")
    texts = {path.relative_to(TESTS): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    assert {path: found for path, text in texts.items() if (found := wrong.findall(text))} == {}


def test_no_module_of_the_tests_is_longer_than_a_thousand_lines() -> None:
    lengths = {
        path.relative_to(TESTS).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in TESTS.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_TEST} == {}


def test_no_module_is_too_long() -> None:
    sizes = {
        path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in SOURCES.rglob("*.py")
    }
    assert {path: size for path, size in sizes.items() if size > MOST_LINES} == {}


def test_no_folder_of_the_producer_has_too_many_modules() -> None:
    files = (SOURCES / "penstock" / "producer").rglob("*.py")
    counts = Counter(path.parent.name for path in files if path.stem != "__init__")
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_a_producer_is_made_of_few_files() -> None:
    folders = [SOURCES / "penstock" / name for name in ("producer", "network", "protocol")]
    files = [path for folder in folders for suffix in ("*.py", "*.pxd") for path in folder.rglob(suffix)]
    assert len(files) <= MOST_FILES


def test_a_record_passes_few_modules() -> None:
    """Its way in plain Python, as `bench/walk.py` follows it; the modules are those of compiled code."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-m", "bench.walk"],
        cwd=ROOT,
        env=inherited | {"PENSTOCK_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    passed = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"penstock.producer.send._send_cy", "penstock.producer.io._outcomes_cy"} < passed
    modules = (passed - IN_PLAIN_PYTHON) | OF_THE_NETWORK
    assert len(modules) <= MOST_ON_THE_WAY, "\n".join(sorted(modules))
