# SPDX-License-Identifier: Apache-2.0
"""What can be said of the documentation site without building it; `make docs` builds it, and a warning is an error."""

from __future__ import annotations

import ast
import json
import re
import runpy
from types import SimpleNamespace

import pytest
from fix_patience import why_it_waited
from fix_snippets import DOCS, ROOT

from penstock import AsyncProducer, Producer, errors
from penstock.cli.main import build_parser
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError
from penstock.testing import FakeKafka, MockProducer

PAGES = sorted(path.relative_to(DOCS).as_posix().removesuffix(".md") for path in DOCS.rglob("*.md"))
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A text that has backticks itself stands between two of them on each side.
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def listed() -> list[str]:
    """The pages that a table of contents has."""
    found = []
    for page in DOCS.rglob("*.md"):
        for body in _TOCTREE.findall(page.read_text(encoding="utf-8")):
            names = [line for line in body.splitlines() if line and not line.startswith(":")]
            found += [(page.parent / name).relative_to(DOCS).as_posix() for name in names]
    return found


def test_every_page_is_in_one_table_of_contents() -> None:
    assert sorted(listed()) == [page for page in PAGES if page != "index"]


# ---- the page of the changelog


def test_the_page_of_the_changelog_has_its_whole_text_and_links_that_lead_somewhere() -> None:
    read = runpy.run_path(str(DOCS / "_site" / "links_to_the_top.py"))["_read"]
    content = [(DOCS / "changelog.md").read_text(encoding="utf-8")]
    read(SimpleNamespace(srcdir=str(DOCS), env=SimpleNamespace(note_dependency=str)), "changelog", content)
    whole = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    text = re.compile(r"\]\([^)]*\)")  # but for the targets of links
    assert text.sub("", content[0]) == text.sub("", whole)
    pages = re.findall(r"\]\(([\w/.-]+\.md)(?:#[\w-]*)?\)", content[0])
    assert len(pages) == whole.count("](") > 10
    assert [page for page in pages if not (DOCS / page).is_file()] == []


# ---- the page of error texts


def texts_of_the_code() -> str:
    """Every text that the code has, in lines; where a value is put in, a text ends."""
    found: list[str] = []
    for path in (ROOT / "src").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = (
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        found.extend(re.sub(r"%[rsd]", "\n", text) for text in texts)
    return "\n".join(found)


def shown_texts() -> list[str]:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    headings = [line for line in page.splitlines() if line.startswith("### ")]
    return [text.strip() for line in headings for _, text in _CODE_SPAN.findall(line)]


@pytest.fixture(scope="module")
def code() -> str:
    return texts_of_the_code()


def to_nobody() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200) as producer:
        raise why_it_waited(producer, lambda: producer.send("orders", b"1"))


def text_as_value() -> None:
    MockProducer().send("orders", "text")


def large_value() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka, Producer(kafka.client_options()) as producer:
        producer.send("orders", bytes(2_000_000))


def forgotten() -> None:
    with FakeKafka(topics={"orders": 1}) as kafka:
        producer = AsyncProducer(kafka.client_options())
        with pytest.warns(ResourceWarning) as caught:
            del producer
    raise KafkaError("; ".join(str(each.message) for each in caught))


# Texts that are put together: what makes the code say them.
PROVOKED = {
    "cannot connect to bootstrap server ...: connection refused": to_nobody,
    "cannot serialize the value ...: BytesSerializer takes bytes or None, not str": text_as_value,
    "the record for topic ... takes up to ... bytes, more than max.request.size allows": large_value,
    "was forgotten without aclose()": forgotten,
}
# Not ours: Spark and Python say them.
OF_OTHERS = {
    "DATA_SOURCE_NOT_FOUND",
    "UNSUPPORTED_DATA_SOURCE_SAVE_MODE",
    "cannot import name 'KafkaError' from 'penstock'",
    "send() takes ... positional arguments",
    "object of type 'Producer' has no len()",
    "'str' object has no attribute 'code'",
    "cannot import name 'Consumer' from 'penstock'",
    "was never awaited",
    "'coroutine' object has no attribute 'result'",
}


@pytest.mark.parametrize("text", PROVOKED)
def test_an_error_text_is_the_one_that_is_raised(text: str) -> None:
    assert text in shown_texts()
    with pytest.raises(KafkaError) as caught:
        PROVOKED[text]()
    assert re.search(".*".join(map(re.escape, text.split("..."))), str(caught.value))


@pytest.mark.parametrize("text", sorted(set(shown_texts()) - OF_OTHERS - set(PROVOKED)))
def test_an_error_text_is_one_that_the_code_has(text: str, code: str) -> None:
    if re.fullmatch(r"\w+Error", text):
        assert hasattr(errors, text)
    elif re.fullmatch("[A-Z_]+", text):
        assert text in ErrorCode.__members__
    else:
        parts = [part.strip(" :") for part in re.split(r"\.\.\.|'\w+'", text)]
        assert any(parts)
        assert [part for part in parts if part and part not in code] == []


# ---- the reference


def test_every_public_class_and_function_is_in_the_reference() -> None:
    public: dict[str, list[str]] = json.loads(
        (ROOT / "tests/golden/public_names.json").read_text(encoding="utf-8")
    )
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    left_out = {"as_serializer", "serialize_part", "Session", "Refused", "Code", "__version__", "errors",
                "partitioners", "serializers"}  # fmt: skip
    modules = ["penstock", "penstock.serializers", "penstock.partitioners", "penstock.testing"]
    modules += [name for name in public if name.startswith("penstock.watching")]
    assert len(modules) > 4
    for module in modules:
        missing = [name for name in public[module] if not re.search(rf":: (penstock\.\w+\.)?{name}\b", pages)]
        assert set(missing) <= left_out, module
    assert "automodule:: penstock.errors" in pages
    assert "automodule:: penstock.control" in pages


def test_every_command_has_its_help_in_the_reference() -> None:
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (\w+) ", build_parser().format_help(), re.MULTILINE)
    assert len(commands) > 4
    assert [name for name in commands if f"{{command-help}} {name}\n" not in page] == []
