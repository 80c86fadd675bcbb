# SPDX-License-Identifier: Apache-2.0
"""The last events: of the log, without a change to what others see of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.watching.glass_box.events import KEPT, Events


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of its own that hands nothing on."""
    logger = logging.getLogger("penstock.of-a-test")
    logger.propagate = False
    yield logger
    logger.propagate = True
    logger.handlers.clear()


def test_warnings_of_the_log_are_kept_on_one_line_and_others_are_not(logger: logging.Logger) -> None:
    events = Events()
    logger.addHandler(events)
    logger.addHandler(logging.NullHandler())
    logger.warning("a batch\nfor %s", "t")
    logger.error("worse")
    logger.info("not worth it")
    assert [(event["tone"], event["text"]) for event in events.latest()] == [
        ("bad", "worse"),
        ("warn", "a batch for t"),
    ]


def test_the_last_ones_are_kept_and_long_ones_cut() -> None:
    events = Events()
    for number in range(KEPT + 5):
        events.add("quiet", f"{number} " + "x" * 1000)
    assert len(events.latest()) == KEPT
    assert all(len(event["text"]) < 700 for event in events.latest())


def test_a_program_without_logging_still_sees_warnings_once(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    last_resort = logging.Handler(logging.WARNING)
    monkeypatch.setattr(last_resort, "emit", lambda record: shown.append(record.getMessage()))
    monkeypatch.setattr(logging, "lastResort", last_resort)
    logger.handlers.clear()  # those of the tests
    for _ in range(2):  # two pages
        logger.addHandler(Events())
    logger.warning("on standard error")
    assert shown == ["on standard error"]
    logger.addHandler(logging.NullHandler())
    logger.warning("for the handler alone")
    assert shown == ["on standard error"]
