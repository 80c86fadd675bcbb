# SPDX-License-Identifier: Apache-2.0
"""Records of a transaction, by what the broker answers: their numbers, and what becomes of the transaction."""

from __future__ import annotations

import pytest
from producer.fakes_answers import FAIL, RETRY, RETRY_AND_REFRESH, cases
from producer.fakes_core import encoded
from producer.fakes_sender import SHORT
from producer.fakes_txn import (
    NO_BUMP,
    PRODUCER_ID,
    V1,
    V2,
    GateRig,
    a_transaction,
    batches_of,
    both,
    first_numbers,
    in_flight,
    opened,
)

from penstock.errors import (
    BrokerError,
    DeliveryTimeoutError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
    UnknownProducerIdError,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID

FATAL = {31, 35, 49, 53, 90}


def test_in_the_first_protocol_numbers_go_on_over_transactions():
    rig = GateRig.transactional(protocol=V1)
    assert [a_transaction(rig) for _ in range(3)] == [(PRODUCER_ID, 0, number) for number in range(3)]


def test_in_the_second_protocol_each_end_brings_the_next_epoch():
    """Requirement 67."""
    rig = GateRig.transactional(protocol=V2)
    assert [a_transaction(rig) for _ in range(3)] == [(PRODUCER_ID, epoch, 0) for epoch in range(3)]


def test_a_record_that_slipped_in_too_late_begins_no_transaction_of_its_own():
    rig = GateRig.transactional(protocol=V2)
    a_transaction(rig)
    topic = rig.parts.accumulator.topic("t", 2)
    rig.parts.accumulator.admit(True)  # as if the queue had not looked
    late = rig.drive(rig.parts.accumulator.appender.append_steps(topic, 0, encoded(b"late"), None))
    rig.parts.accumulator.admit(False)
    rig.run_for(1)
    assert rig.waiting() == []
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(late)
    rig.commit()
    assert rig.names()[-1] == "EndTxn"


@both
def test_after_a_record_failed_only_an_abort_helps_and_then_work_goes_on(protocol):
    """Requirement 72."""
    rig = opened(protocol)
    failed = rig.send("t", b"a", partition=0)
    rig.await_request()
    rig.answer(error_code=87)
    assert isinstance(failed.exception(0), InvalidRecordError)
    assert rig.state is TxnState.ABORTABLE_ERROR
    assert not rig.fast_path_open
    for call in (
        rig.manager.commit,
        rig.manager.begin,
        rig.manager.detach,
        rig.manager.initialize,
        lambda: rig.send("t", b"b", partition=0),
        lambda: rig.offsets_ticket({("t", 0): 1}),
    ):
        with pytest.raises(KafkaError, match="abort_transaction") as caught:
            call()
        assert isinstance(caught.value.__cause__, InvalidRecordError)
    rig.abort()
    assert rig.asked(END_TXN)[-1]["committed"] is False
    assert a_transaction(rig)[2] == 0


@both
def test_a_record_that_fails_while_committing_drops_the_commit(protocol):
    """Requirement 72."""
    rig = opened(protocol)
    request = in_flight(rig)
    ticket = rig.manager.commit()
    rig.settle()
    rig.answer(request, error_code=29)
    with pytest.raises(TopicAuthorizationError):
        rig.finish(ticket)
    rig.run_for(1)
    assert "EndTxn" not in rig.names()
    rig.abort()
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]
    a_transaction(rig)


@both
def test_a_record_that_expires_while_committing_drops_the_commit(protocol):
    """Requirement 72."""
    rig = opened(protocol, **SHORT)
    delivery = rig.send("t", b"a", partition=0)
    ticket = rig.manager.commit()
    while not delivery.done():
        rig.run_until(lambda: rig.waiting() or delivery.done())
        if rig.waiting():
            rig.answer(error_code=19)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    with pytest.raises(TransactionAbortableError) as caught:
        rig.finish(ticket)
    assert not isinstance(caught.value, KafkaTimeoutError)  # which would mean: commit again
    assert repr(caught.value.__cause__) == repr(delivery.exception(0))
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.abort()
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]
    producer_id, epoch, sequence = a_transaction(rig)
    assert (producer_id, epoch, sequence) == (PRODUCER_ID, 1, 0)  # what was in doubt is left behind


def test_a_refusal_does_not_take_back_the_doubt_about_an_earlier_attempt():
    """The numbers of what may have been written are not given to other records."""
    rig = opened(V1, versions=NO_BUMP)
    in_flight(rig)
    rig.answer(error_code=7)  # perhaps it was written
    rig.await_request()
    rig.answer(error_code=87)
    assert rig.state is TxnState.FATAL_ERROR
    rig = opened(V1, versions=NO_BUMP)
    in_flight(rig)
    rig.answer(error_code=19)  # it was not
    rig.await_request()
    rig.answer(error_code=87)
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.abort()
    assert a_transaction(rig)[2] == 0  # as if the refused one had never been


def test_without_a_new_epoch_a_record_in_doubt_is_fatal():
    """Requirement 72."""
    rig = opened(None, versions=NO_BUMP, **SHORT)
    delivery = rig.send("t", b"a", partition=0)
    while not delivery.done():
        rig.run_until(lambda: rig.waiting() or delivery.done())
        if rig.waiting():
            rig.answer(error_code=19)
    assert rig.state is TxnState.FATAL_ERROR
    with pytest.raises(KafkaError, match="make a new one"):
        rig.manager.abort()


def test_a_record_that_expires_before_it_was_sent_needs_no_new_epoch():
    """Requirement 72."""
    rig = opened(None, versions=NO_BUMP, **SHORT)
    rig.hold(ADD_PARTITIONS_TO_TXN)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_for(1.2)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.brokers[0].waiting.clear()
    rig.release(ADD_PARTITIONS_TO_TXN)
    rig.abort()
    a_transaction(rig)


def test_in_the_first_protocol_an_abort_after_a_failure_returns_with_a_new_epoch():
    """Requirement 72."""
    rig = opened(V1)
    request = in_flight(rig)
    rig.answer(request, error_code=47)
    assert rig.state is TxnState.ABORTABLE_ERROR
    with pytest.raises(InvalidProducerEpochError):
        rig.manager.commit()
    rig.hold(INIT_PRODUCER_ID)
    ticket = rig.manager.abort()
    rig.run_until(lambda: rig.held(INIT_PRODUCER_ID))
    assert not ticket.done
    (bump,) = rig.held(INIT_PRODUCER_ID)
    assert (bump.body["producer_id"], bump.body["producer_epoch"]) == (PRODUCER_ID, 0)
    assert rig.names()[-2:] == ["EndTxn", "InitProducerId"]
    rig.release(INIT_PRODUCER_ID)
    rig.finish(ticket)
    assert a_transaction(rig) == (PRODUCER_ID, 1, 0)


def test_without_a_new_epoch_a_refused_record_lowers_the_numbers():
    rig = opened(None, versions=NO_BUMP)
    request = in_flight(rig)
    rig.answer(request, error_code=47)
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.abort()
    assert len(rig.asked(INIT_PRODUCER_ID)) == 1
    assert a_transaction(rig) == (PRODUCER_ID, 0, 0)


def test_a_producer_that_the_broker_forgot_starts_from_zero():
    """Requirement 57."""
    rig = opened(None, versions=NO_BUMP)
    request = in_flight(rig, b"a")
    rig.answer(request, base_offset=10)
    request = in_flight(rig, b"b")
    assert first_numbers(request) == (PRODUCER_ID, 0, 1)
    rig.answer(request, error_code=59, log_start_offset=50)  # retention has removed what was written
    again = rig.await_request()
    assert first_numbers(again) == (PRODUCER_ID, 0, 0)
    rig.answer()
    rig.commit()
    rig.begin()
    delivery = rig.send("t", b"c", partition=0)
    rig.await_request()
    rig.answer(error_code=59, log_start_offset=5)  # what was written is there, the producer's state is not
    assert isinstance(delivery.exception(0), UnknownProducerIdError)
    rig.abort()
    assert a_transaction(rig) == (PRODUCER_ID, 0, 0)


def test_a_batch_in_a_transaction_is_split_with_its_numbers():
    """Requirement 60."""
    rig = opened(V2, linger_ms=5)
    values = [bytes([number]) * 1000 for number in range(4)]
    deliveries = [rig.send("t", value, partition=0) for value in values]
    ticket = rig.manager.commit()
    accepted = []
    while not ticket.done:
        rig.run_until(lambda: rig.waiting() or ticket.done)
        if rig.waiting():
            (batch,) = batches_of(rig.waiting()[0])
            assert batch.is_transactional
            too_large = batch.records_count > 1
            if not too_large:
                accepted.append((batch.base_sequence, batch.records()[0].value))
            rig.answer(error_code=10 if too_large else 0)
    rig.finish(ticket)
    assert accepted == list(enumerate(values))
    assert all(delivery.exception(0) is None for delivery in deliveries)


def test_one_record_that_is_too_large_fails_the_transaction():
    rig = opened()
    in_flight(rig)
    rig.answer(error_code=10)
    assert rig.state is TxnState.ABORTABLE_ERROR


@pytest.mark.parametrize("code", cases(RETRY | RETRY_AND_REFRESH))
@both
def test_a_passing_error_is_retried_with_the_same_numbers(protocol, code):
    """Requirement 69."""
    rig = opened(protocol)
    request = in_flight(rig)
    rig.answer(request, error_code=code)
    again = rig.await_request()
    assert again.body["topic_data"] == request.body["topic_data"]
    rig.answer()
    rig.commit()


@pytest.mark.parametrize("code", cases(RETRY | RETRY_AND_REFRESH))
def test_a_retriable_error_that_lasts_fails_the_transaction(code):
    """Requirement 69."""
    rig = opened(V1, retries=1)
    delivery = rig.send("t", b"a", partition=0)
    for _ in range(2):
        rig.await_request()
        rig.answer(error_code=code)
    assert delivery.exception(0).code == code
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.abort()
    assert a_transaction(rig) == (PRODUCER_ID, 1, 0)


@pytest.mark.parametrize(
    "code", cases({code: name for code, name in FAIL.items() if code not in FATAL | {59}})
)
@both
def test_any_other_error_fails_the_transaction(protocol, code):
    """Requirement 69."""
    rig = opened(protocol)
    delivery = rig.send("t", b"a", partition=0)
    rig.await_request()
    rig.answer(error_code=code)
    assert delivery.exception(0).code == code
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.abort()
    assert a_transaction(rig) == (PRODUCER_ID, 1, 0)


@pytest.mark.parametrize("code", cases({code: FAIL[code] for code in sorted(FATAL)}))
@both
def test_errors_after_which_the_producer_cannot_go_on(protocol, code):
    """Requirement 69."""
    rig = opened(protocol)
    delivery = rig.send("t", b"a", partition=0)
    request = rig.await_request()
    in_flight(rig, b"b", 1)
    ticket = rig.manager.commit()
    rig.answer(request, error_code=code)
    assert delivery.exception(0).code == code
    with pytest.raises(BrokerError) as caught:
        rig.finish(ticket)
    if code == 90:  # the producer says more than the partition: by whom, and what to do
        assert repr(caught.value.__cause__) == repr(delivery.exception(0))
    else:
        assert repr(caught.value) == repr(delivery.exception(0))
    assert rig.state is TxnState.FATAL_ERROR
    rig.answer(error_code=19)
    assert not rig.parts.accumulator.has_incomplete()  # nothing is tried again
    for call in (rig.manager.abort, rig.manager.begin, rig.manager.initialize):
        with pytest.raises(ProducerFencedError if code == 90 else KafkaError):
            call()
    rig.run_for(1)
    assert "EndTxn" not in rig.names()


def test_a_stale_transaction_state_is_not_told_as_if_it_could_be_tried_again():
    rig = opened()
    in_flight(rig)
    rig.answer(error_code=48)
    with pytest.raises(KafkaError, match="abort_transaction") as caught:
        rig.manager.commit()
    assert isinstance(caught.value.__cause__, TransactionAbortableError)


@both
def test_a_piece_of_a_split_batch_that_expires_in_flight_does_not_keep_a_transaction_from_ending(protocol):
    rig = opened(protocol, delivery_timeout_ms=1000, request_timeout_ms=900, linger_ms=5)
    deliveries = [rig.send("t", b"v", partition=0) for _ in range(2)]
    rig.await_request()
    rig.run_for(0.4)
    rig.answer(error_code=10)  # too large: it is cut
    rig.await_request()
    rig.run_for(0.7)
    assert all(isinstance(delivery.exception(0), DeliveryTimeoutError) for delivery in deliveries)
    assert rig.waiting()  # its request is still on the way
    rig.answer()
    rig.acknowledge_all()
    rig.abort()
    assert rig.state is TxnState.READY
    assert not rig.parts.accumulator.may_still_be_written()
