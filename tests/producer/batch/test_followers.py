# SPDX-License-Identifier: Apache-2.0
"""Who follows a result and who waits for it: each is told once, in either order of following and the end."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock._done_callbacks import DoneCallback
from penstock.errors import KafkaError
from penstock.producer.batch import _delivery_cy, _followers_cy
from penstock.producer.batch._delivery_cy import BatchResult, Delivery
from penstock.producer.batch._followers_cy import Follower, Followers, WholeResult


class Result:
    """As much of a BatchResult as its followers ask for."""

    def __init__(self) -> None:
        self.followers = Followers()
        self.owner = None
        self.pieces: list[tuple[int, Result]] = []


class Record:
    """As much of a Delivery; `before_add` is called when it is about to be put into a list."""

    def __init__(self, result: Result, index: int = 0, before_add: Callable[[], object] = int) -> None:
        self.result = result
        self.number = index
        self.before_add = before_add

    @property
    def _index(self) -> int:
        self.before_add()
        return self.number

    def _answered_by(self) -> Result:
        return self.result


class Tasks:
    """As much of a `Waiting`."""

    def __init__(self) -> None:
        self.follower: Any = None
        self.told = 0

    def happened(self) -> None:
        self.told += 1


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def follow(result: Result, told: list[Any], index: int = 0) -> Record:
    record = Record(result, index)
    result.followers.add(Follower(record, told.append))
    return record


# ---------------------------------------------------------------------------------------------- following


def test_followers_are_told_at_the_end_and_later_ones_at_once() -> None:
    result = Result()
    told: list[Record] = []
    records = [follow(result, told, index) for index in (2, 0, 2)]
    assert told == []
    assert [entry.delivery for entry in result.followers.entries] == [records[0], records[2], records[1]]
    result.followers.release()
    assert told == [records[0], records[2], records[1]]  # record by record
    late = follow(result, told)
    assert told[3:] == [late]
    assert result.followers.entries == []


def test_once_it_has_ended_a_new_follower_is_told_at_once() -> None:
    result = Result()
    told: list[Record] = []
    early = follow(result, told)
    result.followers.end()
    late = follow(result, told, 1)
    assert told == [late]  # the others are left to the I/O thread
    result.followers.release()
    assert told == [late, early]


def test_who_is_about_to_follow_when_the_end_comes_is_told_once() -> None:
    result = Result()
    told: list[Record] = []
    record = Record(result, before_add=result.followers.release)
    result.followers.add(Follower(record, told.append))
    assert told == [record]
    assert result.followers.entries == []


def test_who_follows_while_others_are_told_is_told_once() -> None:
    result = Result()
    told: list[Any] = []
    first, second = Record(result), Record(result, 1)

    def call_first(record: Record) -> None:
        told.append(record)
        result.followers.add(Follower(second, told.append))
        result.followers.add(Follower(first, told.append))

    result.followers.add(Follower(first, call_first))
    last = follow(result, told)
    result.followers.release()
    assert told == [first, second, first, last]


def test_a_callback_that_raises_is_logged_and_the_next_is_called(caplog: pytest.LogCaptureFixture) -> None:
    result = Result()
    told: list[Record] = []
    result.followers.add(Follower(Record(result), lambda _: 1 / 0))
    record = follow(result, told)
    with caplog.at_level(logging.ERROR):
        result.followers.release()
    assert told == [record]
    assert "a done callback of a delivery raised" in caplog.text


def test_done_callbacks_are_removed_by_record_and_function() -> None:
    result = Result()
    told: list[Record] = []
    mine, other = Record(result), Record(result)

    def add(record: Record, fn: Callable[[Record], object]) -> None:
        entry = DoneCallback(fn, lambda _: None, logging.getLogger("penstock.producer"))
        result.followers.add(Follower(record, entry))

    for record in (mine, mine, other):
        add(record, told.append)
    add(mine, print)
    result.followers.add(Follower(mine, told.append))  # of the package: no done callback
    assert result.followers.remove(mine, told.append) == 2
    assert result.followers.remove(mine, told.append) == 0
    assert result.followers.remove(mine, print) == 1
    assert result.followers.remove(Record(result, 7), told.append) == 0
    result.followers.release()
    assert told == [other, mine]


def test_a_done_callback_may_remove_one_behind_it() -> None:
    batch = BatchResult("t", 0)
    delivery = Delivery(batch, 0)
    told: list[str] = []
    removed: list[int] = []

    def remove(_: Delivery) -> None:
        removed.append(delivery.remove_done_callback(second))

    def second(_: Delivery) -> None:
        told.append("second")

    delivery.add_done_callback(remove)
    delivery.add_done_callback(second)
    batch.settle(0)
    assert removed == [1]
    assert told == []
    assert batch.followers.entries == []


def test_after_a_split_a_follower_goes_on_to_its_piece() -> None:
    whole, piece = Result(), Result()
    told: list[Any] = []
    record = follow(whole, told)
    all_of_it = WholeResult(whole)
    whole.followers.add(Follower(all_of_it, told.append))
    whole.pieces = [(0, piece)]
    record.result = piece
    whole.followers.release()
    assert told == [all_of_it]  # who follows the whole is told of the split
    assert [entry.delivery for entry in piece.followers.entries] == [record]
    piece.followers.release()
    assert told == [all_of_it, record]


def test_what_was_told_is_let_go_of() -> None:
    class Held:
        def __call__(self, _: object) -> None:
            pass

    result = BatchResult("orders", 3)
    callback, record = Held(), Delivery(result, 0)
    held = weakref.ref(callback)
    record.add_done_callback(callback)
    gc.disable()
    try:
        del callback
        assert held() is not None
        result.settle(0)
        assert held() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------- waiting


def test_a_thread_waits_until_the_end() -> None:
    followers = Followers()
    thread = threading.Thread(target=followers.wait, args=(60,))
    thread.start()
    while not followers.waiters and thread.is_alive():
        thread.join(0.001)
    assert thread.is_alive()
    followers.release()
    thread.join(60)
    assert not thread.is_alive()
    assert followers.waiters == []


def test_a_thread_waits_no_longer_than_its_time_and_leaves_nothing_behind() -> None:
    followers = Followers()
    for _ in range(3):
        followers.wait(1e-4)
    assert followers.waiters == []


class NewLatch:
    """In place of a Latch."""

    made: Callable[[], object] = int

    def __init__(self) -> None:
        type(self).made()

    def set(self) -> None:
        pass

    def wait(self, _: float | None) -> None:
        raise KeyboardInterrupt


def test_who_is_about_to_wait_when_the_end_comes_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    followers = Followers()
    monkeypatch.setattr(_followers_cy, "Latch", NewLatch)
    monkeypatch.setattr(NewLatch, "made", followers.release)
    followers.wait(None)
    assert followers.waiters == []
    followers.wait(None)  # later, too


def test_ctrl_c_leaves_no_waiter_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    followers = Followers()
    monkeypatch.setattr(_followers_cy, "Latch", NewLatch)
    with pytest.raises(KeyboardInterrupt):
        followers.wait(None)
    assert followers.waiters == []


# ---------------------------------------------------------------------------------------------- event loops


def test_the_loop_that_joined_last_is_known_until_the_end() -> None:
    result = Result()
    whole = WholeResult(result)
    first, last = Tasks(), Tasks()
    for tasks in (first, last):
        result.followers.join(tasks, whole)
        assert result.followers.waiting is tasks
    seen: list[Any] = []
    last.happened = lambda: seen.append(result.followers.waiting)  # type: ignore[method-assign]
    result.followers.release()
    assert (first.told, seen) == (1, [None])
    late = Tasks()
    result.followers.join(late, whole)
    assert (late.told, result.followers.waiting) == (1, None)


def test_a_loop_that_quits_is_not_told() -> None:
    result = Result()
    first, last = Tasks(), Tasks()
    for tasks in (first, last):
        result.followers.join(tasks, WholeResult(result))
    result.followers.quit(first)
    assert result.followers.waiting is last
    result.followers.quit(last)
    assert result.followers.waiting is None
    assert result.followers.entries == []
    result.followers.quit(last)  # harmless
    result.followers.release()
    assert (first.told, last.told) == (0, 0)


def test_a_loop_is_told_through_the_owner_of_the_result() -> None:
    result = Result()
    posted: list[Any] = []

    class Owner:
        def post(self, *message: Any) -> None:
            posted.append(message)

    result.owner = Owner()  # type: ignore[assignment]
    tasks = Tasks()
    tasks.mailbox = object()  # type: ignore[attr-defined]
    result.followers.join(tasks, WholeResult(result))
    result.followers.release()
    assert posted == [(tasks.mailbox, tasks)]  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- of a result


def test_a_result_has_no_followers_until_somebody_asks() -> None:
    result = BatchResult("orders", 3)
    assert not result.is_followed
    assert result.followers is result.followers
    assert result.is_followed


def test_all_who_ask_first_get_the_same_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another thread, or a finalizer, asked while they are made."""
    result = BatchResult("orders", 3)
    others: list[Followers] = []

    def make() -> Followers:
        monkeypatch.setattr(_delivery_cy, "Followers", Followers)
        others.append(result.followers)
        return Followers()

    monkeypatch.setattr(_delivery_cy, "Followers", make)
    assert result.followers is others[0]


@pytest.mark.parametrize("end", ["settled", "failed", "split"])
def test_followers_that_are_made_when_the_end_comes_know_it(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    result, piece = BatchResult("orders", 3), BatchResult("orders", 3)
    told: list[Delivery] = []

    def make() -> Followers:
        monkeypatch.setattr(_delivery_cy, "Followers", Followers)
        if end == "split":
            result.forward([(0, piece)])
        else:
            result.settle(0, error=KafkaError("refused") if end == "failed" else None)
        return Followers()

    monkeypatch.setattr(_delivery_cy, "Followers", make)
    record = Delivery(result, 0)
    record.add_done_callback(told.append)
    if end == "split":
        assert told == []
        piece.settle(0)
    assert told == [record]
    monkeypatch.setattr(_followers_cy, "Latch", NewLatch)
    result.followers.wait(None)  # it does not wait


@pytest.mark.slow
@pytest.mark.usefixtures("quick_switches")
def test_a_new_follower_is_told_once_though_no_thread_takes_a_lock() -> None:
    """Threads are the first to ask for the followers of a result, follow, remove and wait, while it is settled."""
    threads, rounds = 4, 150
    for number in range(rounds):
        result = BatchResult("orders", 3)
        told: list[int] = []
        removed: list[int] = []
        start = threading.Barrier(threads + 1)

        def work(
            mine: int, result: Any = result, told: Any = told, removed: Any = removed, start: Any = start
        ) -> None:
            record = Delivery(result, mine % 2)
            kept, dropped = (lambda _: told.append(mine)), (lambda _: told.append(-mine))
            start.wait()
            record.add_done_callback(kept)
            record.add_done_callback(dropped)
            if record.remove_done_callback(dropped):
                removed.append(-mine)
            result.followers.wait(60)

        workers = [threading.Thread(target=work, args=(mine,)) for mine in range(1, threads + 1)]
        for worker in workers:
            worker.start()
        start.wait()
        result.settle(0)
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive(), f"round {number}"
        everybody = sorted([*range(-threads, 0), *range(1, threads + 1)])
        assert sorted(told + removed) == everybody, f"round {number}"
        assert (result.followers.entries, result.followers.waiters) == ([], [])
