# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

from penstock.devbroker.releases.fetch import ProgressLine, progress_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text() -> None:
    assert (
        progress_text("Fetching", jars=12, megabytes=8.26, seconds=10.4) == "Fetching: 12 jars, 8.3 MB, 10 s"
    )
    assert progress_text("F", jars=1, megabytes=0, seconds=0, note="x") == "F: 1 jar, 0.0 MB, 0 s, x"


def test_a_terminal_gets_one_line_that_is_written_over() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line.update("a longer text", now=1.0)
    line.update("too soon", now=1.01)
    line.update("short", now=2.0)
    line.finish("done")
    assert stream.getvalue() == "\ra longer text\rshort        \rdone \n"


def test_a_file_gets_a_plain_line_now_and_then() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    for second in range(12):
        line.update(f"at {second}", now=100.0 + second)
    line.finish("done")
    assert stream.getvalue() == "at 0\nat 5\nat 10\ndone\n"
