# SPDX-License-Identifier: Apache-2.0
"""Writes how each test of a run ended into a file, as it ends: a run that dies leaves what it has done.

PENSTOCK_TEST_RESULTS names the folder, PENSTOCK_TEST_RUN the run; tools/test_results.py reads the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

import pytest

from penstock import _compiled


def pytest_configure(config: pytest.Config) -> None:
    # Taken out: a test that runs pytest must not write there too.
    folder = os.environ.pop("PENSTOCK_TEST_RESULTS", None)
    if folder is not None and not config.getoption("collectonly"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder, os.environ.get("PENSTOCK_TEST_RUN") or f"pytest-{os.getpid()}")
        config.pluginmanager.register(_Results(path.with_suffix(".jsonl").open("w", buffering=1)))


class _Results:
    """One line of JSON for each event."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def _write(self, event: str, value: Any) -> None:
        self._file.write(json.dumps({event: value}) + "\n")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._write("seed", session.config.getoption("randomly_seed", None))
        self._write("implementation", _compiled.implementation())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("started", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or (report.when == "call" and report.passed):
            self._write(report.outcome, report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write("ended", nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write("exit", int(exitstatus))
        self._file.close()
