# SPDX-License-Identifier: Apache-2.0
"""The code on a page of the documentation, block by block, and how a reader would run it.

A page is read from top to bottom. A block of Python is a program of its own, unless the paragraph above it names a file
(`station.py`): then it is that file, in the folder where the page's other files are. A block of `text` right behind a
block of Python is what it prints; `...` stands for whatever differs. `localhost:9092` is a fake cluster.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ADDRESS = "localhost:9092"
_BLOCK = re.compile(r"^( *)(`{3,})([\w{}-]*)[^\n]*\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(\w+\.(?:py|properties))`")


@dataclass
class Snippet:
    """One block of code.

    Attributes:
        line: where it begins on the page.
        file: the file that the paragraph above names, or None.
        prints: what the page says it prints, or None.
    """

    page: Path
    line: int
    language: str
    code: str
    file: str | None = None
    prints: str | None = None

    @property
    def is_test(self) -> bool:
        """Whether pytest runs it."""
        return self.language == "python" and "def test_" in self.code

    @property
    def needs_java(self) -> bool:
        """Whether it starts a real Kafka, or Spark."""
        return "real_kafka" in self.code or "run_pipeline" in self.code

    def __str__(self) -> str:
        return f"{self.page.relative_to(DOCS).as_posix()}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Snippet] = []
    behind = 0
    for match in _BLOCK.finditer(text):
        between = text[behind : match.start()].strip()
        behind = match.end()
        language, code = match[3], match[4]
        if match[1]:
            code = re.sub(rf"^{match[1]}", "", code, flags=re.MULTILINE)
        if language == "text" and found and found[-1].language == "python" and found[-1].prints is None:
            found[-1].prints = code
            continue
        named = _FILE.findall(between.rpartition("\n\n")[2])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Snippet(page, line, language, code, named[-1] if named else None))
    return found


def run(snippet: Snippet, folder: Path, address: str) -> str:
    """Run a block of Python as a program, in this process; what it prints.

    Raises:
        AssertionError: it fails.
    """
    path = _write(snippet, snippet.file or f"line_{snippet.line}.py", folder, address)
    printed = io.StringIO()
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed), _log_as_before():
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{snippet}: {error!r}") from error
    return printed.getvalue()


@contextlib.contextmanager
def _log_as_before() -> Iterator[None]:
    """What a program says of the log is forgotten afterwards: the tests after it want theirs."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("penstock", "penstock.network"))]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    try:
        yield
    finally:
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers[:] = handlers


def run_tests(tests: Sequence[Snippet], folder: Path, *options: str) -> str:
    """Run blocks that are tests, with pytest in a process of its own, as in a user's project; what it prints.

    Raises:
        AssertionError: one of them fails.
    """
    names = [_write(each, each.file or f"test_line_{each.line}.py", folder, ADDRESS).name for each in tests]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--strict-markers", "-W", "error"),
            *("-p", "pytest_penstock", "-p", "no:cacheprovider", *_plugins(tests), *options, *names),
        ],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{tests[0]}:\n{done.stdout}{done.stderr}"
    return done.stdout


def _plugins(tests: Sequence[Snippet]) -> Sequence[str]:
    """Plugins of others that the tests are written for."""
    return ("-p", "pytest_asyncio") if any("mark.asyncio" in each.code for each in tests) else ()


def _write(snippet: Snippet, name: str, folder: Path, address: str) -> Path:
    path = folder / name
    path.write_text(snippet.code.replace(ADDRESS, address), encoding="utf-8")
    return path


def as_pattern(shown: str) -> re.Pattern[str]:
    """What a page shows as output: `...` is anything, and a line may be broken anywhere."""
    words = re.split(r"(\s+|\.\.\.)", shown.strip())
    return re.compile(
        "".join(
            ".*?" if word == "..." else r"\s+" if word.isspace() else re.escape(word)
            for word in words
            if word
        ),
        re.DOTALL,
    )
