# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import sys

import pytest

from penstock.cli.progress import NoProgress, PlainProgress, RichProgress, open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_into_a_file() -> None:
    stream = io.StringIO()
    display = open_progress(10, stream)
    display.update(5, "half")
    display.finish()
    assert isinstance(display, NoProgress)
    assert stream.getvalue() == ""


def test_nothing_is_drawn_unless_wanted() -> None:
    assert isinstance(open_progress(10, Terminal(), wanted=False), NoProgress)


def test_plain_line_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(open_progress(10, Terminal()), PlainProgress)


def test_plain_line_is_rewritten_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    display = PlainProgress(200, stream)
    display.update(50, "a long text that would wrap on a narrow terminal")
    display.update(100, "short")
    display.finish()
    display.finish()
    first, second, blank, end = stream.getvalue().split("\r")[1:]
    assert first == " 25 %  a long text that would"
    assert second.rstrip() == " 50 %  short"
    assert len(second) == len(first)
    assert blank.strip() == ""
    assert end == ""


def test_rich_bar_shows_text_as_it_is() -> None:
    pytest.importorskip("rich")
    stream = Terminal()
    display = open_progress(10, stream)
    display.update(5, "[half] done")
    display.finish()
    display.finish()
    assert isinstance(display, RichProgress)
    assert "[half] done" in stream.getvalue()
