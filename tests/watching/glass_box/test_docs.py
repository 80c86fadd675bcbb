# SPDX-License-Identifier: Apache-2.0
"""The program of the page on the glass box: it can be looked at while it runs, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from fix_patience import SOON, wait_until
from fix_snippets import ADDRESS, DOCS, as_pattern, snippets
from watching.glass_box.support import get

from penstock.testing import FakeKafka

PAGE = DOCS / "glass-box.md"


def test_the_program_shows_its_page_until_ctrl_c(tmp_path: Path) -> None:
    (shown,) = (each for each in snippets(PAGE) if each.language == "python")
    assert shown.file == "shop.py"
    assert shown.prints is not None
    program = tmp_path / shown.file
    with FakeKafka(topics={"orders": 3}) as kafka:
        program.write_text(shown.code.replace(ADDRESS, kafka.bootstrap_servers), encoding="utf-8")
        running = subprocess.Popen(
            [sys.executable, str(program)],
            env={name: value for name, value in os.environ.items() if name != "PENSTOCK_GLASS_BOX"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        guard = threading.Timer(SOON, running.kill)
        guard.start()
        try:
            assert running.stdout is not None
            said = running.stdout.readline()
            assert as_pattern(shown.prints).fullmatch(said.strip()), said
            page = get(said.split()[1], path="")
            wait_until(lambda: kafka.records("orders"))
            running.send_signal(signal.SIGINT)
            rest, errors = running.communicate()
        finally:
            guard.cancel()
            running.kill()
            running.wait()
        assert (page.status, running.returncode, rest, errors) == (200, 0, "the program ends\n", "")
