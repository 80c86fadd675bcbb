# SPDX-License-Identifier: Apache-2.0
"""Keeps a connected client from one call to the next: connecting costs more than all that a batch asks of the brokers.

Between calls a client does nothing. A connection that brokers have closed meanwhile is noticed when it is next used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from penstock._locks import new_lock
from penstock.control.client import ControlClient

# Clusters with a client that waits; a process has to do with one, rarely with two.
MAX_IDLE: Final = 4


class IdleClients:
    """Clients of one process that nobody uses at the moment. Safe for several threads."""

    def __init__(self) -> None:
        self._lock: Any = new_lock()
        # Guarded by the lock. A child made by a fork forgets its parent's, whose connections are not its own.
        self._pid = os.getpid()
        self._idle: dict[str, ControlClient] = {}

    @contextmanager
    def borrow(self, config: Mapping[str, Any]) -> Iterator[ControlClient]:
        """A client with these options: one that waited, or a new one. It waits again, unless there was an error."""
        name = repr(sorted((str(key), str(value)) for key, value in config.items()))
        client = self._take(name) or ControlClient(config)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._give_back(name, client)

    def close(self) -> None:
        """Close those that wait."""
        with self._lock:
            idle, self._idle = self._idle, {}
            ours = self._pid == os.getpid()
        for client in idle.values() if ours else ():
            client.close()

    def _take(self, name: str) -> ControlClient | None:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._idle = os.getpid(), {}
            return self._idle.pop(name, None)

    def _give_back(self, name: str, client: ControlClient) -> None:
        with self._lock:
            surplus = self._idle.pop(name, None)
            if surplus is None and len(self._idle) >= MAX_IDLE:
                surplus = self._idle.pop(next(iter(self._idle)))
            self._idle[name] = client
        if surplus is not None:
            surplus.close()
