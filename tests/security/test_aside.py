# SPDX-License-Identifier: Apache-2.0
"""The threads for work that may block: how many there are, who waits for whom, and what happens when there is none."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator

import pytest
from fix_patience import wait_until

from penstock._locks import inside
from penstock.security import aside
from penstock.security.aside import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_AT_WORK,
    MOST_STUCK,
    STUCK_SECONDS,
    Helpers,
    Replacements,
)


class HelpersRig:
    """Helpers with a clock that the test moves, and work that hangs until the test ends."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.helpers = Helpers(now=lambda: self.time)
        self.done: list[str] = []
        self.hanging = 0
        self.release = threading.Event()
        self._before = set(threading.enumerate())

    def threads(self) -> int:
        now = set(threading.enumerate()) - self._before
        return sum(thread.name.startswith("penstock-aside-") for thread in now)

    def hang(self) -> None:
        self.helpers.run(self._hang)

    def do(self, name: str) -> None:
        self.helpers.run(lambda: self.done.append(name))

    def _hang(self) -> None:
        self.hanging += 1
        self.release.wait(60)


@pytest.fixture
def rig() -> Iterator[HelpersRig]:
    made = HelpersRig()
    yield made
    made.release.set()
    made.helpers.close()
    wait_until(lambda: made.threads() == 0)


def test_work_is_done_on_one_daemon_thread_in_its_order(rig):
    seen: list[tuple[int, str, bool]] = []

    def note(number: int) -> None:
        thread = threading.current_thread()
        seen.append((number, thread.name, thread.daemon))

    rig.helpers.start()
    for number in range(50):
        rig.helpers.run(lambda number=number: note(number))
        if number % 10 == 0:
            time.sleep(0.005)
    wait_until(lambda: len(seen) == 50)
    assert all(daemon and name.startswith("penstock-aside-") for _, name, daemon in seen)
    wait_until(lambda: rig.threads() == 1)


def test_the_thread_is_there_before_there_is_work_and_stays(rig):
    rig.helpers.start()
    rig.helpers.start()
    assert rig.threads() == 1
    rig.do("a")
    wait_until(lambda: rig.done)
    time.sleep(0.02)
    wait_until(lambda: rig.threads() == 1)


def test_without_new_threads_the_one_that_is_there_does_all(rig, monkeypatch):
    rig.helpers.start()
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    names = [f"work {number}" for number in range(20)]
    for name in names:
        rig.do(name)
    wait_until(lambda: len(rig.done) == 20)
    assert rig.done == names


def test_without_any_thread_the_caller_does_it(rig, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    rig.helpers.start()
    where: list[threading.Thread] = []
    rig.helpers.run(lambda: where.append(threading.current_thread()))
    assert where == [threading.current_thread()]


def test_threads_are_started_again_once_that_can_be_done(rig, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        rig.do("here")
    where: list[str] = []
    rig.helpers.run(lambda: where.append(threading.current_thread().name))
    wait_until(lambda: where)
    assert rig.done == ["here"]
    assert where[0].startswith("penstock-aside-")


def _refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_work_that_takes_long_does_not_hold_up_other_work(rig):
    for _ in range(MOST_AT_WORK - 1):
        rig.hang()
    rig.do("free")
    wait_until(lambda: rig.done == ["free"])
    assert rig.threads() <= MOST_AT_WORK


def test_there_are_few_threads_and_the_rest_waits(rig):
    for _ in range(30):
        rig.hang()
    wait_until(lambda: rig.hanging == MOST_AT_WORK)
    rig.do("later")
    time.sleep(0.02)
    assert rig.threads() == MOST_AT_WORK
    assert not rig.done
    rig.release.set()
    wait_until(lambda: rig.done == ["later"])
    wait_until(lambda: rig.threads() == 1)


def test_threads_that_are_stuck_are_replaced_up_to_a_limit_and_then_rarely(rig):
    for _ in range(200):  # minutes, with one that hangs in each
        rig.hang()
        wait_until(lambda: rig.threads() == rig.hanging)
        rig.time += STUCK_SECONDS + 1
    assert MOST_STUCK < rig.threads() <= MOST_STUCK + MOST_AT_WORK + 8
    before = rig.threads()
    rig.helpers._queue.clear()
    rig.time += LONGEST_PAUSE + 1
    rig.do("it works again")
    wait_until(lambda: rig.done == ["it works again"])
    assert rig.threads() == before + 1


def test_those_stuck_now_count_and_not_those_that_ever_were():
    replacements = Replacements()
    now = 0.0
    for _ in range(1000):
        now += 61
        assert replacements.allow(1, now)
    assert not replacements.allow(MOST_STUCK + 1, now)
    allowed = [second for second in range(6 * 3600) if replacements.allow(MOST_STUCK + 1, now + second)]
    assert allowed[:4] == [FIRST_PAUSE, 3 * FIRST_PAUSE, 7 * FIRST_PAUSE, 15 * FIRST_PAUSE]
    assert max(b - a for a, b in itertools.pairwise(allowed)) == LONGEST_PAUSE
    assert replacements.allow(MOST_STUCK, now)


def test_work_that_raises_ends_nothing_and_its_text_is_not_told(rig, caplog):
    def leave() -> None:
        raise SystemExit("hunter2")

    with caplog.at_level(logging.DEBUG):
        rig.helpers.run(leave)
        rig.do("next")
        wait_until(lambda: rig.done == ["next"] and caplog.records)
    assert "SystemExit (raised in leave" in caplog.text
    assert "hunter2" not in caplog.text


def test_close_ends_the_threads_and_waits_for_nobody(rig):
    rig.hang()
    wait_until(lambda: rig.hanging == 1)
    rig.do("next")
    wait_until(lambda: rig.done)
    began = time.monotonic()
    rig.helpers.close()
    rig.helpers.close()
    assert time.monotonic() - began < 30
    wait_until(lambda: rig.threads() == 1)  # the one that hangs
    rig.do("too late")
    rig.release.set()
    wait_until(lambda: rig.threads() == 0)
    assert rig.done == ["next"]


def test_a_log_handler_that_raises_ends_no_thread(rig, capsys):
    class Raising(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            raise LookupError("no room")

    def fail() -> None:
        raise ValueError("hunter2")

    handler = Raising()
    logging.getLogger("penstock").addHandler(handler)
    try:
        rig.helpers.start()
        rig.helpers.run(fail)
        rig.do("the next")
        wait_until(lambda: rig.done == ["the next"])
        rig.helpers.close()
        wait_until(lambda: rig.threads() == 0)  # the one that fails tells it before it ends
    finally:
        logging.getLogger("penstock").removeHandler(handler)
    told = capsys.readouterr().err
    assert "LookupError: no room" in told
    assert "hunter2" not in told


def test_close_takes_no_lock(rig):
    """A finalizer of a client that was forgotten calls it, on whatever thread; or the lock is held by another one."""
    rig.do("work")
    wait_until(lambda: rig.done)
    with rig.helpers._lock:
        rig.helpers.close()
        closer = threading.Thread(target=rig.helpers.close, daemon=True)
        closer.start()
        closer.join(60)
        assert not closer.is_alive()
    wait_until(lambda: rig.threads() == 0)


def test_a_thread_that_goes_to_wait_while_the_client_is_closed_ends(rig, monkeypatch):
    """At the last moment: its latch is not shown yet, so that nobody can open it."""
    is_needed = Helpers._is_needed_locked

    def close(self: Helpers, number: int) -> bool:
        self.close()
        return is_needed(self, number)

    monkeypatch.setattr(Helpers, "_is_needed_locked", close)
    rig.helpers.start()
    wait_until(lambda: rig.threads() == 0)


def test_nothing_is_logged_under_the_lock(rig, monkeypatch):
    told: list[bool] = []
    monkeypatch.setattr(aside, "tell", lambda *args, **fields: told.append(inside()))
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    rig.helpers.start()
    rig.do("here")
    assert rig.done == ["here"]
    assert told == [False, False]
