# SPDX-License-Identifier: Apache-2.0
"""Chunks of rows in the queue of a partition: full batches, growth, turns, and memory that goes back."""

from __future__ import annotations

from typing import Any

import pytest
from producer.fakes_core import START, TIME, Core, run, run_to

from penstock.errors import ProducerClosedError
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._queue_cy import GROW, MOVED, NO_BATCH
from penstock.records._batch_cy import BatchWriter
from penstock.records._window_cy import Window
from penstock.records.python_rows import PythonRows

VALUE = bytes(92)  # with its overhead, a record of 101 bytes
ALL_IS_WELL = -1


def window_of(count: int, value: bytes = VALUE) -> Window:
    window = Window(count)
    window.open(PythonRows([value] * count).as_rows(), 0, count)
    window.place([1], 1 << 20, True)
    window.sort()
    window.now_ms = TIME
    return window


def fresh(core: Core, ratio: float = 1.0, size: int = 1024) -> Batch:
    writer = BatchWriter(bytearray(size), size, ratio)
    return Batch(core.queue(), writer, core.now, writer.segments)


def append_steps(core: Core, window: Window, rows: tuple[int, int], accepted: list[Any], *more: Any) -> Any:
    wake = core.accumulator.bulk_wake()
    return core.accumulator.appender.append_rows_steps(core.queue(), window, rows, accepted, wake, *more)


def test_rows_fill_the_batch_and_close_it():
    core = Core()
    window, accepted = window_of(30), []
    assert core.queue().append_rows(window, 0, 30, accepted) == (0, NO_BATCH)
    assert core.queue().append_rows(window, 0, 30, accepted, None, None, fresh(core)) == (9, NO_BATCH)
    assert core.queue().append_rows(window, 9, 30, accepted) == (0, NO_BATCH)
    [(result, index, count, payload, span)] = accepted
    assert (index, count, payload, span) == (0, 9, 9 * 92, (0, 9, None))
    [batch] = core.queue().batches
    assert batch.result is result


def test_rows_go_on_in_the_open_batch():
    core = Core()
    core.append(b"first")
    accepted: list[Any] = []
    assert core.queue().append_rows(window_of(3), 0, 3, accepted) == (3, ALL_IS_WELL)
    assert [part[1:3] for part in accepted] == [(1, 3)]
    core.append(b"last")
    assert [batch.record_count for batch in core.queue().batches] == [5]


def test_a_compressed_batch_grows_by_what_there_is():
    core = Core(compression="lz4")
    window, accepted = window_of(100), []
    queue = core.queue()
    assert queue.append_rows(window, 0, 100, accepted, None, None, fresh(core, 0.1)) == (9, GROW)
    assert queue.append_rows(window, 9, 100, accepted) == (0, GROW)
    spares = [bytearray(1024)]
    assert queue.append_rows(window, 9, 100, accepted, None, spares) == (10, GROW)
    assert spares == []
    assert queue.append_rows(window, 19, 100, accepted, None, []) == (0, GROW)  # none free: it waits
    assert [part[1:3] for part in accepted] == [(0, 9), (9, 10)]


def test_a_compressed_batch_grows_by_memory_of_the_pool():
    core = Core(compression="lz4", memory=8192)
    window, accepted = window_of(100), []
    assert core.queue().append_rows(window, 0, 100, accepted, None, None, fresh(core, 0.1)) == (9, GROW)
    run(append_steps(core, window, (9, 19), accepted))
    assert [part[1:3] for part in accepted] == [(0, 9), (9, 10)]  # in one batch
    assert core.pool.available() == 8192 - 1024


def test_records_without_key_leave_a_compressed_batch_after_twice_their_share():
    core = Core((1, 1, 1), compression="lz4")
    topic = core.topic()
    topic.sticky_partition = 0
    window, accepted = window_of(100), []
    big = fresh(core, 0.01, 100_000)
    taken, why = core.queue().append_rows(window, 0, 100, accepted, topic, None, big)
    assert (taken, why) == (21, ALL_IS_WELL)  # the 21st reaches 2 * 1024 bytes
    assert topic.sticky_bytes == 0
    if topic.sticky_partition != 0:
        assert core.queue().append_rows(window, 21, 100, accepted, topic) == (0, MOVED)


def test_records_without_key_are_not_appended_to_a_partition_that_is_no_longer_the_sticky_one():
    core = Core((1, 1, 1))
    topic = core.topic()
    topic.sticky_partition = 1
    assert core.queue().append_rows(window_of(3), 0, 3, [], topic, None, fresh(core)) == (0, MOVED)
    assert not core.queue().batches


def test_records_without_key_move_on_with_a_full_batch():
    core = Core((1, 1, 1))
    topic = core.topic()
    topic.sticky_partition = 0
    topic.sticky_bytes = 500
    taken, why = core.queue().append_rows(window_of(30), 0, 30, [], topic, None, fresh(core))
    assert (taken, why) == (9, MOVED)
    assert topic.sticky_bytes == 0


def test_records_without_key_move_on_with_each_full_batch():
    core = Core((1, 1, 1))
    topic = core.topic()
    topic.sticky_partition = 0
    # 9 of 101 bytes: what is left has no room for another one.
    assert core.queue().append_rows(window_of(30), 0, 30, [], topic, None, fresh(core)) == (9, MOVED)
    assert topic.sticky_bytes == 0


def test_a_batch_that_others_filled_is_no_share():
    core = Core((1, 1, 1))
    topic = core.topic()
    topic.sticky_partition = 0
    for _ in range(8):
        core.append(VALUE)
    assert core.queue().append_rows(window_of(30), 0, 30, [], topic) == (1, NO_BATCH)
    assert topic.sticky_partition == 0
    assert 101 <= topic.sticky_bytes < 300


def test_a_choice_that_was_interrupted_is_made_up_for():
    core = Core((1, 1, 1))
    core.append(b"opens a batch")
    topic = core.topic()
    topic.sticky_partition = 0
    for counted in (2048, 5000):
        topic.sticky_partition, topic.sticky_bytes = 0, counted
        assert core.queue().append_rows(window_of(3), 0, 3, [], topic) == (0, MOVED)
        assert topic.sticky_bytes == 0
    accepted: list[Any] = []
    topic.sticky_bytes = 2048
    wake = core.accumulator.bulk_wake()
    run(core.accumulator.appender.append_rows_steps(topic, window_of(3), (0, 3), accepted, wake))
    assert sum(part[2] for part in accepted) == 3


def test_a_closed_queue_takes_no_rows():
    core = Core()
    core.accumulator.close()
    with pytest.raises(ProducerClosedError):
        core.queue().append_rows(window_of(1), 0, 1, [])


def test_a_row_that_does_not_fit_a_new_batch_is_a_mistake_that_leaves_nothing():
    core = Core()
    with pytest.raises(ValueError, match="no room for its first record"):
        core.queue().append_rows(window_of(1), 0, 1, [], None, None, fresh(core, size=100))
    assert core.queue().depth() == 0


# ------------------------------------------------------------------------------------------------ with the pool


def test_large_rows_get_memory_of_their_own():
    core = Core(memory=8192)
    accepted: list[Any] = []
    run(append_steps(core, window_of(3, bytes(1500)), (0, 3), accepted))
    assert [part[2] for part in accepted] == [1, 1, 1]
    core.deliver_all()
    assert core.pool.available() == 8192


def test_memory_that_came_too_late_goes_back():
    core = Core(memory=8192)

    def closed() -> None:
        if checkpoint_passed:
            raise ProducerClosedError("closed meanwhile")

    checkpoint_passed = False
    steps = append_steps(core, window_of(3), (0, 3), [], closed)
    run_to(steps, "second look")
    assert core.pool.available() == 8192 - 1024
    checkpoint_passed = True
    with pytest.raises(ProducerClosedError):
        next(steps)
    assert core.pool.available() == 8192


def test_memory_that_another_thread_made_needless_goes_back():
    core = Core(memory=8192)
    accepted: list[Any] = []
    steps = append_steps(core, window_of(3), (0, 3), accepted)
    run_to(steps, "second look")
    core.append(b"from another thread")
    run(steps)
    assert [part[1:3] for part in accepted] == [(1, 3)]
    assert core.pool.available() == 8192 - 1024


# ------------------------------------------------------------------------------------------------ without waiting


def append_now(
    core: Core, window: Window, rows: tuple[int, int], accepted: list[Any], where: Any = None
) -> int:
    wake = core.accumulator.bulk_wake()
    return core.accumulator.appender.append_rows_now(where or core.queue(), window, rows, accepted, wake)


def test_rows_are_appended_in_one_go_while_there_is_memory():
    core = Core(memory=8192)
    core.append(b"first")
    window, accepted = window_of(40), []
    assert append_now(core, window, (0, 40), accepted) == 40
    assert [part[1:3] for part in accepted] == [(1, 9), (0, 9), (0, 9), (0, 9), (0, 4)]
    assert core.pool.available() == 8192 - 5 * 1024
    core.deliver_all()
    assert core.pool.available() == 8192


def test_rows_stop_where_memory_has_to_be_waited_for_and_the_steps_go_on():
    core = Core(memory=2048)
    window, accepted = window_of(30), []
    left = append_now(core, window, (0, 30), accepted)
    assert left == 18
    assert core.pool.available() == 0
    steps = append_steps(core, window, (left, 30), accepted)
    run_to(steps, "memory")
    core.deliver_all()
    run(steps)
    assert [part[2] for part in accepted] == [9, 9, 9, 3]
    core.deliver_all()
    assert core.pool.available() == 2048


def test_a_row_larger_than_a_batch_is_left_to_the_steps():
    core = Core(memory=8192)
    assert append_now(core, window_of(1, bytes(3000)), (0, 1), []) == 0
    assert core.pool.available() == 8192


def test_rows_let_a_batch_grow_without_waiting():
    core = Core(compression="lz4")
    window, accepted = window_of(100), []
    queue = core.queue()
    queue.append_rows(window, 0, 100, accepted, None, None, fresh(core, 0.1))
    assert append_now(core, window, (9, 100), accepted) == 100
    assert len(queue.batches[0].buffers) > 1


@pytest.mark.parametrize("end", ["closed", "not admitted"])
def test_a_queue_that_takes_no_rows_any_more_leaves_them_and_the_memory(end: str):
    core = Core(memory=8192)
    if end == "closed":
        core.queue().close()
    else:
        core.accumulator.admit(False)
    assert append_now(core, window_of(3), (0, 3), []) == 0
    assert core.pool.available() == 8192


def test_rows_without_key_go_from_partition_to_partition():
    core = Core((1, 1, 1), memory=65536)
    window, accepted = window_of(90), []
    assert append_now(core, window, (0, 90), accepted, core.topic()) == 90
    assert sum(part[2] for part in accepted) == 90
    assert sum(core.queue(number).depth() for number in range(3)) == 10


def test_an_interrupt_in_the_middle_loses_no_memory(monkeypatch: pytest.MonkeyPatch):
    core = Core(memory=8192)
    window, accepted = window_of(40), []

    def interrupt(_: Any, __: int) -> None:
        if len(accepted) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("penstock.producer.batch._appending_cy.BulkWake.after", interrupt)
    with pytest.raises(KeyboardInterrupt):
        append_now(core, window, (0, 40), accepted)
    assert [part[2] for part in accepted] == [9, 9, 9]
    assert core.pool.available() == 8192 - 3 * 1024
    core.deliver_all()
    assert core.pool.available() == 8192


@pytest.mark.parametrize("mishap", ["interrupted", "closed"])
def test_memory_taken_for_a_batch_that_never_comes_goes_back(monkeypatch: pytest.MonkeyPatch, mishap: str):
    core = Core(memory=8192)
    queue = core.queue()

    def asked_for_the_time(_: Core) -> float:
        # A new batch has its memory, and wants to know when it was made.
        if mishap == "interrupted":
            raise KeyboardInterrupt
        queue.close()
        return START

    monkeypatch.setattr(Core, "now", property(asked_for_the_time), raising=False)
    if mishap == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            append_now(core, window_of(3), (0, 3), [])
    else:
        assert append_now(core, window_of(3), (0, 3), []) == 0
    assert core.pool.available() == 8192


# ------------------------------------------------------------------------------------------------ waking the sender


def test_the_sender_is_woken_for_a_megabyte_of_rows_not_for_each_batch():
    core = Core()
    window = window_of(3000, bytes(1000))
    run(append_steps(core, window, (0, 3000), []))
    assert core.queue().depth() == 3000
    assert core.wakeups == 2  # 3,000,000 bytes: the rest is for the end of the call
    wake = core.accumulator.bulk_wake()
    for _ in range(3):  # what was not told adds up over stretches of rows
        run(core.accumulator.appender.append_rows_steps(core.queue(), window, (0, 500), [], wake))
    assert core.wakeups == 3
    wake.now()
    run(core.accumulator.appender.append_rows_steps(core.queue(), window, (0, 1000), [], wake))
    assert core.wakeups == 4


def test_the_sender_is_woken_before_a_wait_for_memory():
    core = Core(memory=2048)
    steps = append_steps(core, window_of(100), (0, 100), [])
    assert not run(steps).done
    assert core.wakeups == 1
