# SPDX-License-Identifier: Apache-2.0
"""Steps driven by a thread that waits."""

from __future__ import annotations

import threading

import pytest
from fix_network import VirtualClock

from penstock._ticket import Ticket
from penstock._time import SystemClock
from penstock.errors import IllegalStateError
from penstock.producer.owner import check_may_wait, mark_io_thread
from penstock.producer.steps import Checkpoint, TimeIsUp, run_steps


def in_thread(work) -> list[object]:
    """What a function gives, or raises, on a thread of its own."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return outcome


def test_checkpoints_are_passed_and_results_handed_in():
    def steps():
        yield Checkpoint.METADATA
        first = yield Ticket.granted("a", 1)
        yield Checkpoint.MEMORY
        second = yield Ticket.granted("b", 2)
        return first + second

    assert run_steps(steps(), 0.0, VirtualClock()) == 3


def test_steps_without_a_wait_need_no_time():
    def steps():
        return 5
        yield

    assert run_steps(steps(), 0.0, VirtualClock()) == 5


def test_a_ticket_that_ends_on_another_thread_is_waited_for():
    ticket: Ticket[int] = Ticket("x")

    def steps():
        return (yield ticket)

    timer = threading.Timer(0.02, ticket.complete, [7])
    timer.start()
    assert run_steps(steps(), 60.0, SystemClock()) == 7
    timer.join()


def test_the_error_of_a_ticket_is_thrown_in():
    ticket: Ticket[int] = Ticket("x")
    ticket.fail(ValueError("no"))
    seen = []

    def steps():
        try:
            yield ticket
        except ValueError as error:
            seen.append(error)
            raise

    with pytest.raises(ValueError, match="no"):
        run_steps(steps(), 1.0, VirtualClock())
    assert len(seen) == 1


def test_steps_may_go_on_after_an_error():
    bad: Ticket[int] = Ticket("x")
    bad.fail(ValueError("no"))

    def steps():
        try:
            yield bad
        except ValueError:
            return (yield Ticket.granted("y", 3))

    assert run_steps(steps(), 1.0, VirtualClock()) == 3


def test_the_budget_is_for_all_waits_together():
    clock = VirtualClock()
    waits: list[float | None] = []

    class Slow(Ticket):
        def wait(self, timeout=None):
            waits.append(timeout)
            clock.advance(min(0.6, timeout))
            return timeout >= 0.6

        @property
        def result(self):
            return None

    def steps():
        yield Slow("first")
        clock.advance(5.0)  # serializers and partitioners take their time, which does not count
        yield Slow("second")

    with pytest.raises(TimeIsUp) as caught:
        run_steps(steps(), 1.0, clock)
    assert waits == [1.0, pytest.approx(0.4)]
    assert caught.value.waited_ms == 1000


def test_waits_are_reported():
    clock = VirtualClock()
    told = []

    class Slow(Ticket):
        def wait(self, timeout=None):
            clock.advance(0.25)
            self.complete(1)
            return True

    def steps():
        yield Slow("metadata of x")

    run_steps(steps(), 1.0, clock, on_waited=lambda ticket, seconds: told.append((ticket.what, seconds)))
    assert told == [("metadata of x", 0.25)]


def test_an_endless_budget_is_no_problem_for_the_operating_system():
    ticket: Ticket[int] = Ticket("x")
    timer = threading.Timer(0.02, ticket.complete, [1])
    timer.start()

    def steps():
        return (yield ticket)

    assert run_steps(steps(), float("inf"), SystemClock()) == 1
    timer.join()


def test_a_wait_on_the_io_thread_is_refused_and_the_steps_clean_up():
    ticket: Ticket[int] = Ticket("x")
    cleaned = []

    def steps():
        try:
            yield ticket
        except IllegalStateError:
            cleaned.append(True)
            raise

    def work():
        mark_io_thread()
        return run_steps(steps(), 10.0, SystemClock(), lambda: check_may_wait("send()"))

    (error,) = in_thread(work)
    assert isinstance(error, IllegalStateError)
    assert "send() was called from a delivery callback" in str(error)
    assert cleaned == [True]


def test_what_need_not_wait_may_be_done_on_the_io_thread():
    def steps():
        return (yield Ticket.granted("x", 4))

    def work():
        mark_io_thread()
        return run_steps(steps(), 0.0, SystemClock(), lambda: check_may_wait("send()"))

    assert in_thread(work) == [4]


def test_ctrl_c_reaches_the_steps_and_comes_through():
    class Interrupted(Ticket):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    cleaned = []

    def steps():
        try:
            yield Interrupted("x")
        except KeyboardInterrupt:
            cleaned.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_steps(steps(), 1.0, VirtualClock())
    assert cleaned == [True]


class SlowTicket(Ticket[int]):
    """Takes its time, on a clock that it moves by itself, and then is granted."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        super().__init__("x")
        self.clock = clock
        self.seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.clock.advance(min(timeout, self.seconds))
        return self.seconds <= timeout and self.complete(1)


@pytest.mark.parametrize(("checkpoint", "in_time"), [(Checkpoint.PROGRESS, True), (Checkpoint.MEMORY, False)])
def test_progress_lets_the_time_count_anew(checkpoint, in_time):
    clock = VirtualClock()

    def steps():
        for _ in range(3):
            yield SlowTicket(clock, 0.6)
            yield checkpoint
        return "done"

    if in_time:
        assert run_steps(steps(), 1.0, clock) == "done"
    else:
        with pytest.raises(TimeIsUp):
            run_steps(steps(), 1.0, clock)
