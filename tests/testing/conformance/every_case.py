# SPDX-License-Identifier: Apache-2.0
"""The cases of all files of dialogues."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from testing.conformance.cases import cases_of

FILES = sorted(path.stem for path in Path(__file__).with_name("dialogues").glob("*.py"))
CASES = [case for name in FILES for case in cases_of(import_module(f"testing.conformance.dialogues.{name}"))]
