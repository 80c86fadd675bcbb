# SPDX-License-Identifier: Apache-2.0
"""The lock of a partition's queue, compiled: one holder at a time, and nobody is forgotten who waits."""

from __future__ import annotations

import threading

import pytest

from penstock import _short_lock_cy
from penstock._short_lock_cy import ShortLock, holds_any
from penstock.errors import ReentrantCallError

pytestmark = pytest.mark.skipif(
    not _short_lock_cy.is_compiled(), reason="plain Python uses another class, see test_locks"
)

SECONDS = 60.0


def test_one_holder_at_a_time():
    lock = ShortLock()
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            with lock:
                inside.append(number)
                most.append(len(inside))
                sum(range(200))  # the interpreter may let others run here
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert not any(thread.is_alive() for thread in threads)
    assert len(most) == 4 * 300
    assert max(most) == 1


def test_who_waits_gets_it_when_it_is_let_go():
    lock = ShortLock()
    order: list[str] = []
    waiting = threading.Barrier(4)

    def wait() -> None:
        waiting.wait(SECONDS)
        lock.acquire()
        order.append("waiter")
        lock.release()

    lock.acquire()
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.wait(SECONDS)
    for thread in threads:
        thread.join(0.02)  # they cannot end
    order.append("holder")
    lock.release()
    for thread in threads:
        thread.join(SECONDS)

    assert order == ["holder", "waiter", "waiter", "waiter"]


def test_it_is_free_again_after_an_error_inside():
    lock = ShortLock()

    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")

    lock.acquire()
    lock.release()


def test_its_holder_is_refused_and_does_not_wait_for_himself():
    lock, other = ShortLock(), ShortLock()

    with lock:
        with pytest.raises(ReentrantCallError, match="finalizer or a signal handler"):
            lock.acquire()
        with other:  # that is another one
            assert holds_any()
    assert not holds_any()


def test_one_that_nests_is_free_when_it_was_let_go_as_often_as_taken():
    lock = ShortLock(nests=True)
    with lock, lock:
        lock.acquire()
        lock.release()
        assert holds_any()
    assert not holds_any()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()
    lock.release()


def test_each_thread_knows_which_it_holds_in_whatever_order_they_are_let_go():
    first, second, third = ShortLock(), ShortLock(), ShortLock()
    seen: list[bool] = []

    def look() -> None:
        with third:
            first.release()
            seen.append(holds_any())
        seen.append(holds_any())

    first.acquire()
    second.acquire()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(SECONDS)
    assert seen == [True, False]
    assert holds_any()
    second.release()
    assert not holds_any()
