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

import penstock
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


@pytest.mark.parametrize("cls", [Producer, MockProducer, KafkaError])
def test_the_reference_leaves_out_names_that_only_other_clients_have(cls: type) -> None:
    skips = runpy.run_path(str(DOCS / "_site" / "docstrings.py"))["skips_member"]
    mine = dict(vars(cls))
    left_out = {
        name for name, member in mine.items() if skips(None, "class", name, member, False, None) is not None
    }
    assert left_out == {name for name in mine if not hasattr(cls, name)} != set()


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


def test_there_are_many_texts() -> None:
    assert len(shown_texts()) > 25


# ---- the page on tuning

ADVICE = ROOT / "src" / "penstock" / "watching" / "glass_box" / "advice.py"


def sentences_of_the_code() -> list[str]:
    """What the live page can advise, without the sentence that all is well; `...` where a value is put in."""
    found = []
    for function in ast.parse(ADVICE.read_text(encoding="utf-8")).body:
        if not isinstance(function, ast.FunctionDef) or function.name == "_all_is_well":
            continue
        calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
        texts = (call.args[1] for call in calls if ast.unparse(call.func) == "Advice")
        for text in texts:
            assert isinstance(text, ast.JoinedStr)
            parts = (part.value if isinstance(part, ast.Constant) else "..." for part in text.values)
            found.append("".join(map(str, parts)))
    return found


def advised() -> list[str]:
    page = (DOCS / "tuning.md").read_text(encoding="utf-8")
    table = page.split("| the page says | try |\n|---|---|\n")[1].split("\n\n")[0]
    return [re.findall(r"^\| `([^`]+)` \| .+ \|$", line)[0] for line in table.splitlines()]


@pytest.mark.parametrize("said", advised())
def test_a_sentence_of_advice_is_one_that_the_code_has(said: str) -> None:
    assert [text for text in sentences_of_the_code() if said in text] != []


def test_every_sentence_of_advice_is_explained() -> None:
    rows, sentences = advised(), sentences_of_the_code()
    assert len(sentences) > 10
    assert [text for text in sentences if not any(said in text for said in rows)] == []


# ---- the page on upgrading


def test_names_that_are_no_longer_public_are_gone() -> None:
    page = (
        (DOCS / "upgrading.md").read_text(encoding="utf-8").split("### Methods that are no longer public")[1]
    )
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.split("\n### ")[0], re.MULTILINE)
    assert [name for name, _ in rows] == ["Producer", "Delivery", "BulkDelivery"]
    for name, gone in rows:
        assert [each for each in re.findall(r"`(\w+)`", gone) if hasattr(getattr(penstock, name), each)] == []


def test_what_takes_the_place_of_moved_modules_can_be_imported() -> None:
    page = (DOCS / "upgrading.md").read_text(encoding="utf-8")
    imports = re.findall(r"`(from penstock[\w.]* import [\w, ]+)`", page)
    assert len(imports) >= 4
    for line in imports:
        exec(line, {})


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
