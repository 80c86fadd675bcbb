# SPDX-License-Identifier: Apache-2.0
"""The last things that happened, in words: warnings of the log, and what changed between two looks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.watching.glass_box.reading import BAD, GOOD, QUIET, WARN

KEPT: Final = 50
_LONGEST_TEXT: Final = 600


class Event(NamedTuple):
    """What happened: when (milliseconds since the epoch), how bad, and the words for it."""

    at_ms: int
    tone: str
    text: str


class Events(logging.Handler):
    """Keeps the last events. As a handler of the log it gets what is logged anyway; it changes no level.

    The log of Penstock has no contents of records; tracebacks are left out.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[Event] = deque(maxlen=KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning or an error of the log."""
        if logging.lastResort is not None and not self._others_hear(record.name):
            # As without this handler: standard error, if nothing is configured.
            logging.lastResort.handle(record)
        try:
            tone = BAD if record.levelno >= logging.ERROR else WARN
            self._add(int(record.created * 1000), tone, record.getMessage())
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)

    def _others_hear(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(not isinstance(handler, Events) for handler in logger.handlers):
                return True
            if logger.handlers and logger.handlers[0] is not self:
                return True  # another page sees to it
            logger = logger.parent if logger.propagate else None
        return False

    def add(self, tone: str, text: str) -> None:
        """Keep something that was seen."""
        self._add(int(time.time() * 1000), tone, text)

    def _add(self, at_ms: int, tone: str, text: str) -> None:
        text = " ".join(text.split())
        self._kept.append(
            Event(at_ms, tone, text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}...")
        )

    def latest(self) -> list[dict[str, Any]]:
        """The events, the newest first."""
        return [event._asdict() for event in reversed(self._kept.copy())]


def changes(client_id: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What is different in a producer since the last look: (tone, words)."""
    known = {broker["id"]: broker for broker in before["brokers"]}
    for broker in now["brokers"]:
        earlier = known.get(broker["id"])
        if earlier is None or _kind(earlier) == _kind(broker):
            continue
        name = "bootstrap server" if broker["id"] < 0 else f"broker {broker['id']} at"
        text = f"{client_id}: {name} {broker['address']}: {broker['state']}"
        if broker["tone"] == BAD or broker["state"] == "gone":
            yield broker["tone"], f"{text}. {broker['text']}"
        elif broker["state"] == "ready":
            yield GOOD if earlier["tone"] == BAD or earlier["state"] == "gone" else QUIET, text
    retrying = {(lane["topic"], lane["partition"]) for lane in before["lanes"] if lane["retries"]}
    for lane in now["lanes"]:
        if lane["retries"] and (lane["topic"], lane["partition"]) not in retrying:
            yield (
                WARN,
                (
                    f"{client_id}: {lane['topic']}-{lane['partition']} is sent again, attempt {lane['attempt']}: "
                    f"{lane['cause']}"
                ),
            )
    waiting = now["memory"]["waiting"]
    if waiting and not before["memory"]["waiting"]:
        yield WARN, f"{client_id}: {now['memory']['waits'][0]['thread']} waits for memory"
    elif not waiting and before["memory"]["waiting"]:
        yield GOOD, f"{client_id}: nobody waits for memory any more"


def _kind(broker: Mapping[str, Any]) -> str:
    """The state without the number in it, which changes each second."""
    if broker["silent_s"] and broker["state"].startswith("no answer"):
        return "no answer"
    # Attempts that follow on each other are one trouble.
    return BAD if broker["tone"] == BAD else str(broker["state"])
