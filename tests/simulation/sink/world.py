# SPDX-License-Identifier: Apache-2.0
"""The network of many simulated processes: the links of `simulation.wire`, with a selector for each client."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from fix_network import MemorySelector, VirtualClock

from penstock.protocol.messages import INIT_PRODUCER_ID, PRODUCE
from penstock.testing.cluster import FakeCluster
from simulation.late import LateRequest, LateRequests
from simulation.wire import Link, World

NO_API = -1
_OF_TASK = re.compile(rb"ps\.[0-9a-f]{16}\.[0-9]")
Wait = Callable[[Callable[[], bool], float], None]


class AnyRequest(LateRequests):
    """Every request of a dead connection may arrive late: that its transactions bear it is the sink's promise.

    The one exception is no client's to mend: before Kafka 3.6 a late batch of a transaction that was aborted opens it
    again, and nothing ever ends it.
    """

    def is_lost(self, late: LateRequest) -> bool:
        return late.api_key == PRODUCE.key and super().is_lost(late)


class SinkLink(Link):
    """A connection that can be cut the moment a request of one kind is on its way: it may arrive, and late."""

    def _depart(self, frame: bytes) -> None:
        super()._depart(frame)
        world = self.world
        assert isinstance(world, SinkWorld)
        api = int.from_bytes(frame[4:6], "big")
        if api == world.cut_on:
            world.cut_on = NO_API
            world.after(0.0, world.cut, self)
        elif api == INIT_PRODUCER_ID.key and _OF_TASK.search(frame) and world.rng.random() < world.lost_inits:
            world.after(0.0, world.cut, self)


class SinkWorld(World):
    """The network and the brokers.

    Attributes:
        lost_inits: how many of the tasks' InitProducerId have no answer, because their connection is cut.
        cut_on: the next connection on which a request with this API key is sent will be cut.
    """

    link_type = SinkLink

    def __init__(self, cluster: FakeCluster, clock: VirtualClock, rng: random.Random) -> None:
        super().__init__(cluster, clock, rng, AnyRequest(cluster))
        self.selectors: list[Sockets] = []
        self.cut_on = NO_API
        self.lost_inits = 0.0

    def is_any_ready(self) -> bool:
        return any(sockets.is_any_ready() for sockets in self.selectors)


class Sockets(MemorySelector):
    """The selector of one client.

    Args:
        wait: lets others run; see `Stage.wait_for`.
    """

    def __init__(self, world: SinkWorld, wait: Wait) -> None:
        super().__init__()
        self._world = world
        self._wait = wait
        self._woken = False
        world.selectors.append(self)

    def wakeup(self) -> None:
        self._woken = True

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        if timeout > 0 and not self._woken:
            self._wait(self.is_any_ready, timeout)
        self._woken = False
        return self.ready()

    def close(self) -> None:
        """Nobody waits here any more."""
        self._watched.clear()
        if self in self._world.selectors:
            self._world.selectors.remove(self)
