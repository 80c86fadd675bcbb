# SPDX-License-Identifier: Apache-2.0
"""The blocking calls of a driver: prepare a batch, commit it, abort it. Each may be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.control.client import ControlClient
from penstock.sink.driver_identity import DriverIdentity
from penstock.sink.messages import Message
from penstock.sink.plan import BatchPlan
from penstock.sink.reports import CommitReport
from penstock.sink.settings import SinkSettings


def prepare(
    settings: SinkSettings, driver: DriverIdentity | None = None, *, client: ControlClient | None = None
) -> BatchPlan:
    """Take the sink over if need be, finish what was decided, and make a plan for one execution of a batch."""
    raise NotImplementedError


def commit(
    settings: SinkSettings,
    messages: Sequence[Message | None],
    batch_id: int = 0,
    *,
    client: ControlClient | None = None,
) -> CommitReport:
    """Decide a batch, and make it visible."""
    raise NotImplementedError


def abort(
    settings: SinkSettings,
    messages: Sequence[Message | None],
    batch_id: int = 0,
    *,
    client: ControlClient | None = None,
) -> None:
    """Give a batch up, unless it is decided."""
    raise NotImplementedError
