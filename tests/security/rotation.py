# SPDX-License-Identifier: Apache-2.0
"""What the tests of replaced credentials share: kinds of producers, a provider of tokens, what was logged."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from security.numbered import Numbered

from penstock.testing import FakeKafka

KINDS: dict[str, dict[str, object]] = {
    "idempotent": {},
    "transactional": {"transactional.id": "x"},
}
# What is logged when a broker has ended a connection, without a word.
_CLOSED = re.compile(r"closed the connection|Connection reset by peer|Broken pipe")
# The end of what is logged when a broker refuses the authentication.
REFUSED = "Penstock retries, and continues when the cause is fixed."


def lines(told: pytest.LogCaptureFixture, level: int, text: str) -> list[str]:
    """What was told at this level or above it, with this text in it; retries of batches aside."""
    records = [record for record in list(told.records) if record.name != "penstock.producer"]
    found = [record.getMessage() for record in records if record.levelno >= level]
    return [line for line in found if text in line]


def check_renewals(stream: Numbered, told: pytest.LogCaptureFixture, at_least: float) -> None:
    """Sessions of two seconds were renewed, nothing was refused, and hardly a connection was lost.

    A renewal begins 0.1 to 0.3 seconds before the end of such a session, behind the requests that are in flight, which
    the broker reads one by one. Where it, or this process, gets no processor for so long, the broker reads one of them
    after the end, and closes the connection. That costs no record, so that it is allowed to happen now and then: one
    connection, or one in ten renewals. It says nothing where it does so. A refusal, a time-out or an answer that is not
    understood is not lateness, and never allowed. How a renewal goes when nothing is late is in
    `tests/network/test_dialogue.py`, in virtual time.
    """
    renewed = stream.metric("successful-reauthentication-total")
    failed = stream.metric("failed-reauthentication-total")
    closed = stream.metric("connection-close-total")  # of which the log has the first few only
    lost = lines(told, logging.INFO, "Connection lost")
    assert renewed >= at_least
    assert failed <= closed <= max(1, renewed // 10)
    assert [line for line in lost if _CLOSED.search(line) is None] == []
    assert lines(told, logging.WARNING, "") == []


def values(kafka: FakeKafka) -> list[bytes | None]:
    """All that is committed, in its order."""
    return [record.value for record in kafka.records("t", 0)]


def replace(place: Path, text: str) -> None:
    """Put another file in the place of this one, in one step."""
    new = place.with_suffix(".new")
    new.write_text(text)
    new.replace(place)


class Provider:
    """Gives tokens that are good for a short time, unless it is down."""

    def __init__(self, seconds: float) -> None:
        self.is_down = False
        self._seconds = seconds

    def __call__(self) -> str:
        if self.is_down:
            raise ConnectionError("the provider of tokens is down")
        now = time.time()
        return unsigned({"sub": "alice", "iat": now, "exp": now + self._seconds})


def unsigned(claims: dict[str, Any]) -> str:
    """A token that only brokers for tests accept."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."
