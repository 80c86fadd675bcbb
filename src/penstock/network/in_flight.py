# SPDX-License-Identifier: Apache-2.0
"""The requests of one connection that wait for their answer, in the order in which they were sent.

A broker answers the requests of one connection in order, so the oldest one is always the next to be answered; the
correlation id only confirms that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import KafkaError
from penstock.network._exchange_cy import Exchange, InFlightRequests

__all__ = ["Exchange", "InFlightRequests", "OnDone"]

# exchange, decoded answer or None, error or None, now
OnDone = Callable[[Exchange, Any, KafkaError | None, float], None]
