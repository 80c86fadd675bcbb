# SPDX-License-Identifier: Apache-2.0
"""Event loops in virtual time: real loops and tasks of asyncio, whose turns the simulator chooses.

A loop is an application thread: a step is one of its turns, and where it has nothing to do it waits for a wake-up or
for its next timer. Tasks of an AsyncProducer run in it. They send, await outcomes, time out, are cancelled, and some
loops are closed while their tasks still wait.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from fix_network import VirtualClock

from penstock import AsyncProducer
from penstock._ticket import Ticket
from penstock.aio.callbacks import LoopCallbacks
from penstock.errors import IllegalStateError, KafkaError, KafkaTimeoutError, ProducerClosedError
from penstock.producer.batch._delivery_cy import Delivery
from penstock.types import RecordMetadata
from simulation.face import Call
from simulation.ledger import Entry
from simulation.scheduler import Interrupted, Sleep, Wait

if TYPE_CHECKING:
    from simulation.run import Simulation

_TASKS = 4  # of a loop
_SOON = 1.0  # virtual seconds
_SHORT_LIVED = 0.25  # of the loops are closed in the middle


class _NoSelector:
    """Nothing is read or written in these loops."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class SimLoop(asyncio.BaseEventLoop):
    """A loop whose turns somebody else makes."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._virtual = clock
        self._selector = _NoSelector()
        self._woken: Ticket[None] = Ticket("a wake-up of the loop")
        self.set_debug(True)
        self.slow_callback_duration = math.inf  # other threads run in the middle of a turn, and time passes
        self.set_exception_handler(lambda loop, context: None)  # of tasks that the end of the loop has struck

    def time(self) -> float:
        return self._virtual.time

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: nothing is read or written."""

    def _write_to_self(self) -> None:
        self._woken.complete(None)

    def turn(self) -> None:
        """Run what is ready."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(before)

    def idle(self) -> Wait | None:
        """What it waits for; None: it is to run at once."""
        self._woken = Ticket("a wake-up of the loop")
        if self._ready:  # type: ignore[attr-defined]
            return None
        timers = [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        first = min((timer.when() for timer in timers), default=math.inf)
        return Wait(self._woken, max(0.0, first - self.time()))

    def _abandon(self) -> None:
        """Say nothing of the tasks that will never come back."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if (
                inspect.iscoroutine(coroutine)
                and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
            ):
                coroutine.close()  # it was not even begun

    def program(self, work: list[Coroutine[Any, Any, None]], may_end: Callable[[], bool]) -> Call:
        """Run tasks to their end, or until the loop is closed under them."""
        tasks = [self.create_task(each) for each in work]
        while not all(task.done() for task in tasks):
            if may_end():
                self._abandon()
                break
            self.turn()
            item = self.idle()
            if item is None or all(task.done() for task in tasks):
                yield "a turn of the loop"
            else:
                yield item
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self.close()


class LoopApplication:
    """What the tasks of one producer's life do.

    Args:
        sim: the seed.
        producer: theirs.
        rng: what they decide.
    """

    def __init__(self, sim: Simulation, producer: AsyncProducer, rng: random.Random) -> None:
        self.sim = sim
        self.producer = producer
        self.rng = rng
        self.sending: dict[int, Any] = {}  # the loops of records that are neither accepted nor refused
        self.abandoned: list[Any] = []  # of loops that were closed; they are never collected in the middle

    def loops(self, count: int, records: int) -> list[Call]:
        """The programs of so many loops."""
        each = -(-records // (count * _TASKS))
        return [self._loop(each) for _ in range(count)]

    def _loop(self, records: int) -> Call:
        sim = self.sim
        loop = SimLoop(sim.clock)
        self.abandoned.append(loop)
        ends_at = sim.clock.time + self.rng.expovariate(4) if self.rng.random() < _SHORT_LIVED else math.inf
        work = [self._sender(sim.new_sender(), records) for _ in range(_TASKS)]
        yield from loop.program(work, lambda: sim.clock.time >= ends_at)
        for entry in [
            entry
            for entry in sim.ledger.entries
            if self.sending.get(entry.number) is loop and not entry.accepted
        ]:
            sim.on_refused(entry, Interrupted())  # its task never comes back
        sim.note("a loop has ended%s", "" if ends_at == math.inf else ", some of its tasks perhaps not")

    async def _sender(self, sender: int, count: int) -> None:
        rng = self.rng
        for _ in range(count):
            if rng.random() < 0.4:
                await asyncio.sleep(rng.expovariate(1 / self.sim.plan.think))
            entry = await self._send(sender)
            if entry.delivery is not None and rng.random() < 0.4:
                await self._outcome(entry, entry.delivery)
            elif rng.random() < 0.01:
                await self._flush()
            if self.producer._core.closed:
                break
        if self.producer._callbacks is not None:
            await self._hear(sender)

    async def _hear(self, sender: int) -> None:
        """Wait until the callbacks of the outcomes that are known have run in this loop, which must be soon."""
        sim = self.sim
        known = [entry for entry in sim.ledger.entries if entry.sender == sender and entry.calls]
        until = sim.clock.time + _SOON
        while late := [entry for entry in known if not entry.told_in_loop]:
            if sim.clock.time > until:
                sim.violate(f"{late[0]} has an outcome, and its callback does not run in the loop")
                return
            await asyncio.sleep(0.01)

    async def _send(self, sender: int) -> Entry:
        rng, sim = self.rng, self.sim
        entry = sim.new_entry(sender, rng.choice(sim.plan.sizes))
        self.sending[entry.number] = asyncio.get_running_loop()
        entry.topic = rng.choice(list(sim.plan.topics))
        entry.key = b"k%d" % rng.randrange(5) if rng.random() < 0.4 else None
        entry.wanted = rng.randrange(sim.plan.topics[entry.topic]) if rng.random() < 0.3 else None
        try:
            if rng.random() < 0.05:
                delivery = self.producer.try_send(
                    entry.topic, entry.value, entry.key, partition=entry.wanted, on_delivery=entry.on_delivery
                )
                sim.on_appended(entry)
                sim.on_accepted(entry, delivery)
            else:
                await self._cancelled_perhaps(self._append(entry))
        except (KafkaError, IllegalStateError) as error:
            if isinstance(error, KafkaTimeoutError) and getattr(error, "__notes__", None):
                entry.started = sim.clock.time  # try_send() did not wait at all
            sim.on_refused(entry, error)
        except (asyncio.CancelledError, TimeoutError):
            # A cancellation may come after the record was accepted, but not to send() itself.
            if not entry.accepted:
                sim.on_refused(entry, Interrupted())
        del self.sending[entry.number]
        return entry

    async def _append(self, entry: Entry) -> Delivery:
        delivery = await self.producer.send(
            entry.topic, entry.value, entry.key, partition=entry.wanted, on_delivery=entry.on_delivery
        )
        self.sim.on_appended(entry)  # no other task has run since
        self.sim.on_accepted(entry, delivery)
        return delivery

    async def _cancelled_perhaps(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await it; now and then it is cancelled, or its time is up."""
        choice = self.rng.random()
        if choice > 0.3:
            return await work
        if choice > 0.15:
            async with asyncio.timeout(self.rng.expovariate(50)):
                return await work
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().call_later(self.rng.expovariate(50), task.cancel)
        return await task

    async def _outcome(self, entry: Entry, delivery: Delivery) -> None:
        try:
            metadata = await self._cancelled_perhaps(_awaited(delivery))
        except (asyncio.CancelledError, TimeoutError):
            self._check_followers(delivery)
        except KafkaError as error:
            if entry.calls != 1 or entry.error is None:
                self.sim.violate(
                    f"{entry} was awaited and failed with {error!r}, its callback was told otherwise"
                )
        else:
            if (entry.calls, entry.error, entry.offset) != (1, None, metadata.offset):
                self.sim.violate(f"{entry} was awaited: {metadata}, its callback was told otherwise")

    def _check_followers(self, delivery: Delivery) -> None:
        """A loop follows a result once, however many of its tasks wait, or have waited."""
        here = asyncio.get_running_loop()
        followers = delivery._answered_by().followers
        waiting = [getattr(follower.callback, "waiting", None) for follower in followers.entries]
        ours = [each for each in waiting if each is not None and each._loop.loop() is here]
        if len(ours) > 1 or any(not each.tokens for each in ours):
            self.sim.violate("an abandoned await has left its follower behind: the loop is told twice")

    async def _flush(self) -> None:
        entries = [entry for entry in self.sim.ledger.entries if entry.accepted and not entry.calls]
        try:
            await self._cancelled_perhaps(self.producer.flush(self.rng.choice((0.05, 1.0, None))))
        except (KafkaError, asyncio.CancelledError, TimeoutError) as error:
            self.sim.note("flush: %r", error)
            return
        self.sim.check_flushed(entries)

    def closer(self, others: list[Any]) -> Call:
        """Close, in a loop of its own, when the others are done or there are records enough; perhaps twice."""
        sim, plan = self.sim, self.sim.plan
        while any(not thread.ended.done for thread in others) and not (
            plan.close_early and sim.ledger.accepted >= sim.records_wanted
        ):
            yield Sleep(0.02)
        sim.note("aclose(%s)", plan.close_timeout)
        loop = SimLoop(sim.clock)
        self.abandoned.append(loop)
        yield from loop.program([self._close()], lambda: False)
        sim.note("closed")
        sim.check_closed()

    async def _close(self) -> None:
        timeout = self.sim.plan.close_timeout
        try:
            await self._cancelled_perhaps(self.producer.aclose(None if timeout == math.inf else timeout))
        except (asyncio.CancelledError, TimeoutError):
            await self.producer.aclose()
        try:
            await self.producer.send("a", b"too late")
        except ProducerClosedError:
            return
        self.sim.violate("a record was accepted after aclose()")


class _BothTold:
    """The callback of a record: on the I/O thread it tells the ledger, then it goes on to the loop."""

    def __init__(self, sim: Simulation, entry: Entry, queue: deque[Entry], callbacks: LoopCallbacks) -> None:
        self._sim = sim
        self._entry = entry
        self._queue = queue  # of the loop: whose callbacks have not run there, in the order of outcomes
        self._loop = asyncio.get_running_loop()
        self._there = callbacks.of(self._in_loop)

    @property
    def is_look(self) -> bool:
        return self._there.is_look

    def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self._queue.append(self._entry)
        self._entry.on_delivery(metadata, error)
        self._there(metadata, error)

    def _in_loop(self, metadata: RecordMetadata, error: Exception | None) -> None:
        sim, entry = self._sim, self._entry
        entry.told_in_loop += 1
        if asyncio.get_running_loop() is not self._loop:
            sim.violate(f"the callback of {entry} runs in another loop")
        if not self._queue or self._queue.popleft() is not entry:
            sim.violate(f"the callback of {entry} does not run in its turn in the loop")
        if (entry.error, entry.partition, entry.offset) != (error, metadata.partition, metadata.offset):
            sim.violate(f"the callback of {entry} in the loop is told otherwise: {metadata}, {error!r}")


class _TellBoth:
    """In place of the LoopCallbacks of a producer: see `_BothTold`."""

    def __init__(self, sim: Simulation, callbacks: LoopCallbacks) -> None:
        self._sim = sim
        self._callbacks = callbacks
        self._queues: dict[Any, deque[Entry]] = {}

    def of(self, on_delivery: Any) -> _BothTold:
        queue = self._queues.setdefault(asyncio.get_running_loop(), deque())
        return _BothTold(self._sim, on_delivery.__self__, queue, self._callbacks)


def tell_both(sim: Simulation, producer: AsyncProducer) -> None:
    """Let the ledger be told on the I/O thread also where callbacks run in loops: a loop may end before."""
    if producer._callbacks is not None:
        producer._callbacks = _TellBoth(sim, producer._callbacks)  # type: ignore[assignment]


async def _awaited(delivery: Delivery) -> Any:
    return await delivery
