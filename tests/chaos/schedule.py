# SPDX-License-Identifier: Apache-2.0
"""Which fault comes when: three lanes, each a sequence that one seed decides, each a thread of its own.

Brokers go one at a time. Connections break meanwhile, mostly of the other brokers; producers are killed meanwhile. What
a lane does next is drawn from a bag that is filled again when it is empty, so that a short run too has some of each.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.faults import Faults

Fault = Callable[[Faults, random.Random, threading.Event], None]

_PAUSES = {"brokers": (0.5, 2.0), "connections": (1.0, 4.0), "producers": (4.0, 12.0)}
_BAGS: dict[str, Sequence[Fault]] = {
    "brokers": (
        Faults.kill_broker,
        Faults.elect_leaders,
        Faults.kill_coordinator,
        Faults.elect_leaders,
        Faults.pause_broker,
        Faults.elect_leaders,
        Faults.restart_broker,
        Faults.elect_leaders,
    ),
    "connections": (Faults.cut, Faults.half_close, Faults.delay, Faults.stall, Faults.cut, Faults.half_close),
    "producers": (Faults.kill_producer,),
}


@dataclass
class Lane:
    """A thread that makes one kind of fault after the other."""

    name: str
    thread: threading.Thread
    error: BaseException | None = None


class Schedule:
    """All lanes of a run.

    Args:
        faults: what they make.
        seed: decides which.
        haste: brokers and connections get so many times less rest. Not producers: a new one needs time to begin.
    """

    def __init__(self, faults: Faults, seed: int, haste: float = 1.0) -> None:
        self._faults = faults
        self._haste = {"brokers": haste, "connections": haste, "producers": 1.0}
        self._stop = threading.Event()
        self._lanes: list[Lane] = []
        for name in _BAGS:
            rng = random.Random(f"{seed} {name}")
            lane = Lane(name, threading.Thread())
            lane.thread = threading.Thread(
                target=self._run, args=[lane, rng], name=f"chaos-{name}", daemon=True
            )
            self._lanes.append(lane)

    def start(self) -> None:
        for lane in self._lanes:
            lane.thread.start()

    def check(self) -> None:
        """Raise what a lane has raised: it means that the cluster, not the producer, has failed."""
        for lane in self._lanes:
            if lane.error is not None:
                raise RuntimeError(f"the lane of {lane.name} broke") from lane.error

    def finish(self) -> None:
        """Let each lane end what it is at: all brokers are up and in sync then, and all connections whole."""
        self._stop.set()
        for lane in self._lanes:
            lane.thread.join(180)
            if lane.thread.is_alive():
                raise TimeoutError(f"the lane of {lane.name} does not end")
        self.check()

    def abandon(self) -> None:
        """The run has failed: make no more faults, and wait for those under way, as they use the cluster."""
        self._stop.set()
        for lane in self._lanes:
            lane.thread.join(60)

    def _run(self, lane: Lane, rng: random.Random) -> None:
        bag: list[Fault] = []
        try:
            while not self._stop.wait(rng.uniform(*_PAUSES[lane.name]) / self._haste[lane.name]):
                if not bag:
                    bag = _filled(lane.name, rng)
                bag.pop(0)(self._faults, rng, self._stop)
        except BaseException as error:
            lane.error = error


def _filled(name: str, rng: random.Random) -> list[Fault]:
    faults = list(_BAGS[name])
    if name != "brokers":
        rng.shuffle(faults)
        return faults
    # An election makes sense after a fault that has moved leaders: the pairs stay together.
    pairs = [faults[index : index + 2] for index in range(0, len(faults), 2)]
    rng.shuffle(pairs)
    return [fault for pair in pairs for fault in pair]
