# SPDX-License-Identifier: Apache-2.0
"""The lock of a partition's queue, compiled: one holder at a time, and nobody is forgotten who waits."""

from __future__ import annotations

import threading

import pytest

from penstock.producer import _short_lock_cy
from penstock.producer._short_lock_cy import ShortLock

pytestmark = pytest.mark.skipif(
    not _short_lock_cy.is_compiled(), reason="plain Python uses threading.Lock instead"
)

SECONDS = 20.0


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
