# SPDX-License-Identifier: Apache-2.0
"""Idempotence: the real sender, network client and metadata against scripted brokers, and a validating cluster."""

from __future__ import annotations

import random
from types import SimpleNamespace
from unittest import mock

import pytest
from network.fakes import Received
from producer.fakes_answers import FAIL, RETRY, RETRY_AND_REFRESH, cases
from producer.fakes_sender import SHORT
from producer.fakes_txn import CUT, PRODUCER_ID, ClusterRig, GateRig, batches_of, numbers, some_fault

from penstock._identity import ProducerIdentity
from penstock.errors import (
    ClusterAuthorizationError,
    DeliveryTimeoutError,
    InvalidRecordError,
    KafkaError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    ProducerClosedError,
    RequestTimedOutError,
    broker_error,
)
from penstock.producer.guarantee.idempotent import LAST_EPOCH
from penstock.protocol.messages import INIT_PRODUCER_ID, METADATA, PRODUCE

LAST_NUMBER = 2**31 - 1
FATAL = {31, 35, 49, 53, 90}
SPECIAL = {45, 59}  # decided by their numbers


def warm(rig: GateRig, partitions: int = 1, base_offset: int = 0) -> None:
    """Get an id, and one acknowledged record in each partition: from then on several batches may be in flight."""
    rig.know("t", partitions)
    for partition in range(partitions):
        broker = partition % len(rig.brokers)
        delivery = rig.send("t", b"warm", partition=partition)
        rig.await_request(broker)
        rig.answer(broker=broker, base_offset=base_offset)
        delivery.result(0)


def flight(rig: GateRig, *values: bytes, partition: int = 0, broker: int = 0) -> list[Received]:
    """Send each value in a request of its own; the requests, which wait."""
    requests = []
    for value in values:
        rig.send("t", value, partition=partition)
        requests.append(rig.await_request(broker, len(rig.waiting(broker)) + 1))
    return requests


def arrived(request: Received) -> tuple[int, int, int, list[bytes | None]]:
    """Producer id, epoch, sequence number and values of the one batch of a request."""
    (batch,) = batches_of(request)
    return (*numbers(batch), [record.value for record in batch.records()])


def identity(rig: GateRig) -> ProducerIdentity:
    return rig.parts.sender._gate.numbering.identity


def set_epoch(rig: GateRig, epoch: int) -> None:
    """Let the producer have used its id for long."""
    rig.parts.sender._gate.numbering.identity = ProducerIdentity(PRODUCER_ID, epoch)


# ------------------------------------------------------------------------------------------ the producer id


def test_the_id_is_asked_for_when_there_is_something_to_send():
    rig = GateRig()
    rig.know("t")
    rig.settle()
    assert rig.asked(INIT_PRODUCER_ID) == []
    delivery = rig.send("t", b"a")
    request = rig.await_request()
    (asked,) = rig.asked(INIT_PRODUCER_ID)
    assert (asked["transactional_id"], asked["transaction_timeout_ms"]) == (None, 2**31 - 1)
    assert arrived(request) == (PRODUCER_ID, 0, 0, [b"a"])
    assert not batches_of(request)[0].is_transactional
    assert request.body["transactional_id"] is None
    rig.answer(base_offset=3)
    assert delivery.result(0).offset == 3


def test_batches_wait_for_the_id_and_then_go():
    rig = GateRig()
    rig.hold(INIT_PRODUCER_ID)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.settle()
    assert rig.waiting() == []
    rig.release(INIT_PRODUCER_ID)
    rig.await_request()
    rig.answer()
    assert delivery.done()


@pytest.mark.parametrize("answer", [CUT, 14, 15, 51, 7])
def test_a_passing_failure_to_get_an_id_is_repeated_after_a_while(answer):
    rig = GateRig(reconnect_backoff_ms=0)
    rig.script(INIT_PRODUCER_ID, answer, answer)
    rig.acknowledge_all()
    rig.know("t")
    before = rig.clock.now()
    delivery = rig.send("t", b"a")
    rig.deliver(delivery)
    delivery.result(0)
    assert len(rig.asked(INIT_PRODUCER_ID)) == 3
    assert rig.clock.now() - before == pytest.approx(0.2)


def test_a_refusal_to_give_an_id_fails_what_waits_and_no_more():
    """Requirement 63."""
    rig = GateRig()
    rig.script(INIT_PRODUCER_ID, 31)
    rig.acknowledge_all()
    rig.know("t")
    refused = rig.send("t", b"a")
    rig.deliver(refused)
    assert isinstance(refused.exception(0), ClusterAuthorizationError)
    granted = rig.send("t", b"b")
    rig.deliver(granted)
    granted.result(0)


# ------------------------------------------------------------------------------------------- retries, order


def test_batches_in_flight_are_sent_again_in_order_and_one_at_a_time():
    """Requirement 51."""
    rig = GateRig()
    warm(rig)
    first, second, third = flight(rig, b"a", b"b", b"c")
    rig.answer(first, error_code=19)
    rig.answer(second, error_code=45)
    rig.answer(third, error_code=45)
    for expected in ((1, [b"a"]), (2, [b"b"]), (3, [b"c"])):
        request = rig.await_request()
        rig.settle()
        assert len(rig.waiting()) == 1
        assert arrived(request) == (PRODUCER_ID, 0, *expected)
        rig.answer(base_offset=expected[0])
    assert identity(rig).epoch == 0


def test_a_new_batch_does_not_overtake_those_that_are_sent_again():
    """Requirement 51."""
    rig = GateRig()
    warm(rig)
    first, second = flight(rig, b"a", b"b")
    rig.answer(first, error_code=19)
    rig.answer(second, error_code=45)
    rig.send("t", b"new", partition=0)
    seen = []
    for _ in range(3):
        seen.append(arrived(rig.await_request())[2:])
        rig.answer()
    assert seen == [(1, [b"a"]), (2, [b"b"]), (3, [b"new"])]


def moved_in_between() -> tuple[GateRig, Received, Received]:
    """Two batches of a partition in flight to two brokers, because the leader moved meanwhile."""
    rig = GateRig(2)
    warm(rig, 2)
    (first,) = flight(rig, b"a")
    rig.cluster.move("t", 0, 1)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_until(lambda: rig.snapshot.leader("t", 0).id == 1)
    (second,) = flight(rig, b"b", broker=1)
    return rig, first, second


def test_a_later_batch_that_is_refused_first_still_comes_second():
    """Requirement 52."""
    rig, first, second = moved_in_between()
    rig.answer(second, broker=1, error_code=45)
    rig.run_for(0.5)
    assert rig.waiting(1) == []  # it waits for the one before it
    rig.answer(first, error_code=6)
    seen = []
    for _ in range(2):
        seen.append(arrived(rig.await_request(1))[1:])
        rig.settle()
        assert len(rig.waiting(1)) == 1
        rig.answer(broker=1)
    assert seen == [(0, 1, [b"a"]), (0, 2, [b"b"])]


def test_a_later_batch_may_succeed_first():
    """Requirement 52."""
    rig, first, second = moved_in_between()
    rig.answer(second, broker=1, base_offset=8)
    rig.answer(first, error_code=7)
    again = rig.await_request(1)
    assert arrived(again)[1:] == (0, 1, [b"a"])
    rig.answer(broker=1, error_code=46, base_offset=-1)
    (last,) = flight(rig, b"c", broker=1)
    assert arrived(last)[1:] == (0, 3, [b"c"])


def test_at_most_five_batches_are_numbered_from_the_oldest_in_flight_on():
    """A broker remembers five: what is sent again must be among them, also when the leader has moved meanwhile."""
    rig = GateRig(2)
    warm(rig, 2)
    first, *_ = flight(rig, b"1", b"2", b"3")
    rig.cluster.move("t", 0, 1)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_until(lambda: rig.snapshot.leader("t", 0).id == 1)
    for request in flight(rig, b"4", b"5", broker=1):
        rig.answer(request, broker=1, base_offset=9)
    rig.send("t", b"6", partition=0)
    rig.run_for(0.5)
    assert rig.waiting(1) == []  # the first two answers do not count: 1, 2 and 3 may have to be sent again
    rig.answer(first, error_code=7)
    again = rig.await_request(1)
    rig.settle()
    assert (len(rig.waiting(1)), arrived(again)[1:]) == (1, (0, 1, [b"1"]))
    rig.answer(broker=1, base_offset=5)
    assert arrived(rig.await_request(1))[1:] == (0, 6, [b"6"])  # 2 is the oldest now
    assert [len(rig.waiting(broker)) for broker in (0, 1)] == [2, 1]


def test_a_duplicate_is_a_success_without_an_offset():
    """Requirement 56."""
    rig = GateRig()
    warm(rig)
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=46, base_offset=-1)
    assert delivery.result(0).offset == -1
    (request,) = flight(rig, b"b")
    assert arrived(request)[1:] == (0, 2, [b"b"])


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_after_a_batch_was_refused_the_next_are_numbered_anew(compression):
    """Requirement 53."""
    rig = GateRig(compression_type=compression)
    warm(rig)
    failed = rig.send("t", b"a")
    first = rig.await_request()
    second, third = flight(rig, b"b", b"c")
    assert [arrived(request)[1:3] for request in (second, third)] == [(0, 2), (0, 3)]
    rig.answer(first, error_code=87)
    rig.answer(second, error_code=45)
    rig.answer(third, error_code=45)
    assert isinstance(failed.exception(0), InvalidRecordError)
    again = rig.await_request()  # reading it checks the checksum, too
    assert arrived(again) == (PRODUCER_ID, 1, 0, [b"b"])
    rig.answer()
    assert arrived(rig.await_request()) == (PRODUCER_ID, 1, 1, [b"c"])
    rig.answer()
    assert len(rig.asked(INIT_PRODUCER_ID)) == 1  # the epoch was raised without asking anybody


def test_a_batch_before_the_refused_one_is_settled_first_with_its_old_numbers():
    """Requirement 53."""
    rig, first, second = moved_in_between()
    behind = rig.send("t", b"c", partition=0)
    third = rig.await_request(1, 2)
    rig.answer(second, broker=1, error_code=87)
    rig.answer(third, broker=1, error_code=45)
    rig.run_for(0.5)
    assert rig.waiting(1) == []  # what is behind the gap waits
    rig.answer(first, error_code=7)  # perhaps it was written
    seen = []
    while not behind.done():
        seen.append(arrived(rig.await_request(1))[1:])
        rig.answer(broker=1)
    assert seen == [(0, 1, [b"a"]), (1, 0, [b"c"])]


def test_out_of_order_with_nothing_before_it_raises_the_epoch():
    """Requirement 54."""
    rig = GateRig()
    warm(rig)
    (first,) = flight(rig, b"a")
    rig.answer(first, error_code=45)
    assert arrived(rig.await_request()) == (PRODUCER_ID, 1, 0, [b"a"])
    rig.answer()
    assert arrived(flight(rig, b"b")[0]) == (PRODUCER_ID, 1, 1, [b"b"])


def test_out_of_order_again_with_the_new_number_raises_the_epoch_again():
    """Requirement 54."""
    rig = GateRig()
    warm(rig)
    flight(rig, b"a")
    for epoch in (1, 2, 3):
        rig.answer(error_code=45)
        assert arrived(rig.await_request()) == (PRODUCER_ID, epoch, 0, [b"a"])


def test_out_of_order_behind_a_batch_in_flight_does_not_raise_the_epoch():
    """Requirement 54."""
    rig, first, second = moved_in_between()
    rig.answer(second, broker=1, error_code=45)
    rig.answer(first, base_offset=1)
    assert arrived(rig.await_request(1)) == (PRODUCER_ID, 0, 2, [b"b"])


def test_out_of_order_behind_an_expired_batch_raises_the_epoch():
    """Requirement 54."""
    rig = GateRig(**SHORT)
    warm(rig)
    (first,) = flight(rig, b"a")
    rig.answer(first, error_code=19)
    rig.run_for(0.45)  # sent again, and in flight
    (second,) = flight(rig, b"b")
    rig.run_for(0.6)
    assert len(rig.waiting()) == 2
    rig.answer(rig.waiting()[0], error_code=19)  # of the batch that has expired
    rig.answer(second, error_code=45)
    assert arrived(rig.await_request()) == (PRODUCER_ID, 1, 0, [b"b"])


# ---------------------------------------------------------------------------------------------------- expiry


def test_a_batch_that_expires_before_it_was_sent_leaves_no_doubt():
    """Requirement 55."""
    rig = GateRig(**SHORT)
    rig.hold(INIT_PRODUCER_ID)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.run_for(1.1)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    rig.brokers[0].waiting.clear()
    rig.release(INIT_PRODUCER_ID)
    (request,) = flight(rig, b"b")
    assert arrived(request) == (PRODUCER_ID, 0, 0, [b"b"])


def test_a_queued_batch_that_expires_takes_no_number():
    """Requirement 55."""
    rig = GateRig(**SHORT)
    warm(rig)
    rig.cluster.topics["t"].leaders[0] = -1
    rig.cluster.topics["t"].epochs[0] += 1
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_until(lambda: rig.snapshot.leader("t", 0) is None)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_for(1.1)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    rig.cluster.move("t", 0, 0)
    rig.send("t", b"b", partition=0)
    assert arrived(rig.await_request()) == (PRODUCER_ID, 0, 1, [b"b"])


def test_a_batch_that_expires_after_it_was_sent_raises_the_epoch():
    """Requirement 55."""
    rig = GateRig(**SHORT)
    warm(rig)
    delivery = rig.send("t", b"a")
    while not delivery.done():
        rig.run_until(lambda: rig.waiting() or delivery.done())
        if rig.waiting():
            rig.answer(error_code=19)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert arrived(flight(rig, b"b")[0]) == (PRODUCER_ID, 1, 0, [b"b"])


def test_a_later_success_settles_what_became_of_an_expired_batch():
    """Requirement 55."""
    rig = GateRig(**SHORT)
    warm(rig)
    expired = rig.send("t", b"a")
    first = rig.await_request()
    rig.run_for(0.5)
    (second,) = flight(rig, b"b")
    rig.run_for(0.45)
    rig.answer(first, error_code=19)
    rig.run_for(0.1)
    assert isinstance(expired.exception(0), DeliveryTimeoutError)
    waiting = rig.send("t", b"c")
    rig.settle()
    assert rig.waiting() == [second]  # no new number while one is in doubt
    rig.answer(second, base_offset=9)  # so the first one is there as well
    request = rig.await_request()
    assert arrived(request) == (PRODUCER_ID, 0, 3, [b"c"])
    rig.answer()
    waiting.result(0)


def test_a_late_success_of_a_batch_that_expired_in_flight_changes_nothing():
    """Requirement 55."""
    rig = GateRig(delivery_timeout_ms=1000, request_timeout_ms=500, linger_ms=0)
    rig.parts.accumulator.delivery_timeout = 0.4  # shorter than a request may take
    warm(rig)
    free = rig.available_memory
    delivery = rig.send("t", b"a")
    request = rig.await_request()
    rig.run_for(0.45)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert rig.available_memory < free  # its request still has the bytes
    rig.answer(request, base_offset=1)
    assert rig.available_memory == free
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert arrived(flight(rig, b"b")[0]) == (PRODUCER_ID, 1, 0, [b"b"])


# ---------------------------------------------------------------------------------------- unknown producer id


@pytest.mark.parametrize(("log_start", "epoch", "sequence"), [(-1, 0, 1), (50, 1, 0), (5, 1, 0)])
def test_a_broker_that_forgot_the_producer(log_start, epoch, sequence):
    """Requirement 57."""
    rig = GateRig()
    warm(rig, base_offset=10)
    (request,) = flight(rig, b"a")
    rig.answer(request, error_code=59, log_start_offset=log_start)
    assert arrived(rig.await_request()) == (PRODUCER_ID, epoch, sequence, [b"a"])


# ----------------------------------------------------------------------------------------- epochs, partitions


def test_a_partition_without_errors_goes_on_with_the_old_epoch_until_its_batches_have_ended():
    """Requirement 58."""
    rig = GateRig()
    warm(rig, 2)
    (healthy,) = flight(rig, b"h", partition=1)
    (broken,) = flight(rig, b"a", partition=0)
    rig.answer(healthy, error_code=19)
    rig.answer(broken, error_code=45)
    rig.send("t", b"new", partition=1)
    seen = {}
    while len(seen) < 3:
        for batch in batches_of(rig.await_request()):
            seen[batch.records()[0].value] = numbers(batch)
        rig.answer()
    assert seen == {b"a": (PRODUCER_ID, 1, 0), b"h": (PRODUCER_ID, 0, 1), b"new": (PRODUCER_ID, 1, 0)}


def test_numbers_wrap_on_the_wire():
    """Requirement 59."""
    rig = GateRig()
    warm(rig)
    (queue,) = rig.parts.sender._gate.numbering.book._partitions
    entry = rig.parts.sender._gate.numbering.book.of(queue)
    entry.next, entry.last_acked_sequence = LAST_NUMBER, LAST_NUMBER - 1
    first, second = flight(rig, b"a", b"b")
    assert [arrived(request)[2] for request in (first, second)] == [LAST_NUMBER, 0]
    rig.answer(first, error_code=19)
    rig.answer(second, error_code=45)  # not next: the one before it is missing
    for expected in (LAST_NUMBER, 0):
        assert arrived(rig.await_request())[1:3] == (0, expected)
        rig.answer()
    assert arrived(flight(rig, b"c")[0])[1:3] == (0, 1)


def test_after_the_last_epoch_a_new_id_is_asked_for():
    """Requirement 62."""
    rig = GateRig()
    warm(rig, 2)
    set_epoch(rig, LAST_EPOCH)
    rig.identity = ProducerIdentity(PRODUCER_ID + 1, 0)
    (healthy,) = flight(rig, b"h", partition=1)
    failed = rig.send("t", b"a", partition=0)
    request = rig.await_request(count=2)
    rig.hold(INIT_PRODUCER_ID)
    rig.answer(healthy, error_code=19)
    rig.answer(request, error_code=87)
    assert isinstance(failed.exception(0), InvalidRecordError)
    waiting = rig.send("t", b"b", partition=0)
    rig.run_for(0.3)
    assert rig.waiting() == []  # without an id nothing leaves
    rig.release(INIT_PRODUCER_ID)
    seen = {}
    while len(seen) < 2:
        for batch in batches_of(rig.await_request()):
            seen[batch.records()[0].value] = numbers(batch)
        rig.answer()
    assert seen == {b"b": (PRODUCER_ID + 1, 0, 0), b"h": (PRODUCER_ID, LAST_EPOCH, 0)}
    waiting.result(0)
    assert arrived(flight(rig, b"i", partition=1)[0]) == (PRODUCER_ID + 1, 0, 0, [b"i"])


def test_a_new_id_with_one_request_in_flight_is_no_deadlock():
    """Requirement 61."""
    rig = GateRig(max_in_flight_requests_per_connection=1)
    warm(rig, 2)
    set_epoch(rig, LAST_EPOCH)
    rig.identity = ProducerIdentity(PRODUCER_ID + 1, 0)
    (first,) = flight(rig, b"a", partition=0)
    other = rig.send("t", b"b", partition=1)
    rig.answer(first, error_code=45)
    values = []
    for _ in range(2):
        request = rig.await_request()
        values += [record.value for batch in batches_of(request) for record in batch.records()]
        rig.answer()
        if other.done() and len(values) == 2:
            break
    assert sorted(values) == [b"a", b"b"]
    assert identity(rig) == (PRODUCER_ID + 1, 0)


def test_close_waits_for_a_new_id_and_delivers():
    """Requirement 62."""
    rig = GateRig()
    warm(rig)
    set_epoch(rig, LAST_EPOCH)
    (request,) = flight(rig, b"a")
    rig.answer(request, error_code=45)
    delivery = rig.send("t", b"b")
    rig.acknowledge_all()
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    delivery.result(0)
    assert [record.value for batch in rig.batches()[-2:] for record in batch.records()] == [b"a", b"b"]


def test_a_forced_close_does_not_wait_for_an_id():
    """Requirements 17 and 62."""
    rig = GateRig()
    rig.hold(INIT_PRODUCER_ID)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.settle()
    assert rig.held(INIT_PRODUCER_ID)
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    assert isinstance(delivery.exception(0), ProducerClosedError)


# ----------------------------------------------------------------------------------------------------- split


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_pieces_of_a_batch_share_its_numbers(compression):
    """Requirement 60."""
    rig = GateRig(linger_ms=5, compression_type=compression)
    warm(rig)
    values = [bytes([number]) * 1000 for number in range(5)]
    deliveries = [rig.send("t", value, partition=0) for value in values]
    assert arrived(rig.await_request())[1:] == (0, 1, values)
    rig.answer(error_code=10)
    deliveries.append(rig.send("t", b"after", partition=0))
    accepted = []
    while not deliveries[-1].done():
        request = rig.await_request()
        rig.settle()
        assert len(rig.waiting()) == 1  # pieces go one at a time
        _, epoch, sequence, contents = arrived(request)
        if len(contents) == 1:
            accepted.append((epoch, sequence, *contents))
        rig.answer(error_code=10 if len(contents) > 1 else 0, base_offset=sequence)
    assert accepted == [(0, 1 + index, value) for index, value in enumerate([*values, b"after"])]
    assert [delivery.result(0).offset for delivery in deliveries] == [1, 2, 3, 4, 5, 6]


def test_one_record_that_is_too_large_fails_and_raises_the_epoch():
    rig = GateRig()
    warm(rig)
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=10)
    assert isinstance(delivery.exception(0), MessageTooLargeError)
    assert arrived(flight(rig, b"b")[0]) == (PRODUCER_ID, 1, 0, [b"b"])


# ------------------------------------------------------------------------------------------------ every answer


@pytest.mark.parametrize("code", cases(RETRY | RETRY_AND_REFRESH))
def test_a_passing_error_is_retried_with_the_same_numbers(code):
    """Requirement 63."""
    rig = GateRig()
    warm(rig)
    updates = len(rig.seen(METADATA))
    delivery = rig.send("t", b"a")
    before = rig.await_request()
    rig.answer(error_code=code)
    again = rig.await_request()
    assert again.body["topic_data"] == before.body["topic_data"]  # to the byte
    rig.answer()
    delivery.result(0)
    assert (len(rig.seen(METADATA)) > updates) == (code in RETRY_AND_REFRESH)
    assert identity(rig).epoch == 0


@pytest.mark.parametrize(
    "code", cases({code: name for code, name in FAIL.items() if code not in FATAL | SPECIAL})
)
def test_any_other_error_fails_the_batch_and_raises_the_epoch(code):
    """Requirement 63."""
    rig = GateRig()
    warm(rig)
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=code)
    assert type(delivery.exception(0)) is type(broker_error(code))
    assert delivery.exception(0).code == code
    assert arrived(flight(rig, b"b")[0]) == (PRODUCER_ID, 1, 0, [b"b"])


@pytest.mark.parametrize("code", cases({code: FAIL[code] for code in sorted(FATAL)}))
def test_errors_after_which_the_producer_cannot_go_on(code):
    """Requirement 63."""
    rig = GateRig()
    warm(rig)
    failed = rig.send("t", b"a")
    request = rig.await_request()
    flight(rig, b"b")
    rig.send("t", b"c", partition=0)
    assert rig.fast_path_open
    rig.answer(request, error_code=code)
    assert failed.exception(0).code == code
    assert not rig.fast_path_open
    with pytest.raises(KafkaError, match="cannot go on") as caught:
        rig.send("t", b"d")
    assert repr(caught.value.__cause__) == repr(failed.exception(0))
    while rig.waiting():
        rig.answer(error_code=19)
    assert not rig.parts.accumulator.has_incomplete()  # also those that would have been sent again


def test_without_retries_left_the_numbers_stay():
    rig = GateRig(retries=1)
    warm(rig)
    delivery = rig.send("t", b"a")
    for _ in range(2):
        rig.await_request()
        rig.answer(error_code=19)
    assert isinstance(delivery.exception(0), NotEnoughReplicasError)
    (request,) = flight(rig, b"b")
    assert arrived(request)[1:] == (0, 2, [b"b"])
    # The broker never had the first one: the numbering is broken, and repaired with a new epoch.
    rig.answer(error_code=45)
    rig.await_request()
    rig.answer(error_code=45)
    assert arrived(flight(rig, b"c")[0])[1:] == (1, 0, [b"c"])


def test_a_batch_in_doubt_without_retries_left_is_like_one_that_expired():
    """Requirement 55."""
    rig = GateRig(retries=1)
    warm(rig)
    delivery = rig.send("t", b"a")
    for _ in range(2):
        rig.await_request()
        rig.answer(error_code=7)
    assert isinstance(delivery.exception(0), RequestTimedOutError)
    assert arrived(flight(rig, b"b")[0])[1:] == (1, 0, [b"b"])


# -------------------------------------------------------------------------------------- a validating cluster


@pytest.mark.parametrize("release", ["4.3", "2.4"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_record_is_there_once_and_in_order(seed, release):
    """Requirements 51 and 52."""
    rng = random.Random(seed)
    rig = ClusterRig(
        3,
        {"t": 3},
        seed=seed,
        release=release,
        batch_size=rng.choice([100, 300, 2000]),
        compression_type=rng.choice(["none", "gzip"]),
        max_in_flight_requests_per_connection=rng.choice([1, 2, 5]),
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
    )
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    deliveries = []
    for number in range(80):
        if rng.random() < 0.25:
            rig.kafka.faults.add(some_fault(rng, [PRODUCE, PRODUCE, INIT_PRODUCER_ID], [7, 20, 19, 6, 3, 2]))
        if rng.random() < 0.05:
            rig.kafka.move_leader(
                "t", partition := rng.randrange(3), rng.choice(rig.kafka.partition("t", partition).isr)
            )
        if rng.random() < 0.03:
            rig.kafka.drop_connections()
            rig.served.pump()
        partition = rng.randrange(3)
        sent[partition].append(b"%d" % number)
        deliveries.append(rig.send("t", b"%d" % number, partition=partition))
        rig.settle(rng.randrange(3))
        if rng.random() < 0.1:
            rig.run_for(rng.random())
    rig.kafka.faults.clear()
    rig.deliver(*deliveries, seconds=100)
    for delivery in deliveries:
        delivery.result(0)
    assert {partition: rig.values("t", partition) for partition in sent} == sent


@pytest.mark.parametrize("unanswered", [1, 3, 5])
def test_answers_of_a_former_leader_that_never_come(unanswered):
    """What it has written is written once, though the next leader has a lot to do meanwhile."""
    rig = ClusterRig(2, {"t": 2}, retry_backoff_ms=20, retry_backoff_max_ms=50, request_timeout_ms=5000)
    order: list[int] = []
    deliveries = []

    def send(number: int) -> None:
        deliveries.append(
            rig.send("t", b"%d" % number, on_delivery=lambda *_: order.append(number), partition=0)
        )

    send(0)
    rig.deliver(*deliveries, rig.send("t", b"", partition=1))  # both brokers are connected now
    leader = rig.kafka.partition("t", 0).leader
    rig.served.lose_answers(leader)
    for number in range(1, unanswered + 1):
        send(number)
        rig.settle(3)
    assert len(rig.values()) == unanswered + 1
    rig.kafka.move_leader("t", 0, 1 - leader)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_for(0.1)
    for number in range(unanswered + 1, 40):
        send(number)
        rig.run_for(0.1)
    rig.deliver(*deliveries, seconds=100)
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(40))
    assert rig.values() == [b"%d" % number for number in range(40)]
    assert sorted(order) == list(range(40))


def test_a_batch_in_doubt_is_split_all_the_same():
    """After a connection that broke, or a leader that moved, it was most likely never looked at."""
    rig = GateRig(linger_ms=20, batch_size=300, reconnect_backoff_ms=0)
    warm(rig)
    deliveries = [rig.send("t", bytes([65 + number]) * 40, partition=0) for number in range(4)]
    rig.answer(rig.await_request(), error_code=6)
    rig.answer(rig.await_request(), error_code=10)
    for _ in range(8):
        if all(delivery.done() for delivery in deliveries):
            break
        rig.answer(rig.await_request(), base_offset=9)
    assert [delivery.exception(0) for delivery in deliveries] == [None] * 4


@pytest.mark.parametrize("what", ["success", "hints"])
def test_what_is_behind_an_answer_that_could_not_be_handled_keeps_its_number(what):
    rig = GateRig(reconnect_backoff_ms=0)
    warm(rig)
    first, _ = flight(rig, b"a", b"b")
    sender = rig.parts.sender
    mistake = mock.Mock(side_effect=RuntimeError("a mistake"))
    numbering = sender._gate.numbering
    names = [name for name in dir(numbering) if not name.startswith("_")]
    stumbling = SimpleNamespace(
        **{name: getattr(numbering, name) for name in names} | {"on_success": mistake}
    )
    broken = (
        mock.patch.object(sender._gate, "numbering", stumbling)
        if what == "success"
        else mock.patch.object(sender._outcomes, "_take_hints", mistake)
    )
    with broken:
        rig.answer(first, base_offset=5)
    rig.break_connection()
    assert arrived(rig.await_request())[1:] == (0, 2, [b"b"])


@pytest.mark.parametrize("seed", range(8))
def test_when_records_fail_none_is_doubled_or_out_of_place(seed):
    """Requirements 53 and 55."""
    rng = random.Random(seed)
    rig = ClusterRig(
        2,
        {"t": 2},
        seed=seed,
        batch_size=rng.choice([100, 300]),
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
        request_timeout_ms=300,
        delivery_timeout_ms=rng.choice([300, 500, 900]),
        retries=rng.choice([2, 2**31 - 1]),
    )
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    deliveries = {}
    for number in range(100):
        if rng.random() < 0.35:
            rig.kafka.faults.add(some_fault(rng, [PRODUCE], [7, 20, 19, 6, 87, 18, 29, -1]))
        value, partition = b"%d" % number, rng.randrange(2)
        sent[partition].append(value)
        deliveries[value] = rig.send("t", value, partition=partition)
        rig.settle(rng.randrange(4))
        if rng.random() < 0.15:
            rig.run_for(rng.random())
    rig.kafka.faults.clear()
    rig.deliver(*deliveries.values(), seconds=100)
    assert any(delivery.exception(0) for delivery in deliveries.values())
    for partition, values in sent.items():
        log = rig.values("t", partition)
        assert log == sorted(set(log), key=values.index)
        assert {value for value in values if deliveries[value].exception(0) is None} <= set(log)
