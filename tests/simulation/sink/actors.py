# SPDX-License-Identifier: Apache-2.0
"""Simulated processes whose code blocks: each runs on a thread of its own, but only one of them at a time.

The sink's calls wait for the network inside. So that several of them can be under way, and each can be killed at any
wait, every call runs on a thread that hands the turn back whenever it waits; the seed's random source says who is next.
Nothing runs beside anything else, so a seed always does the same.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
from collections.abc import Callable
from typing import Any

from penstock.network.backend import NetworkBackend
from penstock.network.transport import Address, Endpoint
from simulation.sink.world import SinkWorld, Sockets
from simulation.wire import Link

_HICCUP = 0.06  # how many of the turns come late
_SHORT_WAIT = 0.02  # seconds, of most hiccups


class Killed(BaseException):
    """The process is gone. No part of the sink may catch it."""


class Stuck(BaseException):
    """Nothing will ever happen, or it never ends."""


class Process:
    """What dies together: an operating system's process, or a machine.

    Attributes:
        memory: what its code keeps from one call to the next.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.alive = True
        self.actors: list[Actor] = []
        self.links: list[Link] = []
        self.memory: dict[Any, Any] = {}

    def kill(self) -> None:
        """SIGKILL: its connections close, and no code of it runs any more."""
        if not self.alive:
            return
        self.alive = False
        self.stage.note("%s is killed", self.name)
        for link in list(self.links):
            link.close()
        for actor in list(self.actors):
            actor.killed = True

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        for actor in self.actors:
            actor.frozen_until = max(actor.frozen_until, self.stage.clock.time + seconds)

    def spawn(self, name: str, program: Callable[[], Any]) -> Actor:
        return self.stage.spawn(f"{self.name} {name}", program, self)

    def backend(self) -> NetworkBackend:
        """The network, as a client in this process sees it."""
        sockets = Sockets(self.stage.world, self.stage.wait_for)

        def connect(address: Address, endpoint: Endpoint) -> Link:
            link = self.stage.world.connect(address, endpoint)
            self.links = [known for known in self.links if not known.closed]
            self.links.append(link)
            return link

        return NetworkBackend(sockets, connect, self.stage.world.resolve, run_aside=lambda work: work())


class Actor:
    """One call that is under way, on a thread of its own."""

    def __init__(self, name: str, program: Callable[[], Any], process: Process) -> None:
        self.name = name
        self.process = process
        self.program = program
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.killed = False
        self.frozen_until = -math.inf
        self.wake_at = -math.inf
        self.ready: Callable[[], bool] = lambda: True
        self.turn = threading.Lock()
        self.turn.acquire()
        self.thread: threading.Thread | None = None


class Stage:
    """Says who runs, and lets virtual time pass when nobody can.

    Args:
        world: the network and the brokers.
        rng: chooses.
        note: told what happens, for the trace.
    """

    def __init__(self, world: SinkWorld, rng: random.Random, note: Callable[..., None]) -> None:
        self.world = world
        self.clock = world.clock
        self.rng = rng
        self.note = note
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.turns = 0
        self.most_turns = 60_000
        self.on_turn: Callable[[Actor], None] = lambda actor: None
        self._back = threading.Lock()
        self._back.acquire()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    # ---- by the simulation's own thread

    def spawn(self, name: str, program: Callable[[], Any], process: Process) -> Actor:
        actor = Actor(name, program, process)
        if process.alive:
            self.actors.append(actor)
            process.actors.append(actor)
        else:
            actor.ended, actor.error = True, Killed()
        return actor

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, on the thread that runs then."""
        heapq.heappush(self._alarms, (self.clock.time + seconds, next(self._numbers), action))

    def run(self, done: Callable[[], bool], until: float = math.inf) -> None:
        """Let everything go on until `done`.

        Raises:
            Stuck: that will never be, or not by `until`.
        """
        while not done():
            self._ring()
            runnable = [actor for actor in self.actors if self._can_run(actor)]
            if runnable:
                actor = runnable[int(self.rng.random() * len(runnable))]
                if actor.killed or not self._hiccup(actor):
                    self._give_turn(actor)
            else:
                self._pass_time(until)

    def close(self) -> None:
        """Unwind whatever is still under way."""
        for actor in list(self.actors):
            actor.killed = True
            actor.process.alive = False
        while self.actors:
            self._give_turn(self.actors[0])

    def _ring(self) -> None:
        while self._alarms and self._alarms[0][0] <= self.clock.time:
            heapq.heappop(self._alarms)[2]()

    def _can_run(self, actor: Actor) -> bool:
        if actor.killed:
            return True
        if actor.frozen_until > self.clock.time:
            return False
        return actor.wake_at <= self.clock.time or actor.ready()

    def _hiccup(self, actor: Actor) -> bool:
        """Now and then a process that could run does not, for a moment."""
        if self.rng.random() >= _HICCUP:
            return False
        seconds = self.rng.random() * _SHORT_WAIT if self.rng.random() < 0.9 else self.rng.random() * 2
        actor.frozen_until = self.clock.time + seconds
        return True

    def _give_turn(self, actor: Actor) -> None:
        self.turns += 1
        if self.turns > self.most_turns:
            raise Stuck(f"no end after {self.most_turns} turns: {self.describe()}")
        self.current = actor
        if actor.thread is None:
            actor.thread = threading.Thread(target=self._play, args=(actor,), daemon=True)
            actor.thread.start()
        else:
            actor.turn.release()
        self._back.acquire()
        self.current = None
        if actor.ended:
            self.actors.remove(actor)
            actor.process.actors.remove(actor)
            actor.thread.join()

    def _pass_time(self, until: float) -> None:
        moment = min(self._alarms[0][0] if self._alarms else math.inf, until)
        for actor in self.actors:
            moment = min(moment, max(actor.wake_at, actor.frozen_until))
            if actor.frozen_until > self.clock.time:
                moment = min(moment, actor.frozen_until)
        happens_at = self.world.next_at()
        if min(moment, happens_at) == math.inf or self.clock.time >= until:
            raise Stuck(f"nothing will ever happen: {self.describe()}")
        if happens_at <= moment:
            self.world.happen(happens_at, moment)
        else:
            self.clock.time = max(self.clock.time, moment)

    def describe(self) -> str:
        return ", ".join(actor.name for actor in self.actors) or "nobody is there"

    # ---- by the thread of an actor

    def _play(self, actor: Actor) -> None:
        try:
            if actor.killed:
                raise Killed
            actor.result = actor.program()
        except BaseException as error:
            actor.error = error
        actor.ended = True
        self._back.release()

    def wait_for(self, ready: Callable[[], bool], seconds: float) -> None:
        """Let others run until something is there, or the time is up.

        Raises:
            Killed: the process does not live any more.
        """
        actor = self.current
        if actor is None:
            raise RuntimeError("only an actor can wait")
        if actor.killed:
            raise Killed
        actor.ready = ready
        actor.wake_at = self.clock.time + seconds
        while True:
            self._back.release()
            actor.turn.acquire()
            if not actor.killed:
                self.on_turn(actor)  # may kill or freeze it
            if actor.killed:
                raise Killed
            if actor.frozen_until <= self.clock.time:
                return

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.wait_for(lambda: False, seconds)

    def join(self, actors: list[Actor], enough: Callable[[], bool] | None = None) -> None:
        """Wait until all of them have ended, or `enough` says so."""
        self.wait_for(
            lambda: all(each.ended for each in actors) or (enough is not None and enough()), math.inf
        )
