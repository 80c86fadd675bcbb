# SPDX-License-Identifier: Apache-2.0
"""Tasks that wait for a Waiter, as they would for a future of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any

import pytest
from aio.support import LOOPS, SOON

from penstock import _waiting_cy
from penstock._loops import AsyncioLoop, joined, running_loop, until
from penstock._ticket import Ticket
from penstock._waiting_cy import Mailbox, Waiter, Waiting
from penstock.producer.batch import _delivery_cy
from penstock.producer.batch._delivery_cy import BatchResult, Delivery
from penstock.types import RecordMetadata

TASKS: dict[str, Any] = {"of C": asyncio.Task, "of Python": asyncio.tasks._PyTask}  # type: ignore[attr-defined]


KINDS = [name for name in LOOPS if name != "trio"]
FUTURES = " with futures"  # as it is where asyncio does not take a Waiter for a future
waiters_only = pytest.mark.parametrize("loop", KINDS, indirect=True)


@pytest.fixture(params=[*KINDS, *(name + FUTURES for name in KINDS)])
def loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Generator[asyncio.AbstractEventLoop, None, None]:
    """A loop in debug mode, with tasks of both kinds."""
    assert AsyncioLoop.takes_waiters
    monkeypatch.setattr(AsyncioLoop, "takes_waiters", FUTURES not in request.param)
    if request.param.startswith("uvloop"):
        import uvloop

        made = uvloop.new_event_loop()
    else:
        made = asyncio.new_event_loop()
    made.set_debug(True)
    yield made
    made.run_until_complete(asyncio.sleep(0))
    made.close()


@pytest.fixture(params=TASKS)
def tasks(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    kind = TASKS[request.param]
    loop.set_task_factory(lambda loop, work, **options: kind(work, loop=loop, **options))


def _current_task() -> asyncio.Task[Any] | None:
    """Since Python 3.14 asyncio knows tasks of Python by another function than those of C."""
    return asyncio.current_task() or asyncio.tasks._py_current_task()  # type: ignore[attr-defined,no-any-return]


class Event:
    """What tasks wait for; `come` lets them go on."""

    def __init__(self) -> None:
        self.waiting: Waiting | None = None

    def join(self, waiting: Waiting) -> None:
        self.waiting = waiting

    def quit(self, waiting: Waiting) -> None:
        assert self.waiting is waiting
        self.waiting = None

    def __await__(self) -> Generator[Any, Any, None]:
        return until(self)

    def come(self) -> None:
        assert self.waiting is not None
        self.waiting.happened()


async def _wait(event: Event, told: list[Any], name: object = None) -> None:
    await event
    told.append(name)


def _run(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(main)


@pytest.mark.usefixtures("tasks")
def test_tasks_go_on_in_the_order_of_their_coming_each_in_its_context(loop) -> None:
    where = contextvars.ContextVar("where", default=-1)
    told: list[Any] = []

    async def one(event: Event, number: int) -> None:
        where.set(number)
        await event
        told.append((number, where.get(), _current_task() is not None))

    async def main() -> None:
        event = Event()
        waiting = [asyncio.ensure_future(one(event, number)) for number in range(5)]
        await asyncio.sleep(0)
        event.come()
        await asyncio.gather(*waiting)
        assert where.get() == -1

    _run(loop, main())
    assert told == [(number, number, True) for number in range(5)]


@waiters_only
def test_a_task_goes_on_in_the_turn_in_which_the_loop_is_told(loop) -> None:
    """A future would let it go on in the turn after that."""
    told: list[str] = []

    async def main() -> None:
        event = Event()
        waiting = asyncio.ensure_future(_wait(event, told, "woken"))
        await asyncio.sleep(0)
        assert event.waiting is not None
        event.waiting.mailbox.put(event.waiting)
        loop.call_soon(event.waiting.mailbox.look)
        loop.call_soon(told.append, "the same turn")
        await waiting

    _run(loop, main())
    assert told == ["woken", "the same turn"]


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("message", [None, "enough"])
def test_a_task_that_is_cancelled_gets_the_message(loop, message) -> None:
    async def main() -> None:
        event = Event()
        waiting = asyncio.ensure_future(_wait(event, []))
        await asyncio.sleep(0)
        assert waiting.cancel(message)
        with pytest.raises(asyncio.CancelledError) as raised:
            await waiting
        assert raised.value.args == (() if message is None else (message,))
        assert running_loop().events == {}

    _run(loop, main())


@pytest.mark.usefixtures("tasks")
def test_a_task_that_is_cancelled_before_it_waits_is_cancelled_where_it_waits(loop) -> None:
    async def main() -> None:
        event = Event()

        async def cancels_itself() -> None:
            task = _current_task()
            assert task is not None
            task.cancel()
            await event

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(cancels_itself())

    _run(loop, main())


@pytest.mark.usefixtures("tasks")
def test_a_task_that_goes_on_may_cancel_another_that_is_to_go_on(loop) -> None:
    told: list[str] = []

    async def main() -> None:
        event = Event()

        async def cancels() -> None:
            await event
            other.cancel()

        first = asyncio.ensure_future(cancels())
        other = asyncio.ensure_future(_wait(event, told, "went on"))
        await asyncio.sleep(0)
        event.come()
        await first
        with pytest.raises(asyncio.CancelledError):
            await other

    _run(loop, main())
    assert told == []


@pytest.mark.usefixtures("tasks")
def test_a_cancellation_after_the_event_and_before_the_look_wins_and_is_told_once(loop) -> None:
    async def main() -> None:
        event = Event()
        waiting = asyncio.ensure_future(_wait(event, []))
        await asyncio.sleep(0)
        event.come()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)

    _run(loop, main())


def test_ctrl_c_in_a_task_that_goes_on_leaves_nobody_behind(loop) -> None:
    told: list[Any] = []

    async def interrupted(event: Event) -> None:
        await event
        raise KeyboardInterrupt

    event = Event()
    first = loop.create_task(interrupted(event))
    others = [loop.create_task(_wait(event, told, number)) for number in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    event.come()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.gather(*others))
    loop.run_until_complete(asyncio.gather(*others))
    assert told == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        first.result()


@pytest.mark.skipif(
    _waiting_cy.is_compiled(), reason="compiled code does not look at signals when it is called"
)
@pytest.mark.parametrize("entered", ["_MailboxCheck.__call__", "Mailbox.look"])
def test_ctrl_c_just_before_the_look_leaves_nobody_behind(loop, entered: str) -> None:
    """A loop that goes on afterwards looks again, and can be woken."""
    told: list[Any] = []
    events = [Event(), Event()]
    waiting = [loop.create_task(_wait(event, told, number)) for number, event in enumerate(events)]
    loop.run_until_complete(asyncio.sleep(0))
    has_come = []

    def interrupt(frame: FrameType, what: str, _: object) -> None:
        if what == "call" and not has_come and frame.f_code.co_qualname == entered:
            has_come.append(True)
            raise KeyboardInterrupt

    events[0].come()
    before = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        sys.setprofile(before)
    events[1].come()
    loop.run_until_complete(asyncio.wait(waiting, timeout=SOON))
    assert sorted(told) == [0, 1]


def test_tasks_that_raise_interrupts_one_after_the_other_leave_nobody_behind() -> None:
    """Each interrupts the look that has let it go on, and the program goes on every time. uvloop would end its run."""
    loop = asyncio.new_event_loop()
    told: list[Any] = []
    event = Event()

    async def interrupt() -> None:
        await event
        raise KeyboardInterrupt

    for _ in range(5):
        loop.create_task(interrupt())  # noqa: RUF006 - what is kept of it would keep its traceback
    last = loop.create_task(_wait(event, told, 1))
    loop.run_until_complete(asyncio.sleep(0))
    event.come()
    interrupts = 0
    while not told and interrupts < 6:
        try:
            loop.run_until_complete(asyncio.sleep(0))
        except KeyboardInterrupt:
            interrupts += 1
        else:
            break
    loop.run_until_complete(asyncio.wait([last], timeout=SOON))
    loop.close()
    assert (interrupts, told) == (5, [1])


@waiters_only
def test_who_was_granted_goes_on_in_the_turn_that_learns_of_it(loop) -> None:
    """A loop that is closed after that turn leaves nobody who was granted something and cannot give it back."""
    ticket: Ticket[None] = Ticket("something")
    told: list[Any] = []

    async def wait() -> None:
        told.append(await running_loop().wait_for(ticket, 60.0))

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    ticket.complete(None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert told == [True]
    loop.run_until_complete(task)


class CtrlC:
    """A trace function that raises KeyboardInterrupt before the n-th line in which a mailbox is emptied."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.has_come = False
        self._codes = [method.__code__ for method in (Mailbox.look, Waiting.deliver, Waiting._wake_all)]

    def __call__(self, frame: FrameType, what: str, _: object) -> CtrlC | None:
        if what == "call":
            return self if frame.f_code in self._codes else None
        if what == "line":
            self._left -= 1
            if self._left == 0:
                self.has_come = True
                raise KeyboardInterrupt
        return self


@pytest.mark.skipif(_waiting_cy.is_compiled(), reason="Ctrl-C cannot come between two lines of compiled code")
def test_ctrl_c_between_any_two_lines_of_a_delivery_leaves_nobody_behind(loop) -> None:
    # The first lines of `look` call nothing, so that no signal is handled in them.
    for line in itertools.count(6):
        told: list[Any] = []
        events = [Event(), Event()]
        waiting = [loop.create_task(_wait(events[number % 2], told, number)) for number in range(6)]
        loop.run_until_complete(asyncio.sleep(0))
        for event in events:
            event.come()
        ctrl_c, before = CtrlC(line), sys.gettrace()
        sys.settrace(ctrl_c)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_until_complete(asyncio.sleep(0))
        finally:
            sys.settrace(before)
        loop.run_until_complete(asyncio.wait(waiting, timeout=SOON))
        assert sorted(told) == list(range(6)), f"line {line}"
        if not ctrl_c.has_come:
            break
    assert line > 6 + 6 * 3  # it came in every round of the loops


@waiters_only
def test_what_a_waiter_says_of_itself(loop) -> None:
    waiter = Waiter(loop)
    assert waiter.get_loop() is loop
    assert asyncio.isfuture(waiter)
    assert (waiter.done(), waiter.cancelled(), repr(waiter)) == (False, False, "<Waiter pending>")
    with pytest.raises(asyncio.InvalidStateError):
        waiter.result()
    waiter.wake()
    assert (waiter.done(), waiter.cancelled(), waiter.cancel()) == (True, False, False)
    waiter.result()
    told: list[Any] = []
    waiter.add_done_callback(told.append)  # too late: soon
    assert told == []
    loop.run_until_complete(asyncio.sleep(0))
    assert told == [waiter]


@waiters_only
def test_a_waiter_has_one_task(loop) -> None:
    waiter = Waiter(loop)
    waiter.add_done_callback(lambda _: None, context=contextvars.copy_context())
    with pytest.raises(RuntimeError, match="already"):
        waiter.add_done_callback(lambda _: None)


def test_a_task_that_has_ended_is_not_kept(loop) -> None:
    async def main() -> Any:
        event = Event()
        waiting = asyncio.ensure_future(_wait(event, []))
        await asyncio.sleep(0)
        event.come()
        await waiting
        return weakref.ref(waiting)

    ended = loop.run_until_complete(main())
    gc.collect()
    assert ended() is None


@waiters_only
@pytest.mark.usefixtures("tasks")
def test_a_wait_that_was_given_up_by_one_who_goes_on_is_not_told(loop) -> None:
    told: list[Any] = []

    async def main() -> None:
        event = Event()
        waits = [event.__await__() for _ in range(2)]
        first, second = (next(wait) for wait in waits)
        first.add_done_callback(lambda _: waits[1].close(), context=contextvars.copy_context())
        second.add_done_callback(told.append, context=contextvars.copy_context())
        event.come()
        await asyncio.sleep(0.01)

    _run(loop, main())
    assert told == []


# ------------------------------------------------------------------------------------------- deliveries


async def _offset(delivery: Delivery) -> int:
    return (await delivery).offset


@waiters_only
@pytest.mark.usefixtures("tasks")
def test_one_of_many_that_wait_for_a_batch_in_a_loop_looks_for_the_others(loop, monkeypatch) -> None:
    result = BatchResult("t", 0)
    looked: list[Any] = []
    monkeypatch.setattr(_delivery_cy, "_join", lambda event: looked.append(event) or joined(event))

    async def main(first: int, others: Any = None) -> list[int]:
        waiting = [asyncio.ensure_future(_offset(Delivery(result, first + number))) for number in range(3)]
        await asyncio.sleep(0)
        assert result.followers.waiting is not None
        if others is not None:
            others()  # from now on it may be settled
        return await asyncio.gather(*waiting)

    offsets: list[int] = []
    elsewhere = threading.Thread(target=lambda: offsets.extend(asyncio.run(main(3, settle))))

    def settle() -> None:
        assert looked == [result, result]  # one for each loop
        loop.call_soon_threadsafe(lambda: threading.Thread(target=result.settle, args=(10,)).start())

    assert loop.run_until_complete(main(0, elsewhere.start)) == [10, 11, 12]
    elsewhere.join(60)
    assert offsets == [13, 14, 15]
    assert result.followers.waiting is None


def test_a_batch_forgets_those_who_wait_when_the_last_of_them_gives_up(loop) -> None:
    async def main() -> None:
        result = BatchResult("t", 0)
        waiting = [asyncio.ensure_future(_offset(Delivery(result, number))) for number in range(2)]
        await asyncio.sleep(0)
        for given_up, left in zip(waiting, (True, False), strict=True):
            given_up.cancel()
            await asyncio.wait([given_up])
            assert (result.followers.waiting is not None) is left
        assert running_loop().events == {}
        result.settle(7)
        assert await _offset(Delivery(result, 0)) == 7

    _run(loop, main())


def test_a_task_of_trio_does_not_wait_with_the_tasks_of_the_loop_whose_guest_it_is(loop) -> None:
    import trio

    result = BatchResult("t", 0)
    begun = asyncio.Event()

    async def guest() -> int:
        begun.set()
        return await _offset(Delivery(result, 1))

    async def main() -> None:
        waiting = asyncio.ensure_future(_offset(Delivery(result, 0)))
        await asyncio.sleep(0)
        assert result.followers.waiting is not None
        ended = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=ended.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        await begun.wait()
        result.settle(5)
        assert await waiting == 5
        assert (await ended).unwrap() == 6

    _run(loop, main())


def test_what_is_awaited_is_an_ordinary_record_metadata(loop) -> None:
    topic = "".join(["top", "ic"])
    before = sys.getrefcount(topic)

    async def main() -> None:
        result = BatchResult(topic, 3)
        result.settle(2**40)
        found = await Delivery(result, 2, 5, -1, 1000)
        assert type(found) is RecordMetadata
        assert found == RecordMetadata(topic, 3, 2**40 + 2, 5, -1, 1000)
        assert hash(found) == hash(tuple(found))
        assert gc.is_tracked(found)

    _run(loop, main())
    gc.collect()
    assert sys.getrefcount(topic) == before
