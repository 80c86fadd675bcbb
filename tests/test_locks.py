# SPDX-License-Identifier: Apache-2.0
"""Locks that do not wait for their own holder, and a latch without a lock: in both forms."""

from __future__ import annotations

import ast
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock import _locks
from penstock._locks import Latch, NestingLock, OwnedLock, forbid_reentry, inside, new_lock, new_nesting_lock
from penstock.errors import ReentrantCallError

SECONDS = 60.0


def test_a_thread_inside_a_lock_is_refused_what_would_wait():
    assert not inside()
    forbid_reentry("flush()")
    for lock in (new_lock(), new_nesting_lock()):
        with lock:
            assert inside()
            with pytest.raises(ReentrantCallError, match=r"flush\(\) was called by a finalizer"):
                forbid_reentry("flush()")
        assert not inside()


def test_another_thread_is_not_inside():
    seen: list[bool] = []
    with new_lock():
        thread = threading.Thread(target=lambda: seen.append(inside()))
        thread.start()
        thread.join(SECONDS)
    assert seen == [False]


def test_the_garbage_collector_may_let_locks_go_while_they_are_looked_through(monkeypatch):
    monkeypatch.setattr(_locks, "_COMPILED", False)
    thresholds = gc.get_threshold()
    # The heap of a whole run takes the collector seconds, twenty times. It stays frozen, as it is since the tests were
    # collected: or each collection of a later test would take half a second.
    gc.freeze()
    try:
        # Each allocation on the way starts the collector once.
        for allocations in range(20):
            gc.collect()
            gc.disable()
            for _ in range(40):  # so many that a tuple of them is no recycled one
                cycle: list[Any] = [new_nesting_lock()]
                cycle.append(cycle)
                del cycle
            gc.set_threshold(gc.get_count()[0] + allocations)
            gc.enable()
            assert not inside()
            gc.set_threshold(*thresholds)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


@pytest.mark.parametrize("make", [new_lock, OwnedLock])
def test_to_take_it_twice_is_an_error_and_it_is_free_afterwards(make: Callable[[], Any]):
    lock = make()
    with pytest.raises(ReentrantCallError), lock, lock:
        raise AssertionError("it was taken twice")
    with lock:
        pass


@pytest.mark.parametrize("make", [new_nesting_lock, NestingLock])
def test_one_that_nests_can_be_taken_twice(make: Callable[[], Any]):
    lock = make()
    with lock, lock:
        pass
    taken: list[bool] = []

    def take() -> None:
        with lock:
            taken.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(SECONDS)
    assert taken == [True]


def test_many_locks_are_not_remembered_for_ever():
    for _ in range(100):
        with OwnedLock():
            pass
    assert len(_locks._taken.locks) <= 17


class InterruptedOnce(set[OwnedLock]):
    """A set of taken locks; somebody who looks at its size is interrupted by a handler that takes many others."""

    def __len__(self) -> int:
        size = super().__len__()
        if _locks._taken.locks is self:
            _locks._taken.locks = set(self)
            for _ in range(10):
                with OwnedLock():
                    pass
        return size


def test_a_lock_is_known_although_a_handler_has_replaced_the_set_of_those_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_locks, "_COMPILED", False)
    monkeypatch.setattr(_locks._taken, "locks", InterruptedOnce())
    with OwnedLock():
        assert inside()
    assert not inside()


def interrupted_at(lock: OwnedLock, line: int) -> bool:
    """Whether taking the lock has so many lines; Ctrl-C comes before that one."""
    left = line

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not OwnedLock.__enter__.__code__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with lock:
            return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)


def test_ctrl_c_at_any_line_leaves_the_lock_free():
    """In plain Python Ctrl-C may come between any two steps of `__enter__`."""
    line = 0
    lock = OwnedLock()
    while interrupted_at(lock, line):
        assert not lock.is_mine(), f"before line {line}"
        line += 1
    assert line > 3
    assert not lock.is_mine()


def test_a_latch_lets_everybody_go_on():
    latch = Latch()
    assert not latch.wait(0)
    assert not latch.wait(0.001)
    threads = [threading.Thread(target=latch.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    latch.set()
    latch.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert latch.is_set()
    assert latch.wait()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_may_open_the_latch_that_its_thread_waits_at():
    latch = Latch()
    before = signal.signal(signal.SIGALRM, lambda *_: latch.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert latch.wait(SECONDS)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_locks_may_be_made_while_a_thread_asks_whether_it_holds_one() -> None:
    kept = [_locks.new_nesting_lock() for _ in range(50)]
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            kept.extend(_locks.new_nesting_lock() for _ in range(50))
            del kept[50:]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    maker = threading.Thread(target=make)
    maker.start()
    try:
        for _ in range(20_000):
            assert not _locks.inside()
    finally:
        stop.set()
        maker.join()
        sys.setswitchinterval(interval)


# ---- every lock of the package is made in _locks

SOURCES = Path(_locks.__file__).parent
WITH_A_LOCK = {
    "threading": {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Timer"},
    "_thread": {"RLock", "allocate_lock", "allocate"},
    "queue": {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"},
    "multiprocessing": {
        "Lock",
        "RLock",
        "Condition",
        "Event",
        "Semaphore",
        "Barrier",
        "Queue",
        "JoinableQueue",
    },
    "concurrent.futures": {"Future", "ThreadPoolExecutor", "ProcessPoolExecutor"},
    "functools": {"cached_property"},  # has a lock before Python 3.12
}
# Why these may have one of their own.
EXCEPTIONS = {
    "_locks.py": "it makes the locks",
    "_short_lock_cy.py": "it is one of them; threads wait at its door while they hold nothing",
    "devbroker/releases/fetch.py": "a Timer that kills a download; no producer is there",
    "devbroker/releases/release.py": "a cached_property of a release of Kafka; no producer is there",
}


def locks_made(tree: ast.AST) -> Iterator[str]:
    names: dict[str, str] = {}  # of modules, as the file calls them
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: each.name for each in node.names if each.name in WITH_A_LOCK}
        elif isinstance(node, ast.ImportFrom) and node.module in WITH_A_LOCK:
            yield from (
                f"{node.module}.{each.name}" for each in node.names if each.name in WITH_A_LOCK[node.module]
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = names.get(ast.unparse(node.value))
            if module is not None and node.attr in WITH_A_LOCK[module]:
                yield f"{module}.{node.attr}"


def test_every_lock_of_the_package_is_made_in_one_module() -> None:
    made = {
        path.relative_to(SOURCES).as_posix(): sorted(set(locks_made(ast.parse(path.read_text()))))
        for path in SOURCES.rglob("*.py")
    }
    own = {name: found for name, found in made.items() if found}
    wrong = {name: found for name, found in own.items() if name not in EXCEPTIONS}
    assert not wrong, "use new_lock() or Latch of _locks: forbid_reentry does not know of these"
    assert sorted(own) == sorted(EXCEPTIONS), "an exception that is none any more"


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nx = threading.Event()",
        "import threading as t\nx = t.Lock()",
        "from threading import Condition",
        "from queue import SimpleQueue as Q",
        "import concurrent.futures\nx = concurrent.futures.Future()",
    ],
)
def test_a_lock_of_another_kind_is_seen(text: str) -> None:
    assert len(list(locks_made(ast.parse(text)))) == 1


def test_a_thread_that_serves_others_is_refused_what_would_wait_for_them() -> None:
    with _locks.serving("a thread of this test"):
        assert not inside()
        with pytest.raises(
            ReentrantCallError, match=r"flush\(\) was called .* on a thread of this test: it would"
        ):
            forbid_reentry("flush()")
    forbid_reentry("flush()")
