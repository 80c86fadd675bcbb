# SPDX-License-Identifier: Apache-2.0
"""No failure is hidden: failed records that nobody asks about are counted in the log, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from producer.fakes_sender import LoopbackBroker, Rig
from producer.fakes_txn import GateRig

from penstock import Interceptor, Producer
from penstock.errors import KafkaError, ProducerClosedError
from penstock.producer import unseen
from penstock.records.python_rows import ManyRecords
from penstock.types import ProducerRecord

INVALID = 87  # INVALID_RECORD
TOO_LARGE = 10  # MESSAGE_TOO_LARGE
DENIED = 29  # TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """What earlier tests have left alive costs each of the collections here a tenth of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What a test has not told is no other test's."""
    yield
    gc.collect()
    unseen._late.clear()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings of unseen failures so far."""
    caplog.set_level(logging.WARNING, "penstock.producer")
    return lambda: [line for line in caplog.messages if "did not ask for the outcome" in line]


def a_rig(**options: Any) -> Rig:
    rig = Rig(**({"linger_ms": 5} | options))
    for topic in ("t", "u", "v", "w", "x"):
        rig.know(topic)
    return rig


def refuse(rig: Rig, code: int = INVALID, **fields: Any) -> None:
    """Let the waiting batches be refused, and take the turns in which what follows is told."""
    rig.await_request()
    rig.answer(error_code=code, **fields)
    rig.settle(3)


# ------------------------------------------------------------------------------------------------ single records


def test_dropped_deliveries_of_a_failed_batch_are_counted_with_topic_and_error(told):
    rig = a_rig()
    for _ in range(7):
        rig.send("t", b"v")
    refuse(rig, error_message="no thanks")
    (line,) = told()
    assert line.startswith("7 records for topic 't' failed, and the program did not ask")
    assert "InvalidRecordError: t-0: no thanks" in line
    assert "on_delivery" in line


def test_a_delivery_that_is_dropped_later_is_counted_then(told):
    rig = a_rig()
    kept = rig.send("t", b"v")
    refuse(rig)
    assert kept.done()
    assert told() == []
    del kept
    rig.settle(1)
    assert told()[0].startswith("1 record for topic 't' failed")


def look_at_result(delivery: Any) -> None:
    with pytest.raises(KafkaError):
        delivery.result(0)


LOOKS: dict[str, Callable[[Any], object]] = {
    "result": look_at_result,
    "exception": lambda delivery: delivery.exception(0),
    "done callback": lambda delivery: delivery.add_done_callback(lambda _: None),
    "repr": repr,
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_has_looked_is_not_told_again(told, look):
    rig = a_rig()
    deliveries = [rig.send("t", b"v") for _ in range(3)]
    refuse(rig)
    LOOKS[look](deliveries[1])
    del deliveries
    gc.collect()  # a traceback holds the frames that it went through
    rig.settle(1)
    assert told()[0].startswith("2 records for topic 't' failed")


def test_a_callback_is_told_and_so_is_one_that_was_added_before_the_end(told):
    rig = a_rig()
    outcomes: list[Any] = []
    rig.send("t", b"v", on_delivery=lambda _, error: outcomes.append(error))
    rig.send("t", b"v").add_done_callback(outcomes.append)
    refuse(rig)
    assert len(outcomes) == 2
    del outcomes[:]
    rig.settle(1)
    assert told() == []


def test_done_alone_tells_nothing(told):
    rig = a_rig()
    delivery = rig.send("t", b"v")
    refuse(rig)
    assert delivery.done()
    del delivery
    rig.settle(1)
    assert len(told()) == 1


def test_who_awaits_has_looked_and_who_gives_that_up_has_not(told):
    rig = a_rig()

    async def wait() -> None:
        awaited = rig.send("t", b"v")
        waiting = asyncio.ensure_future(_await(rig.send("t", b"v")))
        await asyncio.sleep(0)
        waiting.cancel()
        refuse(rig)
        with pytest.raises(KafkaError):
            await awaited

    asyncio.run(wait())
    gc.collect()
    rig.settle(1)
    assert [line.split(" failed")[0] for line in told()] == ["1 record for topic 't'"]


async def _await(delivery: Any) -> None:
    await delivery


def test_records_that_were_written_are_not_watched(told):
    rig = a_rig()
    rig.acknowledge_all()
    delivery = rig.send("t", b"v")
    rig.run_until(delivery.done)
    assert delivery._answered_by().unseen is None
    del delivery
    rig.settle(1)
    assert told() == []


def test_pieces_of_a_split_count_for_themselves(told):
    rig = a_rig(batch_size=1000)
    deliveries = [rig.send("t", b"v" * 300) for _ in range(3)]
    rig.await_request()
    rig.answer(error_code=TOO_LARGE)
    while not all(delivery.done() for delivery in deliveries):
        rig.await_request()
        rig.answer(error_code=TOO_LARGE)
    deliveries[2].exception(0)
    del deliveries
    rig.settle(1)
    assert told()[0].startswith("2 records for topic 't' failed")
    assert "MessageTooLargeError" in told()[0]


def test_a_record_that_the_broker_named_is_told_with_its_own_error(told):
    rig = a_rig()
    kept = [rig.send("t", b"v") for _ in range(2)]
    refuse(rig, record_errors=[{"batch_index": 1, "batch_index_error_message": "this one"}])
    rig.acknowledge_all()
    rig.run_until(kept[1].done)
    assert kept[0].exception(0) is None
    del kept
    rig.settle(1)
    assert "this one" in told()[0]


# -------------------------------------------------------------------------------------------- how often it is told


def test_one_warning_per_cause_and_minute(told):
    rig = a_rig()
    started = rig.clock.now()
    for topic in ("t", "u", "v", "w", "x"):
        rig.send(topic, b"v")
        refuse(rig)
    rig.send("t", b"v")
    refuse(rig, DENIED)  # another cause
    assert [line.split(" failed")[0] for line in told()] == ["1 record for topic 't'"] * 2
    rig.run_for(started + 59 - rig.clock.now())
    assert len(told()) == 2
    assert not unseen._late  # the I/O thread has a timer
    rig.run_for(2)  # by itself, without another failure
    assert told()[2].startswith("4 records for topics 'u', 'v', 'w' and others failed")
    rig.run_for(200)
    assert len(told()) == 3


def test_of_several_errors_of_a_cause_the_first_is_told(told):
    rig = a_rig()
    for message in ("at once", "the first", "the second"):
        rig.send("t", b"v")
        refuse(rig, error_message=message)
    rig.run_for(61)
    assert ["at once" in told()[0], "the first" in told()[1], len(told())] == [True, True, 2]


def test_the_copy_of_a_fork_tells_nothing(told, monkeypatch):
    rig = a_rig()
    kept = [rig.send("t", b"v")]
    refuse(rig)
    bulk = send_rows(rig, b"a", b"b", skip=True, partition=[7, 8])
    monkeypatch.setattr(unseen, "process", SimpleNamespace(id=-1))
    kept.clear()
    del bulk
    rig.settle(1)
    assert told() == []
    assert not rig.parts.accumulator.unseen.has_news


def test_the_copy_of_a_fork_tells_nothing_at_its_end(told, monkeypatch):
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    kept.pop()
    kept.pop()
    monkeypatch.setattr(unseen, "process", SimpleNamespace(id=-1))
    unseen.tell_at_exit()
    assert len(told()) == 1


def test_the_copy_of_a_fork_is_not_told_with_a_failure_of_the_child_either(told, monkeypatch):
    """It has the failures that the parent's closed producer has counted, and the parent logs them."""
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    kept.pop()
    kept.pop()
    rig.clock.advance(61)
    child = SimpleNamespace(id=-1)
    monkeypatch.setattr(unseen, "process", child)
    others = failed_before_the_end(a_rig(), "v")
    others.pop()
    assert [line.split(" failed")[0] for line in told()] == [
        f"1 record for topic '{topic}'" for topic in ("u", "v")
    ]
    child.id = rig.parts.accumulator.unseen._pid
    unseen.tell_at_exit()
    assert told()[2].startswith("1 record for topic 't' failed")


def test_what_is_kept_until_the_program_ends_is_told_then(told):
    rig = a_rig()
    kept = [rig.send("t", b"v"), rig.send("t", b"v")]
    refuse(rig)
    kept[0].exception(0)
    unseen.tell_at_exit()
    rig.settle(1)
    assert told()[0].startswith("1 record for topic 't' failed")
    kept.clear()
    rig.run_for(61)
    assert len(told()) == 1


def test_what_was_noted_is_told_when_the_producer_closes_and_what_comes_later_at_once(told):
    rig = a_rig()
    kept = [rig.send(topic, b"v") for topic in ("t", "u", "v")]
    refuse(rig)
    for _ in range(2):
        kept.pop()
        rig.settle(1)
    assert len(told()) == 1
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    assert len(told()) == 2
    kept.pop()
    assert told()[2].startswith("1 record for topic 't'")


def failed_before_the_end(rig: Rig, *topics: str) -> list[Any]:
    """Records of a batch each that have failed; they are still held when the producer has closed."""
    kept = []
    for topic in topics:
        kept.append(rig.send(topic, b"v"))
        refuse(rig)
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    return kept


def test_after_the_close_what_comes_within_a_minute_is_told_with_the_next_or_at_exit(told):
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u", "v", "w", "x")
    kept.pop()
    assert told()[0].startswith("1 record for topic 'x' failed")
    kept.pop()
    kept.pop()
    assert len(told()) == 1
    rig.clock.advance(61)
    kept.pop()
    assert told()[1].startswith("3 records for topics 'w', 'v', 'u' failed")
    kept.pop()
    assert len(told()) == 2
    del rig
    gc.collect()  # the count is kept after the producer is gone
    unseen.tell_at_exit()
    assert told()[2].startswith("1 record for topic 't' failed")
    unseen.tell_at_exit()
    assert len(told()) == 3


def test_a_failure_of_another_thread_at_the_exit_keeps_no_other_from_the_log(told):
    """It may come at any moment: the I/O thread of a forgotten producer may still be at work."""
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    others = []

    def trace(*_: object) -> Any:
        if len(others) < 50:
            others.append(unseen.UnseenRows(rig.parts.accumulator.unseen))
            others[-1].add("v", KafkaError("late"), 1)
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        unseen.tell_at_exit()
    finally:
        sys.settrace(before)
    assert others
    assert "2 records for topics " in " ".join(told())
    del kept


def test_failures_that_are_dropped_are_not_watched_any_more(told):
    before = len(unseen._watched)
    rig = a_rig()
    kept = [rig.send("t", b"v")]
    refuse(rig)
    bulk = send_rows(rig, b"a", b"b", skip=True, partition=[7, 8])
    assert len(unseen._watched) == before + 2
    del bulk
    kept.clear()
    assert len(unseen._watched) == before


def test_what_is_kept_until_the_program_ends_is_told_together(told):
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u", "v")
    unseen.tell_at_exit()
    (line,) = told()
    assert line.startswith("3 records for topics ")
    kept.clear()
    unseen.tell_at_exit()
    assert len(told()) == 1


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "dropped"])
def test_failures_are_told_at_exit_although_the_io_thread_is_stuck(told, is_held):
    """Code of the application holds it: it takes no turn any more."""
    rig = a_rig()
    kept = [rig.send("t", b"v")]
    refuse(rig)
    if not is_held:
        kept.clear()
    assert told() == []
    unseen.tell_at_exit()
    (line,) = told()
    assert line.startswith("1 record for topic 't' failed")
    assert not unseen._late


def test_a_failure_that_is_noted_while_another_is_logged_is_told_as_well(told, monkeypatch):
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    log_it = unseen.tell

    def collect_in_the_middle(*args: Any, **fields: Any) -> None:
        monkeypatch.setattr(unseen, "tell", log_it)
        kept.clear()  # a finalizer, on the thread that logs
        log_it(*args, **fields)

    monkeypatch.setattr(unseen, "tell", collect_in_the_middle)
    kept.pop()
    unseen.tell_at_exit()
    assert [line.split(" failed")[0] for line in told()] == [
        "1 record for topic 'u'",
        "1 record for topic 't'",
    ]


def test_a_failure_that_is_noted_in_the_middle_of_the_counting_is_counted_with_the_others(told, monkeypatch):
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    add = unseen._Cause.add

    def collect_in_the_middle(*args: Any) -> None:
        monkeypatch.setattr(unseen._Cause, "add", add)
        kept.clear()
        add(*args)

    monkeypatch.setattr(unseen._Cause, "add", collect_in_the_middle)
    kept.pop()
    (line,) = told()
    assert line.startswith("2 records for topics 'u', 't' failed")


def test_another_cause_that_is_noted_while_one_is_logged_is_logged_at_once(told, monkeypatch):
    rig = a_rig()
    kept = [rig.send("t", b"v")]
    refuse(rig)
    kept.append(rig.send("u", b"v"))
    refuse(rig, DENIED)
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    log_it = unseen.tell

    def collect_in_the_middle(*args: Any, **fields: Any) -> None:
        monkeypatch.setattr(unseen, "tell", log_it)
        kept.clear()
        log_it(*args, **fields)

    monkeypatch.setattr(unseen, "tell", collect_in_the_middle)
    kept.pop()
    assert len(told()) == 2


def test_the_first_failure_after_the_close_is_told_at_once_whatever_was_told_before_it(told):
    rig = a_rig()
    kept = []
    for topic in ("t", "u"):
        kept.append(rig.send(topic, b"v"))
        refuse(rig)
    kept.pop()
    rig.settle(1)
    assert len(told()) == 1
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    kept.pop()
    assert len(told()) == 2


def test_what_a_closed_producer_has_counted_is_told_with_the_next_failure_of_another(told):
    rig, other = a_rig(), a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    others = failed_before_the_end(other, "v")
    kept.pop()
    kept.pop()
    assert len(told()) == 1
    assert rig.parts.accumulator.unseen in unseen._late
    rig.clock.advance(61)
    others.pop()
    assert [line.split(" failed")[0] for line in told()] == [
        f"1 record for topic '{topic}'" for topic in ("u", "v", "t")
    ]
    assert not unseen._late


def interrupted_at(number: int, call: Callable[[], object]) -> bool:
    """Call something, with Ctrl-C before that line of `maybe_tell`; whether there were so many lines.

    Not at the line of its `finally`: Ctrl-C comes after a call, and there is none between the `try` and that line.
    """
    code = unseen.UnseenFailures.maybe_tell.__code__
    source, first = inspect.getsourcelines(code)
    lines = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code is not code:
            return None
        if event == "line" and "_token.extend" not in source[frame.f_lineno - first]:
            lines += 1
            if lines == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_ctrl_c_in_the_middle_keeps_no_failure_from_the_log(told):
    """Whatever line it comes at: after the close this runs on the thread of the application."""
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        rig = a_rig()
        kept = failed_before_the_end(rig, "t", "u", "v")
        failures = rig.parts.accumulator.unseen
        kept.pop()
        kept.pop()
        before = len(told())
        rig.clock.advance(61)
        interrupted = interrupted_at(
            number, lambda failures=failures, rig=rig: failures.maybe_tell(rig.clock.now())
        )
        rig.clock.advance(61)
        kept.pop()
        text = " ".join(told()[before:])
        assert "'u'" in text, number
        assert "'t'" in text, number
    assert number > 10


def test_a_failure_whose_logging_ctrl_c_interrupts_is_logged_at_exit(told, monkeypatch):
    rig = a_rig()
    failed_before_the_end(rig)
    failures = rig.parts.accumulator.unseen

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(unseen, "tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            failures.note("t", KafkaError("refused"), 3)
    unseen.tell_at_exit()
    assert told()[0].startswith("3 records for topic 't' failed")
    assert not unseen._late


def test_ctrl_c_while_one_is_logged_at_exit_keeps_no_other_from_the_log(told, monkeypatch):
    rigs = [a_rig(), a_rig()]
    kept = [failed_before_the_end(rig, "t") for rig in rigs]
    tell, interrupted = unseen.tell, []

    def interrupt_first(*args: Any, **fields: Any) -> None:
        tell(*args, **fields)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(unseen, "tell", interrupt_first)
    with pytest.raises(KeyboardInterrupt):
        unseen.tell_at_exit()
    assert len(told()) == 2
    del kept


def test_finalizers_take_no_lock(told):
    """A Delivery can be dropped by the collector, in the middle of anything that holds any lock."""
    rig = a_rig()
    kept = [rig.send("t", b"v")]
    refuse(rig)
    accumulator = rig.parts.accumulator
    with accumulator._lock, accumulator.pool._lock, rig.parts.metadata._lock:
        done = threading.Thread(target=kept.clear)
        done.start()
        done.join(60)
        assert not done.is_alive()
    rig.settle(1)
    assert len(told()) == 1


def test_in_a_transaction_its_calls_tell(told):
    rig = GateRig.transactional()
    rig.begin()
    rig.send("t", b"v", partition=0)
    refuse(rig)
    with pytest.raises(KafkaError, match="abort_transaction"):
        rig.manager.commit()
    assert told() == []


# ------------------------------------------------------------------------------------------------- many at once


def send_rows(rig: Rig, *values: bytes, topic: str = "t", skip: bool = False, **columns: Any) -> Any:
    many = ManyRecords.of(topic, values, None, None, columns.get("partition"), None)
    return rig.drive(rig.parts.columns.steps(topic, [many.rows(None)], skip=skip))


def test_a_dropped_bulk_is_counted_whether_it_was_pending_or_had_been_asked_if_it_is_done(told):
    rig = a_rig()
    bulk = send_rows(rig, b"a", b"b", b"c")
    refuse(rig)
    assert bulk.done()  # which adds it up
    assert told() == []
    del bulk
    rig.settle(1)
    assert told()[0].startswith("3 records for topic 't' failed")
    send_rows(rig, b"a", b"b", topic="u")
    refuse(rig)
    rig.run_for(61)
    assert told()[1].startswith("2 records for topic 'u' failed")


BULK_LOOKS: dict[str, Callable[[Any], object]] = LOOKS | {"errors": lambda bulk: bulk.errors}
del BULK_LOOKS["repr"]  # it says how many, and not why


@pytest.mark.parametrize("look", BULK_LOOKS)
@pytest.mark.parametrize("row_by_row", [False, True])
def test_a_bulk_that_somebody_looked_at_tells_nothing_more(told, look, row_by_row):
    rig = a_rig()
    if row_by_row:
        bulk = rig.drive(rig.parts.columns.record_steps([ProducerRecord("t", b"v")] * 3))
    else:
        bulk = send_rows(rig, b"a", b"b", b"c")
    refuse(rig)
    BULK_LOOKS[look](bulk)
    del bulk
    gc.collect()
    rig.settle(1)
    assert told() == []


def test_rows_that_were_skipped_are_counted_unless_somebody_asks(told):
    rig = a_rig()
    rig.acknowledge_all()
    for ask in (True, False):
        bulk = send_rows(rig, b"a", b"b", b"c", skip=True, partition=[0, 7, 8])
        rig.run_until(bulk.done)
        if ask:
            assert len(bulk.errors) == 2
        del bulk
        rig.settle(1)
    (line,) = told()
    assert line.startswith("2 records for topic 't' failed")


def test_rows_of_a_bulk_that_is_kept_until_the_program_ends_are_told_then(told):
    rig = a_rig()
    rig.acknowledge_all()
    kept = [send_rows(rig, b"a", b"b", b"c", skip=True, partition=[0, 7, 8], topic=topic) for topic in "tu"]
    rig.run_until(lambda: all(bulk.done() for bulk in kept))
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    unseen.tell_at_exit()
    (line,) = told()
    assert line.startswith("4 records for topics ")
    kept.clear()
    unseen.tell_at_exit()
    assert len(told()) == 1


def test_failures_that_come_after_the_end_of_the_program_are_told_one_by_one(told, monkeypatch):
    rig = a_rig()
    kept = failed_before_the_end(rig, "t", "u")
    monkeypatch.setattr(unseen._exit, "is_over", True, raising=False)
    kept.pop()
    kept.pop()
    assert len(told()) == 2


# ------------------------------------------------------------------------------------------------------- closing


def test_records_that_are_given_up_at_the_close_are_counted(caplog):
    with LoopbackBroker(t=1) as broker:
        broker.hold = True
        one_at_a_time = {"linger_ms": 0, "batch_size": 200, "max_in_flight_requests_per_connection": 1}
        producer = Producer(bootstrap_servers=broker.address, enable_idempotence=False, **one_at_a_time)
        deliveries = [producer.send("t", b"v" * 100, partition=0)]
        assert broker.arrived.wait(60)
        deliveries.append(producer.send("t", b"v" * 100, partition=0))
        producer.close(0)
    assert [type(delivery.exception(0)) for delivery in deliveries] == [ProducerClosedError] * 2
    (line,) = [line for line in caplog.messages if "gave up" in line]
    assert "gave up 2 records for topic 't':" in line
    assert "1 of them had been sent" in line


@pytest.mark.parametrize(
    ("topics", "named"),
    [
        (1, "topic 't1'"),
        (3, "topics 't1', 't2', 't3'"),
        (4, "topics 't1', 't2', 't3' and 1 other"),
        (9, "topics 't1', 't2', 't3' and 6 others"),
    ],
)
def test_the_topics_of_what_is_given_up_are_named_and_counted(caplog, topics, named):
    names = [f"t{number}" for number in range(1, topics + 1)]
    with LoopbackBroker(**dict.fromkeys(names, 1)) as broker:
        broker.hold = True
        producer = Producer(bootstrap_servers=broker.address, enable_idempotence=False, linger_ms=60_000)
        deliveries = [producer.send(name, b"v", partition=0) for name in names]
        producer.close(0)
    assert [type(delivery.exception(0)) for delivery in deliveries] == [ProducerClosedError] * topics
    (line,) = [line for line in caplog.messages if "gave up" in line]
    assert f" for {named}: " in line


def test_a_close_that_delivers_all_says_nothing(caplog):
    with LoopbackBroker(t=1) as broker:
        producer = Producer(bootstrap_servers=broker.address, enable_idempotence=False)
        producer.send("t", b"v")
        producer.close(10)
        assert broker.values() == [b"v"]
    assert [line for line in caplog.messages if "gave up" in line] == []


def test_a_forgotten_producer_says_so_with_a_count():
    with LoopbackBroker(t=1) as broker:
        broker.hold = True
        producer = Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False)
        for _ in range(3):
            producer.send("t", b"v")
        ended, held = producer._core.ended, [producer]
        del producer
        with pytest.warns(ResourceWarning, match="forgotten without close.*: 3 records have no outcome"):
            held.clear()
        broker.release()
        assert ended.wait(60)
        assert broker.values() == [b"v"] * 3


def test_a_producer_that_was_closed_is_not_forgotten(recwarn):
    with LoopbackBroker(t=1) as broker, contextlib.closing(Producer(bootstrap_servers=broker.address)):
        pass
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


# -------------------------------------------------------------------------------------------------- interceptors


@pytest.mark.parametrize("with_callback", [False, True])
def test_that_interceptors_are_told_is_no_look(told, with_callback):
    rig = a_rig(interceptors=[Interceptor()])
    rig.send("t", b"v", on_delivery=(lambda _metadata, _error: None) if with_callback else None)
    refuse(rig)
    assert len(told()) == (0 if with_callback else 1)
