# SPDX-License-Identifier: Apache-2.0
"""Reads the report of a run of pytest (--junit-xml), for the tools that run it several times and print one table."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path


def read_counts(report: Path) -> tuple[int, int, int]:
    """How many passed, failed (or could not be run) and were skipped; zeros when pytest did not get so far."""
    if not report.exists():
        return 0, 0, 0
    total = failed = skipped = 0
    root = ET.parse(report).getroot()  # noqa: S314 - pytest has just written it
    for suite in root.iter("testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped
