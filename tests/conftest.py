# SPDX-License-Identifier: Apache-2.0
"""What every test run shares: the report header, and the guard that the implementation meant is the one that runs."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock import _compiled, _events
from penstock.devbroker.settings import KAFKA_VERSION
from penstock.producer import lifecycle

# How long it takes to make or to try an example says nothing on a busy machine; what hangs is ended by the time-out of
# its test.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

JAVA_MARKERS = ("broker", "spark")

# A close that was forced waits so long for the I/O thread, and then warns. On a busy machine that is not much.
lifecycle.FORCED_END_SECONDS = 60.0

# Fixtures live in files by topic.
pytest_plugins = [
    "quick_java",
    "run_results",
    "fix_broker",
    "fix_devbroker",
    "fix_secrets",
    "fix_security",
    "fix_spark",
]


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts this in the background lets it ignore Ctrl-C, and all that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A run that was meant to be compiled and is not would pass and prove nothing, so it does not start.
    expected = os.environ.get("PENSTOCK_EXPECT")
    if expected and expected != (running := _compiled.implementation()):
        raise pytest.UsageError(
            f"this run expects the {expected} implementation, but {running} is what is there"
        )


def pytest_itemcollected(item: pytest.Item) -> None:
    # The Makefile finds the files of these tests by the text; what it does not find would never run.
    for name in JAVA_MARKERS:
        if item.get_closest_marker(name) is not None and f"mark.{name}" not in _text(item.path):
            raise pytest.UsageError(f"{item.nodeid} has the marker {name!r}, but its file does not name it")


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def pytest_collection_finish() -> None:
    # Some ten thousand tests are held until the end: the garbage collector need not look at them again and again.
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    # Some tests do the work of an I/O thread: what the next one logs is not that producer's, which has told it already.
    _events.work_for(None)
    # A driver knows clusters by their addresses, and a fake cluster may get the port of an earlier one.
    for name in ("penstock.sink.driver", "penstock.sink.task", "penstock.spark.cluster_check"):
        if name in sys.modules:
            sys.modules[name].forget_clusters()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_report_header() -> list[str]:
    lines = [f"penstock: {_compiled.describe()}; Apache Kafka {KAFKA_VERSION} for the broker tests"]
    stale = _compiled.stale_extensions()
    if stale and not _compiled.pure_wanted():
        lines.append(f"penstock: OUT OF DATE, older than the source: {', '.join(stale)}; run `make build`")
    return lines
