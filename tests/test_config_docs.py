# SPDX-License-Identifier: Apache-2.0
"""The page of options is the one that the table of options gives."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from penstock.cli.main import build_parser
from penstock.cli.options import producer_config
from penstock.config.config import ProducerConfig
from penstock.config.keys import KEYS
from penstock.config.names import ALIASES
from penstock.config.security_keys import REFUSED, SPELLINGS
from penstock.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
GENERATOR = ROOT / "tools" / "gen_config_docs.py"


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


def test_a_keyword_hides_no_line_of_a_file(tmp_path):
    """What the page says about the order, and the other way round: the same value twice is no contradiction."""
    path = tmp_path / "producer.properties"
    path.write_text("bootstrap.servers=localhost:9092\nlinger.ms=20\n", encoding="utf-8")
    assert ProducerConfig.from_user(path, {"linger_ms": 20, "acks": "1"}).linger_ms == 20
    with pytest.raises(ConfigError, match=r"linger\.ms"):
        ProducerConfig.from_user(path, {"linger_ms": 30})


def test_the_command_line_wins_over_the_file_and_that_over_the_default(tmp_path, monkeypatch):
    path = tmp_path / "producer.properties"
    path.write_text("bootstrap.servers=file:1\nlinger.ms=${env:LINGER}\nacks=1\n", encoding="utf-8")
    monkeypatch.setenv("LINGER", "20")
    words = [
        "produce",
        "orders",
        "--config",
        str(path),
        "-X",
        "acks=0",
        "-X",
        "bootstrap.servers=x:1",
        "-b",
        "b:1",
    ]
    config = ProducerConfig.from_user(producer_config(build_parser().parse_args(words)))
    assert (config.bootstrap_servers, config.acks, config.linger_ms) == (("b:1",), 0, 20)
    assert config.batch_size == KEYS["batch.size"].default


def test_the_variables_that_the_page_names_are_those_of_the_code(generator):
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    code += (ROOT / "setup.py").read_text(encoding="utf-8")
    named = re.findall(r"PENSTOCK_[A-Z_]+", generator.render())
    assert len(named) >= 6
    assert [name for name in named if f'"{name}"' not in code] == []


def test_every_option_is_explained_in_sentences():
    assert [key.name for key in KEYS.values() if not key.doc.endswith(".")] == []
