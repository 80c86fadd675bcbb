# SPDX-License-Identifier: Apache-2.0
"""What the page on asyncio shows works: every example is run, in asyncio's debug mode."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from penstock.testing import FakeKafka

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "asyncio.md").read_text(encoding="utf-8")
ADDRESS = "localhost:9092"
TOPICS = {"orders": 3, "readings": 1, "events": 2, "invoices": 1, "stock": 1}


def examples() -> dict[str, str]:
    """By the heading that it is below; of several below one, with a number."""
    found: dict[str, str] = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks, 1):
            found[f"{title} {number}" if len(blocks) > 1 else title] = block
    return found


EXAMPLES = examples()
FORKS = "Recipes: FastAPI, Django, Celery"
# What each leaves in the topics, and a pattern of what it prints.
OUTCOMES = {
    "Start": ({"orders": 1}, r"partition \d, offset 0\n"),
    "Sending and awaiting": ({"readings": 1000}, r"1000 records, the last at offset 999\n"),
    "Cancellation and time-outs": ({"orders": 1}, r"(not known yet\n)?offset 0\n"),
    "Callbacks": ({"readings": 100}, r"0 records failed\n"),
    "Many records, and tables": ({"readings": 3, "orders": 3000}, r"3 and 3000 records\n"),
    "Transactions": ({"invoices": 1, "stock": 1}, ""),
    "Several loops, and threads": ({"readings": 3}, ""),
    "Shut-down": ({"events": 1}, ""),
    "uvloop, trio and anyio 1": ({"orders": 1}, ""),
    "uvloop, trio and anyio 2": ({"orders": 1}, ""),
    "uvloop, trio and anyio 3": ({"orders": 6}, ""),
}
IN_OTHER_TESTS = {"Back-pressure", "Testing 1", "Testing 2", FORKS}


def records(kafka: FakeKafka) -> dict[str, int]:
    """How many records a reader of committed ones finds, by topic."""
    counts = {topic: len(kafka.records(topic)) for topic in TOPICS}
    return {topic: count for topic, count in counts.items() if count}


def run_example(title: str, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "run", partial(asyncio.run, debug=True))
    source = EXAMPLES[title].replace(ADDRESS, kafka.bootstrap_servers)
    exec(compile(source, f"asyncio.md, {title}", "exec"), {})


def test_no_example_is_forgotten() -> None:
    assert OUTCOMES.keys() | IN_OTHER_TESTS == EXAMPLES.keys()
    assert all(ADDRESS in EXAMPLES[title] for title in OUTCOMES)


@pytest.mark.parametrize("title", OUTCOMES)
def test_examples_deliver(
    title: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delivered, printed = OUTCOMES[title]
    with FakeKafka(topics=TOPICS) as kafka:
        run_example(title, kafka, monkeypatch)
        assert records(kafka) == delivered
    said = capsys.readouterr()
    assert re.fullmatch(printed, said.out)
    assert said.err == ""


def test_what_is_dropped_and_what_is_accepted_are_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeKafka(topics=TOPICS) as kafka:
        run_example("Back-pressure", kafka, monkeypatch)
        arrived = records(kafka)["events"]
    assert capsys.readouterr().out == f"{arrived} page views were accepted\n"
    assert 0 < arrived < 10_000  # 64 kB do not hold them all


def test_a_child_has_a_producer_of_its_own() -> None:
    with FakeKafka(topics=TOPICS) as kafka:
        source = EXAMPLES[FORKS].replace(ADDRESS, kafka.bootstrap_servers)
        # Python 3.12 and later warn of every fork beside a thread, as the page says.
        command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        values = sorted(record.value or b"" for record in kafka.records("orders"))
    assert values == [b"from the child", b"from the parent", b"from the parent, again"]


@pytest.mark.slow
@pytest.mark.parametrize("title", ["Testing 1", "Testing 2"])
def test_the_tests_that_are_shown_run_as_in_a_users_project(tmp_path: Path, title: str) -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    if title == "Testing 1":  # without a producer that tests share
        settings = settings.replace("session", "function")
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "test_shown.py").write_text(EXAMPLES[title], encoding="utf-8")
    printed = run_as_a_user(tmp_path)
    assert "2 passed" in printed, printed


def run_as_a_user(folder: Path, *options: str) -> str:
    """Run the tests of a folder as in a user's project; what pytest prints."""
    plugins = [*("-p", "pytest_penstock"), *("-p", "pytest_asyncio.plugin"), *("-p", "no:cacheprovider")]
    settings = ["-o", "asyncio_debug=true", *options]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-W", "error", *plugins, *settings, "."],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout + done.stderr
