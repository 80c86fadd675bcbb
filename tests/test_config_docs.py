# SPDX-License-Identifier: Apache-2.0
"""The page of options is the one that the table of options gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from penstock.config.keys import KEYS
from penstock.config.names import ALIASES
from penstock.config.security_keys import REFUSED, SPELLINGS

GENERATOR = Path(__file__).resolve().parent.parent / "tools" / "gen_config_docs.py"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("gen_config_docs", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator):
    assert generator.PAGE.read_text(encoding="utf-8") == generator.render(), (
        "docs/config.md does not say what the table of options says: run `make docs`"
    )


def test_the_page_has_every_option(generator):
    page = generator.render()
    missing = [
        key.name
        for key in KEYS.values()
        if f"### {key.name}\n" not in page and f"| `{key.name}` |" not in page
    ]
    assert missing == []
    assert [name for name in (*ALIASES, *SPELLINGS, *REFUSED) if f"`{name}`" not in page] == []


def test_every_option_is_explained_in_sentences():
    assert [key.name for key in KEYS.values() if not key.doc.endswith(".")] == []
