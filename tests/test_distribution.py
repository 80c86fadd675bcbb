# SPDX-License-Identifier: Apache-2.0
"""What is installed is called penstock-kafka: on PyPI, penstock is another project. What is imported is penstock."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from penstock._extras import how_to_install

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(path for folder in ("src", "tools", "examples", "bench") for path in (ROOT / folder).rglob("*.py")),
    ROOT / "pyproject.toml",
    ROOT / "Makefile",
]
# `penstock[spark]`, or penstock among the arguments of `pip install`, as a word of its own.
WRONG_NAME = re.compile(
    r"\bpenstock\[[a-z,]+\]|pip install (?:[^`#\n]*[ '\"])?penstock(?![\w-])|[\"'`]penstock [<>=]=?"
)


def test_the_distribution_has_a_name_that_is_free() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "penstock-kafka"


def test_no_text_tells_to_install_the_other_project() -> None:
    assert [path for path in TEXTS if WRONG_NAME.search(path.read_text(encoding="utf-8"))] == []


def test_no_error_names_a_package_that_is_not_published() -> None:
    """Until there is a release, `penstock._extras` says how an extra is installed."""
    sources = (ROOT / "src").rglob("*.py")
    assert [path.name for path in sources if "penstock-kafka[" in path.read_text(encoding="utf-8")] == []


def test_an_extra_is_installed_from_a_checkout_or_by_its_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for path in (ROOT / "src").rglob("*.py"):
        for arguments in re.findall(r"how_to_install\(([\"'].*?)\)", path.read_text(encoding="utf-8")):
            extra, *packages = re.findall(r"[\"']([\w-]+)[\"']", arguments)
            assert packages == [name.partition(">")[0] for name in extras[extra]], path
    assert how_to_install("spark", "pyspark", "pyarrow") == (
        "pip install pyspark pyarrow, or in a checkout of Penstock: pip install '.[spark]'"
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install -U penstock pyarrow", True),
        ("penstock[cli,spark]", True),
        ("'penstock >= 1'", True),
        ("pip install 'penstock-kafka[spark]' # then: import penstock", False),
    ],
)
def test_the_other_project_is_recognised(text: str, wrong: bool) -> None:
    assert bool(WRONG_NAME.search(text)) == wrong


def test_every_extra_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-install` installs each, but for those that serve development."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import try_install

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys()
    assert try_install.USES.keys() | try_install.DEVELOPMENT == extras
    assert not try_install.USES.keys() & try_install.DEVELOPMENT
