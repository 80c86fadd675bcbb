# SPDX-License-Identifier: Apache-2.0
"""The one exception of the development broker.

It stands apart from the tree in ``penstock.errors``: that one tells what a broker answered or what a producer
could not do, this one tells that a tool on this machine is missing or that a local process did not start.
"""

from __future__ import annotations

from collections.abc import Iterable


class DevBrokerError(RuntimeError):
    """A development broker could not be fetched, started or stopped.

    The message says what happened and what to do about it; where a tool printed something useful, its last
    lines follow.
    """


def with_tail(message: str, lines: Iterable[str], *, limit: int = 25) -> str:
    """Return ``message`` followed by the last ``limit`` non-empty ``lines``, indented."""
    kept = [line.rstrip() for line in lines if line.strip()][-limit:]
    if not kept:
        return f"{message} (it printed nothing)"
    return "\n".join([f"{message}; its last lines:", *(f"    {line}" for line in kept)])
