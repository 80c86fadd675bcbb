# SPDX-License-Identifier: Apache-2.0
"""The outcome of a batch as its records' Deliveries tell it: waiting, following, awaiting, also through splits."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from producer.fakes_core import TIME

from penstock.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from penstock.producer.batch._delivery_cy import BatchResult, Delivery
from penstock.producer.owner import mark_io_thread
from penstock.producer.send.bulk_delivery import BulkDelivery, BulkPromise
from penstock.types import RecordMetadata

ERROR = KafkaError("refused")


def same(error: Any, other: KafkaError) -> bool:
    """Whether an error says the same as another, without being it."""
    return error is not other and type(error) is type(other) and error.args == other.args


def new_result() -> BatchResult:
    return BatchResult("orders", 3)


def new_deliveries(result: BatchResult, count: int) -> list[Delivery]:
    return [Delivery(result, index, TIME + index, 2, 5) for index in range(count)]


def with_callbacks(result: BatchResult, deliveries: list[Delivery], told: list[Any]) -> None:
    """Give every record an on_delivery that notes (index, offset, error)."""
    for delivery in deliveries:
        result.callbacks.append(
            (delivery, lambda metadata, error, at=delivery._index: told.append((at, metadata.offset, error)))
        )


def split(result: BatchResult, *firsts: int) -> list[BatchResult]:
    """Split a result at these indexes."""
    pieces = [new_result() for _ in firsts]
    result.forward(list(zip(firsts, pieces, strict=True)))
    return pieces


def in_thread(work: Callable[[], Any], as_io: bool = False) -> tuple[threading.Thread, list[Any]]:
    """Run work on a thread; its result, or the exception it raised, comes into the list."""
    outcome: list[Any] = []

    def run() -> None:
        if as_io:
            mark_io_thread()
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def waiting_in_thread(delivery: Delivery, at: BatchResult) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits for a Delivery, and has come as far as to wait at that result."""
    before = len(at.followers.waiters)
    thread, outcome = in_thread(lambda: delivery.result(60))
    while len(at.followers.waiters) == before and thread.is_alive():
        thread.join(0.001)
    return thread, outcome


# ---------------------------------------------------------------------------------------------- plain


def test_a_delivery_is_pending_until_its_batch_is_settled():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    assert not delivery.done()
    assert repr(delivery) == "<Delivery orders-3 pending>"
    with pytest.raises(KafkaTimeoutError, match=r"no outcome for a record of orders-3 within 0(.0)? s"):
        delivery.result(0)
    with pytest.raises(KafkaTimeoutError, match=r"no outcome for a record of orders-3 within 0(.0)? s"):
        delivery.exception(0)
    result.settle(100, -1)
    assert delivery.done()
    assert delivery.result() == RecordMetadata("orders", 3, 100, TIME, 2, 5)
    assert delivery.exception() is None
    assert "offset=100" in repr(delivery)


def test_a_failed_delivery_raises_its_error():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    result.settle(error=ERROR)
    with pytest.raises(KafkaError, match="refused"):
        delivery.result()
    assert same(delivery.exception(), ERROR)
    assert "refused" in repr(delivery)


class Held:
    """Something that a frame holds, to see whether the frame is let go of."""


def raise_result(delivery: Delivery, _: BulkDelivery) -> None:
    delivery.result(0)


def raise_exception(delivery: Delivery, _: BulkDelivery) -> None:
    error = delivery.exception(0)
    assert error is not None
    raise error


def raise_error_of_row(_: Delivery, bulk: BulkDelivery) -> None:
    raise bulk.errors[0].error


def raise_cause_of_bulk(_: Delivery, bulk: BulkDelivery) -> None:
    error = bulk.exception(0)
    assert error is not None
    assert isinstance(error.__cause__, KafkaError)
    raise error.__cause__


@pytest.mark.parametrize("ask", [raise_result, raise_exception, raise_error_of_row, raise_cause_of_bulk])
@pytest.mark.parametrize("indexes", [(), (0,)], ids=["of the batch", "its own"])
def test_who_raises_the_error_of_a_record_is_not_held_by_it(ask, indexes):
    def user() -> weakref.ref[Held]:
        held = Held()
        result = new_result()
        [delivery] = new_deliveries(result, 1)
        promise = BulkPromise()
        promise.note(delivery, 0)
        bulk = promise.delivery
        result.settle(
            error=KafkaError("refused"), record_errors={index: KafkaError("its own") for index in indexes}
        )
        try:
            ask(delivery, bulk)
        except KafkaError:
            return weakref.ref(held)
        raise AssertionError("it did not raise")

    held = user()
    gc.collect()
    assert held() is None


def test_a_callback_that_raises_the_error_it_was_given_is_not_held_by_it(monkeypatch):
    monkeypatch.setattr(logging.getLogger("penstock.producer"), "disabled", True)  # a log keeps what it shows
    seen: list[weakref.ref[Held]] = []

    def callback(metadata: RecordMetadata, error: KafkaError | None) -> None:
        held = Held()
        seen.append(weakref.ref(held))
        assert error is not None
        raise error

    def user() -> None:
        result = new_result()
        [delivery] = new_deliveries(result, 1)
        result.callbacks.append((delivery, callback))
        result.settle(error=KafkaError("refused"))

    user()
    gc.collect()
    assert seen[0]() is None


def test_what_is_done_to_an_error_does_not_show_at_others():
    result = new_result()
    deliveries = new_deliveries(result, 2)
    result.settle(error=ERROR)
    first = deliveries[0].exception(0)
    assert first is not None
    first.add_note("seen by the first")
    assert not hasattr(deliveries[1].exception(0), "__notes__")


def test_a_result_is_set_once():
    result = new_result()
    result.settle(1)
    with pytest.raises(IllegalStateError, match="set twice"):
        result.settle(error=ERROR)
    assert result.error is None


def test_a_split_result_is_not_set_itself():
    result = new_result()
    split(result, 0, 1)
    with pytest.raises(IllegalStateError, match="set twice"):
        result.settle(1)


@pytest.mark.parametrize("settled", ["pending", "acknowledged", "failed", "split"])
def test_a_result_says_how_it_stands(settled):
    result = new_result()
    if settled == "acknowledged":
        result.settle(1)
    elif settled == "failed":
        result.settle(error=ERROR)
    elif settled == "split":
        split(result, 0, 1)
    assert repr(result) == f"<BatchResult orders-3 {settled}>"


# ---------------------------------------------------------------------------------------------- callbacks


def test_callbacks_run_in_the_order_of_the_records():
    result = new_result()
    told: list[Any] = []
    with_callbacks(result, new_deliveries(result, 5), told)
    result.settle(10)
    assert told == [(index, 10 + index, None) for index in range(5)]


def test_callbacks_of_a_failed_batch_get_metadata_and_the_error():
    result = new_result()
    own = KafkaError("its own")
    seen: list[Any] = []
    for delivery in new_deliveries(result, 2):
        result.callbacks.append((delivery, lambda metadata, error: seen.append((metadata, error))))
    result.settle(error=ERROR, record_errors={1: own})
    nowhere = RecordMetadata("orders", 3, -1, -1, -1, -1)
    assert [metadata for metadata, _ in seen] == [nowhere] * 2
    assert same(seen[0][1], ERROR)
    assert same(seen[1][1], own)


def test_a_callback_that_raises_stops_nobody(caplog):
    result = new_result()
    told: list[Any] = []
    deliveries = new_deliveries(result, 3)
    with_callbacks(result, deliveries, told)
    result.callbacks.insert(1, (deliveries[0], lambda metadata, error: 1 / 0))
    with caplog.at_level(logging.ERROR):
        result.settle(0)
    assert [at for at, _, _ in told] == [0, 1, 2]
    assert deliveries[0].done()
    assert "on_delivery callback for orders-3 raised (it is called with (metadata, error))" in caplog.text


def test_a_delivery_is_done_only_after_its_callback():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    seen: list[Any] = []
    result.callbacks.append((delivery, lambda metadata, error: seen.append(delivery.done())))
    delivery.add_done_callback(lambda _: seen.append("follower"))
    result.settle(0)
    assert seen == [False, "follower"]


def test_callbacks_are_let_go_of_after_they_ran():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    result.callbacks.append((delivery, print_nothing))
    delivery.add_done_callback(print_nothing)
    result.settle(0)
    assert result.callbacks == []
    assert result.followers.entries == []


def print_nothing(*_: object) -> None:
    pass


# ---------------------------------------------------------------------------------------------- followers


def test_done_callbacks_added_before_and_after():
    result = new_result()
    first, second = new_deliveries(result, 2)
    seen: list[Delivery] = []
    first.add_done_callback(seen.append)
    second.add_done_callback(seen.append)
    assert seen == []
    result.settle(0)
    assert seen == [first, second]
    first.add_done_callback(seen.append)
    assert seen == [first, second, first]


def test_a_done_callback_that_raises_is_logged(caplog):
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    seen: list[Delivery] = []
    delivery.add_done_callback(lambda _: 1 / 0)
    delivery.add_done_callback(seen.append)
    with caplog.at_level(logging.ERROR):
        result.settle(0)
    assert seen == [delivery]
    assert "a done callback of a delivery raised" in caplog.text


def test_ctrl_c_in_a_done_callback_that_runs_at_once_reaches_the_caller():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    result.settle(5)

    def interrupted(_: Delivery) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        delivery.add_done_callback(interrupted)


def test_a_callback_may_follow_its_own_delivery():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    seen: list[Any] = []
    result.callbacks.append((delivery, lambda metadata, error: delivery.add_done_callback(seen.append)))
    result.settle(0)
    assert seen == [delivery]


def test_the_same_done_callback_may_be_added_twice():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    delivery.add_done_callback(seen.append)
    result.settle(0)
    assert seen == [delivery, delivery]


# ---------------------------------------------------------------------------------------------- waiting


def test_a_waiter_is_released():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    thread, outcome = waiting_in_thread(delivery, result)
    result.settle(7)
    thread.join(60)
    assert outcome == [RecordMetadata("orders", 3, 7, TIME, 2, 5)]


def test_waiting_again_and_again_leaves_nothing_behind():
    result = new_result()
    [delivery] = new_deliveries(result, 1)
    for _ in range(20):
        with pytest.raises(KafkaTimeoutError):
            delivery.result(1e-4)
    assert result.followers.waiters == []


def test_a_callback_may_ask_for_a_settled_delivery_but_not_wait():
    settled, pending = new_result(), new_result()
    [delivery], [other] = new_deliveries(settled, 1), new_deliveries(pending, 1)
    seen: list[Any] = []

    def callback(metadata: RecordMetadata, error: KafkaError | None) -> None:
        seen.append(delivery.result(0).offset)
        try:
            other.result()
        except IllegalStateError as refusal:
            seen.append(str(refusal))

    settled.callbacks.append((delivery, callback))
    thread, _ = in_thread(lambda: settled.settle(4), as_io=True)
    thread.join(60)
    assert seen[0] == 4
    assert "Delivery.result() was called from a delivery callback" in seen[1]


# ---------------------------------------------------------------------------------------------- splits


def test_after_a_split_the_pieces_answer():
    """Requirement 28."""
    result = new_result()
    deliveries = new_deliveries(result, 5)
    first, second = split(result, 0, 3)
    assert not any(delivery.done() for delivery in deliveries)
    first.settle(100)
    assert [delivery.done() for delivery in deliveries] == [True] * 3 + [False] * 2
    second.settle(error=ERROR, record_errors={1: KafkaError("last")})
    assert [delivery.result(0).offset for delivery in deliveries[:3]] == [100, 101, 102]
    assert [str(delivery.exception(0)) for delivery in deliveries[3:]] == ["refused", "last"]
    # What belongs to the record itself stays its own.
    assert deliveries[2].result(0) == RecordMetadata("orders", 3, 102, TIME + 2, 2, 5)


def test_callbacks_go_with_their_pieces():
    """Requirement 28."""
    result = new_result()
    told: list[Any] = []
    with_callbacks(result, new_deliveries(result, 5), told)
    first, second = split(result, 0, 3)
    assert told == []
    first.settle(100)
    assert told == [(0, 100, None), (1, 101, None), (2, 102, None)]
    second.settle(103)
    assert told[3:] == [(3, 103, None), (4, 104, None)]


def test_done_callbacks_go_with_their_pieces():
    """Requirement 28."""
    result = new_result()
    deliveries = new_deliveries(result, 4)
    seen: list[tuple[int, str]] = []
    for delivery in deliveries:
        delivery.add_done_callback(lambda done: seen.append((done._index, "before")))
    first, second = split(result, 0, 2)
    for delivery in deliveries:
        delivery.add_done_callback(lambda done: seen.append((done._index, "after")))
    second.settle(2)
    assert sorted(seen) == [(2, "after"), (2, "before"), (3, "after"), (3, "before")]
    first.settle(0)
    assert sorted(seen[4:]) == [(0, "after"), (0, "before"), (1, "after"), (1, "before")]


def test_waiters_go_on_at_their_pieces():
    """Requirement 28."""
    result = new_result()
    deliveries = new_deliveries(result, 4)
    early, early_outcome = waiting_in_thread(deliveries[3], result)
    first, second = split(result, 0, 2)
    late, late_outcome = waiting_in_thread(deliveries[2], second)
    first.settle(50)
    assert (early_outcome, late_outcome) == ([], [])
    second.settle(52)
    early.join(60)
    late.join(60)
    assert (early_outcome[0].offset, late_outcome[0].offset) == (53, 52)


def test_pieces_can_be_split_again():
    """Requirement 28."""
    result = new_result()
    deliveries = new_deliveries(result, 10)
    told: list[Any] = []
    followed: list[int] = []
    with_callbacks(result, deliveries, told)
    for delivery in deliveries:
        delivery.add_done_callback(lambda done: followed.append(done._index))
    first, middle, last = split(result, 0, 4, 7)
    one, two = split(middle, 0, 1)  # records 4, and 5 and 6
    two.settle(205)
    assert told == [(5, 205, None), (6, 206, None)]
    assert followed == [5, 6]
    one.settle(104)
    first.settle(0)
    last.settle(error=ERROR)
    assert sorted(followed) == list(range(10))
    assert sorted((at, offset) for at, offset, _ in told) == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 104), (5, 205), (6, 206), (7, -1), (8, -1), (9, -1),
    ]  # fmt: skip
    assert all(same(error, ERROR) for _, _, error in told[-3:])
    assert [delivery._outcome()[0].offset for delivery in deliveries] == [
        0,
        1,
        2,
        3,
        104,
        205,
        206,
        -1,
        -1,
        -1,
    ]


def test_who_comes_between_two_splits_is_answered_too():
    """Requirement 28."""
    result = new_result()
    deliveries = new_deliveries(result, 10)
    _, middle, _ = split(result, 0, 4, 7)
    seen: list[int] = []
    for delivery in deliveries[4:7]:
        delivery.add_done_callback(lambda done: seen.append(done._index))
    thread, outcome = waiting_in_thread(deliveries[5], middle)
    one, two, three = split(middle, 0, 1, 2)
    three.settle(30)
    assert seen == [6]
    two.settle(20)
    thread.join(60)
    assert outcome[0].offset == 20
    one.settle(10)
    assert sorted(seen) == [4, 5, 6]


def test_a_piece_of_a_piece_of_a_piece():
    """Requirement 28."""
    result = new_result()
    deliveries = new_deliveries(result, 8)
    told: list[Any] = []
    with_callbacks(result, deliveries, told)
    _, right = split(result, 0, 4)
    _, right = split(right, 0, 2)
    left, right = split(right, 0, 1)
    right.settle(7)
    assert told == [(7, 7, None)]
    left.settle(6)
    assert told == [(7, 7, None), (6, 6, None)]


# ---------------------------------------------------------------------------------------------- the whole batch


def test_the_end_of_a_whole_batch_can_be_followed():
    result = new_result()
    seen: list[str] = []
    result.when_settled(lambda: seen.append("before"))
    assert seen == []
    result.settle(0)
    result.when_settled(lambda: seen.append("after"))
    assert seen == ["before", "after"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize("asked", ["before", "between", "after"])
def test_a_whole_batch_ends_with_the_last_of_its_pieces(order, asked):
    """Requirement 28."""
    result = new_result()
    seen: list[int] = []

    def ask(when: str) -> None:
        if when == asked:
            result.when_settled(lambda: seen.append(1))

    ask("before")
    first, middle, last = split(result, 0, 4, 7)
    ask("between")
    pieces = [first, *split(middle, 0, 1), last]
    ask("after")
    for number in order:
        assert seen == []
        pieces[number].settle(0)
    assert seen == [1]


# ---------------------------------------------------------------------------------------------- asyncio


def test_a_delivery_can_be_awaited_before_and_after_the_outcome():
    async def main() -> None:
        result = new_result()
        first, second = new_deliveries(result, 2)
        waiting = asyncio.ensure_future(_await(first))
        await asyncio.sleep(0)
        assert not waiting.done()
        threading.Thread(target=result.settle, args=(40,)).start()
        assert (await waiting).offset == 40
        assert (await second).offset == 41

    asyncio.run(main())


def test_a_failed_delivery_raises_where_it_is_awaited():
    async def main() -> None:
        result = new_result()
        [delivery] = new_deliveries(result, 1)
        result.settle(error=ERROR)
        with pytest.raises(KafkaError, match="refused"):
            await delivery

    asyncio.run(main())


def test_awaiting_goes_through_splits():
    """Requirement 28."""

    async def main() -> None:
        result = new_result()
        deliveries = new_deliveries(result, 4)
        waiting = [asyncio.ensure_future(_await(delivery)) for delivery in deliveries]
        await asyncio.sleep(0)
        first, second = split(result, 0, 2)
        late = asyncio.ensure_future(_await(deliveries[3]))
        await asyncio.sleep(0)
        third, fourth = split(second, 0, 1)
        for offset, piece in ((0, first), (2, third), (3, fourth)):
            threading.Thread(target=piece.settle, args=(offset,)).start()
        assert [metadata.offset for metadata in await asyncio.gather(*waiting, late)] == [0, 1, 2, 3, 3]

    asyncio.run(main())


def test_a_cancelled_wait_does_not_disturb_the_delivery(caplog):
    async def main() -> None:
        result = new_result()
        [delivery] = new_deliveries(result, 1)
        waiting = asyncio.ensure_future(_await(delivery))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        result.settle(5)
        assert (await delivery).offset == 5

    asyncio.run(main())
    assert caplog.text == ""


async def _await(delivery: Delivery) -> RecordMetadata:
    return await delivery


# ---------------------------------------------------------------------------------------------- threads


@pytest.mark.slow
def test_a_follower_that_comes_with_the_outcome_is_told_once():
    for round_number in range(60):
        result = new_result()
        deliveries = new_deliveries(result, 6)
        told: list[int] = []
        start = threading.Barrier(5)

        def follow(
            deliveries: list[Delivery] = deliveries, told: list[int] = told, start: threading.Barrier = start
        ) -> list[int]:
            start.wait()
            for delivery in deliveries:
                delivery.add_done_callback(lambda done: told.append(done._index))
            return [delivery.result(60).offset for delivery in deliveries]

        def settle(result: BatchResult = result, start: threading.Barrier = start) -> None:
            start.wait()
            first, second = split(result, 0, 2)
            third, fourth = split(second, 0, 2)
            fourth.settle(4)
            first.settle(0)
            third.settle(2)

        followers = [in_thread(follow) for _ in range(4)]
        settler, _ = in_thread(settle, as_io=True)
        settler.join(60)
        for thread, outcome in followers:
            thread.join(60)
            assert outcome == [[0, 1, 2, 3, 4, 5]], f"round {round_number}"
        assert sorted(told) == sorted([*range(6)] * 4), f"round {round_number}"
