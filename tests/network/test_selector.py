# SPDX-License-Identifier: Apache-2.0
"""Waking the I/O thread: no wake-up is lost, and no byte is written without need."""

from __future__ import annotations

import select
import threading
import time

import pytest

from penstock.network._sockets_cy import SocketSelector, Wakeup


@pytest.fixture
def wakeup():
    made = Wakeup()
    yield made
    made.close()


def readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_without_a_sleeper_no_byte_is_written(wakeup):
    wakeup.wake()
    assert not readable(wakeup)


def test_a_wake_before_the_wait_forbids_it(wakeup):
    wakeup.wake()
    assert wakeup.before_wait() is False


def test_a_wake_during_the_wait_ends_it(wakeup):
    assert wakeup.before_wait() is True
    wakeup.wake()
    assert readable(wakeup)
    wakeup.after_wait()
    wakeup.drain()
    assert not readable(wakeup)
    assert wakeup.before_wait() is True


def test_many_wakes_neither_block_nor_stay(wakeup):
    wakeup.before_wait()
    for _ in range(10_000):
        wakeup.wake()
    wakeup.after_wait()
    while readable(wakeup):
        wakeup.drain()
    assert wakeup.before_wait() is True


def test_a_wake_after_closing_does_nothing():
    made = Wakeup()
    made.before_wait()
    made.close()
    made.wake()


def test_another_thread_ends_the_wait_of_a_selector():
    """Many rounds: a wake-up that got lost would leave the selector waiting for ten minutes."""
    selector = SocketSelector()
    rounds = 300
    turn = threading.Semaphore(0)

    def wake_each_round():
        for _ in range(rounds):
            turn.acquire()
            selector.wakeup()

    waker = threading.Thread(target=wake_each_round)
    waker.start()
    started = time.monotonic()
    for _ in range(rounds):
        turn.release()  # the waker may come before, during or after the selector begins to wait
        assert selector.poll(600) == []
    waker.join()
    selector.close()
    assert time.monotonic() - started < 300


def test_an_endless_wait_is_cut_short_not_refused():
    selector = SocketSelector()
    selector.wakeup()
    assert selector.poll(float("inf")) == []
    selector.close()
