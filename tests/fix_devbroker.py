# SPDX-License-Identifier: Apache-2.0
"""A machine that has neither Java nor Kafka, and clusters on it all the same."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.devbroker.releases import fetch


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for Java and Kafka in place; returns the folder whose files tell it what to do."""
    folder = tmp_path / "java" / "bin"
    folder.mkdir(parents=True)
    source = (Path(__file__).parent / "devbroker" / "fake_java.py").read_text(encoding="utf-8")
    (folder / "java").write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
    (folder / "java").chmod(0o755)
    jars = tmp_path / "home" / fetch.KAFKA.folder
    jars.mkdir(parents=True)
    names = [wanted.file_name for wanted in fetch.KAFKA.dependencies]
    for name in names:
        (jars / name).touch()
    empty = dict.fromkeys(names, hashlib.sha256(b"").hexdigest())
    monkeypatch.setattr(fetch, "KAFKA", replace(fetch.KAFKA, sha256=empty))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return folder
