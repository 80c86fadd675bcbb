# SPDX-License-Identifier: Apache-2.0
"""Whatever code the documentation shows is run: here, page by page, or by a test that knows more about the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import fix_other_clients  # noqa: F401  # the import of kafka-python warns, which a program would not see
import pytest
from fix_snippets import ADDRESS, DOCS, ROOT, Snippet, as_pattern, run, run_tests, snippets

from penstock.cli.main import build_parser
from penstock.config.config import ProducerConfig
from penstock.testing import FakeKafka

PAGES = sorted(DOCS.rglob("*.md"))
# Pages whose code has a test of its own, because it needs a real cluster or Spark, or looks deeper.
ELSEWHERE = {
    "arrow.md": "test_arrow_docs.py",
    "asyncio.md": "test_asyncio_docs.py",
    "errors.md": "test_error_docs.py",
    "glass-box.md": "watching/glass_box/test_docs.py",
    "pipeline.md": "spark/pipeline/test_docs.py",
    "security.md": "test_security_docs.py",
    "spark.md": "spark/test_snippets.py",
    "migrate/spark-connector.md": "spark/test_snippets.py",
    "testing.md": "test_testing_docs.py",
    "transactions.md": "integration/test_other_consumers.py",
}
LANGUAGES = {"python", "text", "console", "bash", "sh", "toml", "properties", "mermaid", "json"}


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def programs() -> list[Path]:
    return [
        page
        for page in PAGES
        if name_of(page) not in ELSEWHERE and any(snippet.language == "python" for snippet in snippets(page))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", programs(), ids=name_of)
def test_the_code_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for snippet in snippets(page):
        if snippet.language == "properties" and snippet.file is not None:
            files[snippet.file] = snippet.code
        if snippet.language != "python" or snippet.is_test:
            continue
        with FakeKafka(topics={"orders": 3}) as kafka:
            for name, text in files.items():
                path = tmp_path / name
                path.write_text(text.replace(ADDRESS, kafka.bootstrap_servers), encoding="utf-8")
            printed = run(snippet, tmp_path, kafka.bootstrap_servers)
            assert ADDRESS not in snippet.code or record_count(kafka), f"{snippet} has sent nothing"
        if snippet.prints is not None:
            assert as_pattern(snippet.prints).fullmatch(printed.strip()), f"{snippet} prints\n{printed}"
    tests = [each for each in snippets(page) if each.is_test and not each.needs_java]
    if tests:
        printed = run_tests(tests, tmp_path)
        assert f"{sum(each.code.count('def test_') for each in tests)} passed" in printed
        for shown in (each.prints for each in tests if each.prints is not None):
            assert as_pattern(shown).fullmatch(printed.strip()), printed


def record_count(kafka: FakeKafka) -> int:
    return sum(len(kafka.records(topic.name)) for topic in kafka.cluster.topics)


@pytest.mark.broker
@pytest.mark.slow
def test_tests_that_need_a_real_kafka(tmp_path: Path) -> None:
    tests = [each for page in PAGES for each in snippets(page) if each.is_test and each.needs_java]
    assert f"{len(tests)} passed" in run_tests(tests, tmp_path)


def all_snippets(*languages: str) -> list[Snippet]:
    return [each for page in PAGES for each in snippets(page) if each.language in languages]


@pytest.mark.parametrize(
    "snippet", [each for each in all_snippets("properties") if each.page.name != "security.md"], ids=str
)
def test_properties_are_accepted(snippet: Snippet, tmp_path: Path) -> None:
    path = tmp_path / "producer.properties"
    path.write_text(snippet.code, encoding="utf-8")
    ProducerConfig.from_user(path)


def commands(program: str) -> list[str]:
    found = []
    for snippet in all_snippets("console", "bash", "sh"):
        for line in re.sub(r"\\\n\s*", "", snippet.code).splitlines():
            match = re.search(rf"(?:^|\| |/){program} (.*)$", line.partition("  #")[0].strip())
            if match is not None:
                found.append(match[1])
    return found


@pytest.mark.parametrize("arguments", sorted({line for line in commands("penstock") if line != "--version"}))
def test_commands_are_understood(arguments: str) -> None:
    assert callable(build_parser().parse_args(shlex.split(arguments)).func)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {line.split()[0] for line in commands("make")}
    assert {"bench", "chaos"} <= named
    assert [name for name in named if f"\n{name}:" not in makefile] == []


def test_no_page_has_code_that_nobody_runs() -> None:
    for name, test in ELSEWHERE.items():
        text = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert Path(name).name in text, f"{test} does not read {name}"
        assert (DOCS / name).is_file()
    unknown = {(name_of(each.page), each.language) for page in PAGES for each in snippets(page)
               if each.language not in LANGUAGES and not each.language.startswith("{")}  # fmt: skip
    assert unknown == set()
    assert len(programs()) > 10


def test_code_that_fails_is_found(tmp_path: Path) -> None:
    snippet = Snippet(DOCS / "page.md", 3, "python", "raise SystemExit('broken')")
    with pytest.raises(AssertionError, match=r"page\.md:3"):
        run(snippet, tmp_path, "nowhere:1")


def test_a_test_that_fails_is_found(tmp_path: Path) -> None:
    snippet = Snippet(DOCS / "page.md", 3, "python", "def test_it():\n    assert False\n")
    with pytest.raises(AssertionError, match=r"page\.md:3"):
        run_tests([snippet], tmp_path)
