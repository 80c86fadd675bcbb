# SPDX-License-Identifier: Apache-2.0
"""What can be said of the documentation site without building it; `make docs` builds it, and a warning is an error."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import runpy
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


@pytest.mark.parametrize("page", ["serializers", "partitioners"])
def test_a_reference_says_what_each_class_does_also_where_it_is_not_built(page: str) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    table = "".join(line for line in text.splitlines() if line.startswith("| `"))
    classes = re.findall(rf"autoclass:: penstock\.{page}\.(\w+)", text)
    assert len(classes) > 4
    assert [name for name in classes if f"`{name}`" not in table] == []


@pytest.mark.parametrize(
    "cls", [Producer, MockProducer, KafkaError, penstock.RecordMetadata, penstock.Delivery]
)
def test_the_reference_leaves_out_names_that_only_other_clients_have(cls: type) -> None:
    skips = runpy.run_path(str(DOCS / "_site" / "docstrings.py"))["skips_member"]
    mine = dict(vars(cls))
    left_out = {
        name for name, member in mine.items() if skips(None, "class", name, member, False, None) is not None
    }
    assert left_out
    assert left_out == {name for name in mine if not hasattr(cls, name)}


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


def test_a_release_begins_with_a_summary() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    lines = newest.split("\n### ")[0].splitlines()
    assert 5 <= sum(line.startswith("- **") for line in lines) <= 8


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


def to_no_name() -> None:
    Producer(bootstrap_servers="no-such-host.invalid:9092")


def after_the_end() -> None:
    producer = MockProducer()
    producer.close()
    producer.send("orders", b"1")


def with_tls(listener: str, **client: str) -> None:
    with FakeKafka(topics={"orders": 1}, security=listener) as kafka:
        options = {"max.block.ms": 20_000, **kafka.client_options(), **client}
        with Producer({name: value for name, value in options.items() if value}) as producer:
            producer.send("orders", b"1").result(20)


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
    "none of the bootstrap.servers can be resolved": to_no_name,
    "the producer is closed": after_the_end,
    "was forgotten without aclose()": forgotten,
    "the peer closed the connection during the TLS handshake": partial(
        with_tls, "PLAINTEXT", **{"security.protocol": "SSL"}
    ),
    "... expects TLS at this port": partial(
        with_tls,
        "SSL",
        **{"security.protocol": "PLAINTEXT", "ssl.truststore.location": "", "ssl.truststore.type": ""},
    ),
    "the broker's certificate ... is not signed by a CA that is trusted here": partial(
        with_tls, "SSL", **{"ssl.truststore.location": "", "ssl.truststore.type": ""}
    ),
    "authentication by ... failed": partial(with_tls, "SASL_PLAINTEXT", **{"sasl.password": "wrong"}),
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


def test_names_that_the_page_says_cannot_be_imported_cannot_be() -> None:
    shown = [text for text in shown_texts() if text.startswith("cannot import name")]
    assert len(shown) == 2
    for text in shown:
        name = text.split("'")[1]
        with pytest.raises(ImportError, match=re.escape(text)):
            exec(f"from penstock import {name}", {})


def test_a_call_that_is_not_awaited_sends_nothing_and_gets_the_texts_of_the_page() -> None:
    never_awaited, no_result = "was never awaited", "'coroutine' object has no attribute 'result'"
    assert {never_awaited, no_result} <= set(shown_texts())
    with FakeKafka(topics={"orders": 1}) as kafka:
        producer = AsyncProducer(kafka.client_options())
        coroutine: Any = producer.send("orders", b"1")
        with pytest.raises(AttributeError, match=re.escape(no_result)):
            coroutine.result()
        coroutine.close()
        coroutine = producer.send("orders", b"2")
        with pytest.warns(RuntimeWarning, match=never_awaited):
            del coroutine
        asyncio.run(producer.aclose())
        assert kafka.records("orders") == []


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (1, "send() takes topic, value and key by position, and nothing else; write headers=..."),
        (2, "send() takes ... positional arguments"),
    ],
)
def test_arguments_by_position_get_the_text_of_the_page(more: int, shown: str) -> None:
    assert shown in shown_texts()
    send: Any = MockProducer().send
    with pytest.raises(TypeError, match=".*".join(map(re.escape, shown.split("...")))):
        send("orders", b"1", b"key", *["header"] * more)


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


# ---- pictures and packages


@pytest.mark.parametrize("name", ["record-way", "lost-answer", "transaction"])
def test_a_drawing_has_words_for_those_who_do_not_see_it_and_no_colour_of_its_own_for_text(name: str) -> None:
    text = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert 'role="img"' in text
    assert re.search(r"<title>.+</title>\n<desc>.{40,}</desc>", text)
    assert "prefers-color-scheme: dark" in text
    assert 'fill="black"' not in text
    assert f"images/{name}.svg" in (DOCS / "delivery.md").read_text(encoding="utf-8")


def test_the_extra_is_pinned_and_not_part_of_dev() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    names = [re.split("[>=<]", each)[0] for each in extras["docs"]]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert [name for name in names if f"\n{name}==" not in pinned] == []
    assert "sphinx" not in " ".join(extras["dev"])
    assert "EXTRAS = " in (tool := (ROOT / "tools" / "pin.py").read_text(encoding="utf-8"))
    assert "docs" in re.findall(r'EXTRAS = "([\w,]+)"', tool)[0].split(",")


def test_the_site_reads_nothing_from_the_network() -> None:
    settings = [*DOCS.glob("*.py"), *(DOCS / "_site").rglob("*.*")]
    texts = "".join(
        path.read_text(encoding="utf-8") for path in settings if path.suffix in {".py", ".css", ".html"}
    )
    assert "intersphinx" not in texts
    assert not re.search(r"https?://(?!www\.w3\.org)", texts)
    assert Path(DOCS / "conf.py").is_file()
