# SPDX-License-Identifier: Apache-2.0
"""Waiting as a value: a Ticket ends exactly once, and so does a Countdown."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock._ticket import Countdown, Ticket, TicketKind


def test_granted_ticket_gives_its_result() -> None:
    ticket: Ticket[int] = Ticket("memory")
    assert not ticket.done
    assert ticket.complete(7)
    assert ticket.done
    assert ticket.result == 7
    assert Ticket.granted("memory", None).result is None


def test_the_kind_is_for_code_and_the_words_are_for_people() -> None:
    assert Ticket("7 bytes of memory", TicketKind.MEMORY).kind is TicketKind.MEMORY
    assert Ticket("metadata of topic t").kind is TicketKind.OTHER


def test_failed_ticket_raises_its_error() -> None:
    ticket: Ticket[int] = Ticket("memory")
    assert ticket.fail(KeyError("k"))
    with pytest.raises(KeyError):
        _ = ticket.result


@pytest.mark.parametrize("state", ["pending", "given up"])
def test_no_result_before_the_end_or_after_giving_up(state: str) -> None:
    ticket: Ticket[int] = Ticket("memory")
    if state == "given up":
        assert ticket.give_up()
    with pytest.raises(RuntimeError, match=f"memory: {state}"):
        _ = ticket.result


ENDINGS: dict[str, Callable[[Ticket[int]], bool]] = {
    "complete": lambda ticket: ticket.complete(1),
    "fail": lambda ticket: ticket.fail(ValueError()),
    "give up": lambda ticket: ticket.give_up(),
}


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
def test_ends_once_and_keeps_its_first_end(first: str, second: str) -> None:
    ticket: Ticket[int] = Ticket("memory")
    calls: list[str] = []
    ticket.on_done(lambda ended: calls.append(repr(ended)))
    assert ENDINGS[first](ticket)
    before = repr(ticket)
    assert not ENDINGS[second](ticket)
    assert repr(ticket) == before
    assert calls == [before]


def test_callbacks_run_in_order_and_at_once_when_late() -> None:
    ticket: Ticket[int] = Ticket("memory")
    calls: list[int] = []
    ticket.on_done(lambda _: calls.append(1))
    ticket.on_done(lambda _: calls.append(2))
    assert calls == []
    ticket.complete(0)
    ticket.on_done(lambda _: calls.append(3))
    assert calls == [1, 2, 3]


def test_callbacks_may_use_the_ticket() -> None:
    ticket: Ticket[int] = Ticket("memory")
    seen: list[int] = []
    ticket.on_done(lambda ended: ended.on_done(lambda inner: seen.append(inner.result)))
    ticket.complete(5)
    assert seen == [5]


def test_wait_ends_when_another_thread_grants() -> None:
    ticket: Ticket[int] = Ticket("memory")
    thread = threading.Thread(target=ticket.complete, args=(3,))
    thread.start()
    assert ticket.wait(timeout=60)
    assert ticket.result == 3
    thread.join()
    assert ticket.wait(timeout=0)


def test_wait_says_when_the_time_was_not_enough() -> None:
    assert not Ticket("memory").wait(timeout=0)


def test_of_many_threads_that_end_it_one_wins() -> None:
    ticket: Ticket[int] = Ticket("memory")
    start = threading.Barrier(8)
    wins: list[int] = []

    def end(number: int) -> None:
        start.wait()
        if ticket.complete(number):
            wins.append(number)

    threads = [threading.Thread(target=end, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == [ticket.result]


def test_a_countdown_calls_back_once_from_many_threads() -> None:
    seen: list[int] = []
    countdown = Countdown(4000, lambda: seen.append(1))
    threads = [threading.Thread(target=lambda: [countdown.one_less() for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [1]
