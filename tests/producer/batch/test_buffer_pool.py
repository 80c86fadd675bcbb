# SPDX-License-Identifier: Apache-2.0
"""Record memory: what is charged comes back to the byte, and who waits is served in order."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from penstock._ticket import Ticket
from penstock.errors import AuthenticationError, ProducerClosedError
from penstock.producer.batch._buffer_pool_cy import BufferPool

SIZE = 100


class Machine:
    """Makes memory, or has none."""

    def __init__(self) -> None:
        self.empty = False

    def __call__(self, size: int) -> bytearray:
        if self.empty:
            raise MemoryError
        return bytearray(size)


def take(pool: BufferPool, size: int = SIZE) -> bytearray:
    buffer = pool.try_take(size)
    assert buffer is not None
    return buffer


def pool_with_waiter(size: int, total: int = SIZE) -> tuple[BufferPool, bytearray, Ticket[bytearray]]:
    """A pool that is all handed out, and a Ticket that waits."""
    pool = BufferPool(total, SIZE)
    held = take(pool, total)
    ticket = pool.take(size)
    assert not ticket.done
    return pool, held, ticket


# ---------------------------------------------------------------------------------------------- accounting


def test_memory_is_charged_and_restored():
    """Requirement 33."""
    pool = BufferPool(1000, SIZE)
    whole, odd = take(pool), take(pool, 37)
    assert (len(whole), len(odd)) == (100, 37)
    assert pool.available() == 863
    pool.give_back([whole])
    assert pool.available() == 963
    pool.give_back([odd])
    assert pool.available() == 1000


def test_whole_buffers_are_used_again():
    """Requirement 33."""
    pool = BufferPool(1000, SIZE)
    buffer = take(pool)
    pool.give_back([buffer])
    assert take(pool) is buffer


def test_other_sizes_are_not_kept():
    """Requirement 33."""
    made: list[int] = []
    pool = BufferPool(1000, SIZE, lambda size: made.append(size) or bytearray(size))
    pool.give_back([take(pool, 37)])
    take(pool, 37)
    assert made == [37, 37]


def test_chunks_of_powers_of_two_are_used_again():
    pool = BufferPool(1000, SIZE, smallest=20)
    sizes = (20, 40, 80, SIZE)
    chunks = [take(pool, size) for size in sizes]
    pool.give_back(chunks)
    assert all(take(pool, size) is chunk for size, chunk in zip(sizes, chunks, strict=True))
    assert pool.available() == 1000 - sum(sizes)


def test_the_largest_free_chunks_are_broken_up_first():
    pool = BufferPool(2 * SIZE, SIZE, smallest=25)
    small = take(pool, 25)
    pool.give_back([small, take(pool)])
    assert len(take(pool, 50)) == 50
    assert take(pool, 50) is not None
    assert take(pool, 25) is small
    assert pool.available() == 2 * SIZE - 125


def test_free_buffers_are_broken_up_for_other_sizes():
    pool = BufferPool(3 * SIZE, SIZE)
    pool.give_back([take(pool) for _ in range(3)])
    assert len(take(pool, 250)) == 250
    assert pool.available() == 50
    assert pool.try_take(SIZE) is None
    assert len(take(pool, 50)) == 50


def test_a_pool_is_used_to_the_last_byte():
    pool = BufferPool(250, SIZE)
    for size in (SIZE, SIZE, 50):
        take(pool, size)
    assert pool.available() == 0
    assert pool.try_take(1) is None


@pytest.mark.parametrize("method", ["try_take", "take"])
def test_more_than_the_total_is_refused(method):
    """Requirement 34."""
    pool = BufferPool(1000, SIZE)
    with pytest.raises(ValueError, match=r"1001 bytes were asked for, but buffer.memory is 1000"):
        getattr(pool, method)(1001)
    assert pool.available() == 1000
    assert pool.waiting() == 0


def test_more_than_two_gigabytes_are_counted_right():
    """Requirement 36."""
    # The memory itself is not needed to see that the numbers hold.
    pool = BufferPool(20 * 2**30, 2**30, FakeMemory)  # type: ignore[arg-type]
    held = [take(pool, 2**30) for _ in range(20)]
    assert pool.available() == 0
    waiting = pool.take(5 * 2**30)
    pool.give_back(held[:4])
    assert not waiting.done
    pool.give_back(held[4:])
    assert len(waiting.result) == 5 * 2**30
    assert pool.available() == 15 * 2**30


class FakeMemory:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


# ---------------------------------------------------------------------------------------------- waiting


def test_a_ticket_is_granted_at_once_where_there_is_memory():
    pool = BufferPool(1000, SIZE)
    ticket = pool.take(SIZE)
    assert ticket.done
    assert len(ticket.result) == SIZE
    assert pool.waiting() == 0


@pytest.mark.parametrize("size", [SIZE, 60])
def test_a_ticket_is_granted_when_memory_comes_back(size):
    """Requirement 33."""
    pool, held, ticket = pool_with_waiter(size)
    assert pool.waiting() == 1
    pool.give_back([held])
    assert len(ticket.result) == size
    assert pool.waiting() == 0
    assert pool.available() == SIZE - size


def test_tickets_are_served_in_order_of_arrival():
    pool = BufferPool(3 * SIZE, SIZE)
    held = [take(pool) for _ in range(3)]
    tickets = [pool.take(SIZE) for _ in range(3)]
    for served, buffer in enumerate(held, start=1):
        pool.give_back([buffer])
        assert [ticket.done for ticket in tickets] == [True] * served + [False] * (3 - served)


def test_a_small_request_does_not_overtake_a_large_one():
    pool = BufferPool(2 * SIZE, SIZE)
    held = [take(pool), take(pool)]
    large, small = pool.take(150), pool.take(10)
    pool.give_back([held[0]])
    assert not large.done
    assert not small.done
    assert pool.try_take(10) is None  # nor does one who comes later
    pool.give_back([held[1]])
    assert len(large.result) == 150
    assert len(small.result) == 10
    assert pool.available() == 40


def test_the_first_ticket_gathers_what_comes_back():
    pool = BufferPool(300, SIZE)
    held = [take(pool, 60) for _ in range(5)]
    large = pool.take(290)
    for buffer in held[:4]:
        pool.give_back([buffer])
        assert not large.done
        assert pool.available() == 0
    pool.give_back([held[4]])
    assert len(large.result) == 290
    assert pool.available() == 10


def test_a_whole_buffer_is_better_than_what_was_gathered():
    pool = BufferPool(SIZE + 60, SIZE)
    whole, odd = take(pool), take(pool, 60)
    ticket = pool.take(SIZE)
    pool.give_back([odd])
    assert pool.available() == 0
    pool.give_back([whole])
    assert ticket.result is whole
    assert pool.available() == 60


def test_one_return_serves_as_many_tickets_as_it_can():
    pool, held, first = pool_with_waiter(40)
    others = [pool.take(40), pool.take(40)]
    pool.give_back([held])
    assert first.done
    assert [ticket.done for ticket in others] == [True, False]


def test_a_ticket_may_call_the_pool_when_it_is_granted():
    pool, held, ticket = pool_with_waiter(SIZE)
    seen: list[Any] = []
    ticket.on_done(lambda granted: (pool.give_back([granted.result]), seen.append(pool.available())))
    pool.give_back([held])
    assert seen == [SIZE]


# ---------------------------------------------------------------------------------------------- giving up


def test_a_withdrawn_ticket_returns_what_it_had_gathered():
    """Requirement 35."""
    pool = BufferPool(300, SIZE)
    held = [take(pool, 60) for _ in range(5)]
    large = pool.take(290)
    pool.give_back(held[:3])
    pool.withdraw(large)
    assert pool.waiting() == 0
    assert pool.available() == 180
    pool.give_back(held[3:])
    assert pool.available() == 300
    assert not large.complete(bytearray())


def test_what_was_gathered_goes_to_the_next_in_line():
    """Requirement 35."""
    pool = BufferPool(200, SIZE)
    held = [take(pool), take(pool)]
    large, small = pool.take(150), pool.take(70)
    pool.give_back([held[0]])
    pool.withdraw(large)
    assert len(small.result) == 70
    assert pool.available() == 30


def test_a_ticket_that_is_withdrawn_from_the_middle_leaves_the_others_in_order():
    pool, held, first = pool_with_waiter(40)
    middle, last = pool.take(40), pool.take(60)
    pool.withdraw(middle)
    pool.give_back([held])
    assert first.done
    assert last.done
    assert pool.available() == 0


def test_withdrawing_a_granted_ticket_returns_its_memory():
    pool, held, ticket = pool_with_waiter(SIZE)
    pool.give_back([held])
    assert pool.available() == 0
    pool.withdraw(ticket)
    assert pool.available() == SIZE


def test_a_ticket_given_up_but_not_yet_withdrawn_is_passed_over():
    pool, held, first = pool_with_waiter(60)
    second = pool.take(SIZE)
    first.give_up()
    pool.give_back([held])
    assert len(second.result) == SIZE
    pool.give_back([second.result])
    assert pool.available() == SIZE


def test_memory_for_a_ticket_given_up_at_the_last_moment_comes_back():
    # Between the pool's decision and the grant the holder gives up: the memory has no owner but the pool.
    ticket: Ticket[bytearray]

    def make(size: int) -> bytearray:
        if size == 60:
            ticket.give_up()
        return bytearray(size)

    pool = BufferPool(SIZE, SIZE, make)
    held = take(pool)
    ticket = pool.take(60)
    pool.give_back([held])
    assert pool.available() == SIZE


@pytest.mark.parametrize("size", [SIZE, 60])
def test_a_machine_without_memory_does_not_lose_the_pools(size):
    """Requirement 35."""
    machine = Machine()
    pool = BufferPool(1000, SIZE, machine)
    machine.empty = True
    with pytest.raises(MemoryError):
        pool.try_take(size)
    assert pool.available() == 1000
    machine.empty = False
    take(pool, 1000)


def test_a_machine_without_memory_fails_the_ticket_and_serves_the_next():
    """Requirement 35."""
    machine = Machine()
    pool = BufferPool(120, SIZE, machine)
    held = take(pool, 120)
    ticket, next_ticket = pool.take(60), pool.take(SIZE)
    machine.empty = True
    pool.give_back([held])
    with pytest.raises(MemoryError):
        ticket.result  # noqa: B018
    with pytest.raises(MemoryError):
        next_ticket.result  # noqa: B018
    pool.withdraw(ticket)
    assert pool.available() == 120
    assert pool.waiting() == 0


# ---------------------------------------------------------------------------------------------- no use to wait


def test_each_thread_that_gets_no_memory_has_an_error_of_its_own():
    pool = BufferPool(300, SIZE)
    held = [take(pool) for _ in range(3)]
    tickets = [pool.take(250), pool.take(SIZE)]
    pool.give_back([held[0]])  # gathered for the first
    pool.fail_waiting(lambda: AuthenticationError("who are you?"))
    errors = []
    for ticket in tickets:
        with pytest.raises(AuthenticationError) as caught:
            ticket.result  # noqa: B018
        errors.append(caught.value)
        pool.withdraw(ticket)
    assert errors[0] is not errors[1]
    assert (pool.waiting(), pool.available()) == (0, SIZE)
    later = pool.take(200)
    assert not later.done
    pool.give_back([held[1]])
    assert len(later.result) == 200
    pool.give_back([held[2], later.result])
    assert pool.available() == 300


# ---------------------------------------------------------------------------------------------- close


def test_close_wakes_everybody_who_waits():
    """Requirement 36."""
    pool = BufferPool(300, SIZE)
    held = [take(pool) for _ in range(3)]
    tickets = [pool.take(250), pool.take(SIZE)]
    pool.give_back([held[0]])
    pool.close()
    for ticket in tickets:
        with pytest.raises(ProducerClosedError, match="closed while memory was asked for"):
            ticket.result  # noqa: B018
        pool.withdraw(ticket)
    assert pool.waiting() == 0
    pool.give_back(held[1:])
    assert pool.available() == 300


@pytest.mark.parametrize("method", ["try_take", "take"])
def test_a_closed_pool_refuses(method):
    """Requirement 36."""
    pool = BufferPool(300, SIZE)
    pool.close()
    with pytest.raises(ProducerClosedError):
        getattr(pool, method)(SIZE)


# ---------------------------------------------------------------------------------------------- threads


@pytest.mark.slow
def test_many_threads_lose_nothing():
    """Requirement 36."""
    pool = BufferPool(10 * SIZE, SIZE, smallest=25)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                size = rng.choice((25, 50, SIZE)) if rng.random() < 0.6 else rng.randint(1, 10 * SIZE)
                ticket = pool.take(size)
                if rng.random() < 0.2:
                    pool.withdraw(ticket)
                    continue
                if not ticket.wait(60):
                    raise TimeoutError(f"{ticket!r}")
                buffer = ticket.result
                if len(buffer) != size:
                    raise ValueError(f"{len(buffer)} bytes instead of {size}")
                pool.give_back([buffer])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert pool.available() == pool.total
    assert pool.waiting() == 0


class _InterruptedOnTheWayOut:
    """A lock that Ctrl-C follows on, once it is let go, as often as it is asked to."""

    def __init__(self, lock, times=1):
        self._lock = lock
        self._left = times

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *error):
        self._lock.__exit__(*error)
        if self._left:
            self._left -= 1
            raise KeyboardInterrupt


@pytest.mark.parametrize("size", [64, 100])
@pytest.mark.parametrize("used_before", [False, True])
def test_ctrl_c_while_memory_is_taken_loses_none(size, used_before):
    pool = BufferPool(256, 64)
    if used_before:
        pool.give_back((pool.try_take(64),))
    pool._lock = _InterruptedOnTheWayOut(pool._lock)
    with pytest.raises(KeyboardInterrupt):
        pool.try_take(size)
    assert pool.available() == 256


def test_ctrl_c_while_a_ticket_is_granted_loses_none(monkeypatch):
    pool = BufferPool(256, 64)
    ticket = Ticket("memory")

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Ticket, "complete", lambda *_: interrupted(None))
    with pytest.raises(KeyboardInterrupt):
        pool.take_for(ticket, 64)
    pool.withdraw(ticket)
    assert pool.available() == 256
