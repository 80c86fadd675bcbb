# SPDX-License-Identifier: Apache-2.0
"""What `penstock recover` stands on: how sinks stand, and rolling forward what anyone has decided."""

from __future__ import annotations

from penstock.control.client import ControlSource
from penstock.sink.reports import CommitReport, SinkState
from penstock.sink.settings import DEFAULT_LOG_TOPIC


def inspect_sinks(
    config: ControlSource, sink_key: str | None = None, *, log_topic: str = DEFAULT_LOG_TOPIC
) -> list[SinkState]:
    """How a sink stands, or all of them; changes nothing."""
    raise NotImplementedError


def roll_forward(
    config: ControlSource, sink_key: str, *, log_topic: str = DEFAULT_LOG_TOPIC, accept_loss: bool = False
) -> CommitReport:
    """Finish what was decided, whoever decided it."""
    raise NotImplementedError
