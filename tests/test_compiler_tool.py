# SPDX-License-Identifier: Apache-2.0
"""`tools/compiler.py` says before a long compilation that it cannot succeed, and which package helps."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("/nowhere/gcc -pthread", "there is no C compiler (/nowhere/gcc; Debian's package gcc)\n"),
        (
            "false",
            "false cannot compile Python's headers (Debian's packages python3-dev and libc6-dev)\n",
        ),
        ("true", ""),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiler: str, said: str
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import compiler as tool

    monkeypatch.setenv("CC", compiler)
    assert tool.main() == (1 if said else 0)
    assert capsys.readouterr().out == said
