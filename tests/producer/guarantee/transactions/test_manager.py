# SPDX-License-Identifier: Apache-2.0
"""Transactions from begin to end: the real sender, network client and metadata against a scripted coordinator, and
against a cluster that validates.
"""

from __future__ import annotations

import gc
import random
import weakref

import pytest
from network.fakes import Received
from producer.fakes_core import encoded
from producer.fakes_txn import CUT, PRODUCER_ID, ClusterRig, GateRig, batches_of, numbers
from producer.guarantee.test_idempotence import some_fault
from producer.guarantee.test_response_policy import FAIL, RETRY, RETRY_AND_REFRESH, cases

from penstock._identity import ProducerIdentity
from penstock.consumer_groups import as_group
from penstock.errors import (
    BrokerError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownProducerIdError,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.testing import ClusterSettings, Fault
from penstock.transaction_handle import TransactionHandle
from penstock.types import ConsumerGroupMetadata, TopicPartition

V1, V2 = 1, 2
both = pytest.mark.parametrize("protocol", [V1, V2], ids=["v1", "v2"])
SHORT = {"delivery_timeout_ms": 1000, "request_timeout_ms": 1000}
NO_BUMP = {"InitProducerId": (0, 2)}  # a coordinator that cannot raise an epoch when asked
FATAL = {31, 35, 49, 53, 90}


def opened(protocol: int | None = V2, **options: object) -> GateRig:
    """A producer in a transaction."""
    rig = GateRig.transactional(protocol=protocol, **options)
    rig.begin()
    return rig


def in_flight(rig: GateRig, value: bytes = b"a", partition: int = 0) -> Received:
    """Send a record in a request of its own, which waits."""
    rig.send("t", value, partition=partition)
    return rig.await_request(count=len(rig.waiting()) + 1)


def first_numbers(request: Received) -> tuple[int, int, int]:
    return numbers(batches_of(request)[0])


def a_transaction(rig: GateRig, value: bytes = b"next") -> tuple[int, int, int]:
    """A transaction of one record in partition 0, committed; the numbers of its batch."""
    rig.begin()
    delivery = rig.send("t", value, partition=0)
    ticket = rig.manager.commit()
    request = rig.await_request()
    rig.answer()
    rig.finish(ticket)
    delivery.result(0)
    return first_numbers(request)


# ------------------------------------------------------------------------------------------------- the flow


def test_the_flow_of_the_first_protocol():
    """Requirement 64."""
    rig = GateRig.transactional(protocol=V1)
    rig.acknowledge_all()
    rig.begin()
    assert rig.fast_path_open
    delivery = rig.send("t", b"a", partition=0)
    rig.deliver(delivery)
    rig.send_offsets({("t", 0): 5})
    rig.commit()
    assert rig.state is TxnState.READY
    assert not rig.fast_path_open
    assert rig.names() == [
        "InitProducerId",
        "AddPartitionsToTxn",
        "Produce",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn",
    ]
    (batch,) = rig.batches()
    assert batch.is_transactional
    assert numbers(batch) == (PRODUCER_ID, 0, 0)


def test_the_flow_of_the_second_protocol():
    """Requirement 64."""
    rig = GateRig.transactional(protocol=V2)
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.send_offsets({("t", 0): 5})
    rig.commit()
    assert rig.names() == ["InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"]


@pytest.mark.parametrize(
    ("release", "level"), [("4.3", 2), ("4.3", 1), ("4.3", 0), ("4.0", 2), ("3.9", 0), ("2.8", 0), ("2.4", 0)]
)
def test_what_is_committed_can_be_read_and_what_is_aborted_cannot(release, level):
    """Requirement 64."""
    features = {"transaction.version": level} if release >= "4" else None
    rig = ClusterRig(3, {"t": 3, "in": 1}, release=release, features=features, transactional_id="x")
    rig.init()
    for number in range(4):
        rig.begin()
        for partition in range(3):
            rig.send("t", b"%d" % number, partition=partition)
        rig.send_offsets({("in", 0): number})
        if number % 2:
            rig.abort()
        else:
            rig.commit()
    rig.run_for(0.1)
    for partition in range(3):
        assert rig.values("t", partition) == [b"0", b"2"]
    assert rig.kafka.groups.offsets("g")[TopicPartition("in", 0)].offset == 2
    assert rig.kafka.groups.pending("g") == set()


def test_in_the_first_protocol_numbers_go_on_over_transactions():
    rig = GateRig.transactional(protocol=V1)
    assert [a_transaction(rig) for _ in range(3)] == [(PRODUCER_ID, 0, number) for number in range(3)]


def test_in_the_second_protocol_each_end_brings_the_next_epoch():
    """Requirement 67."""
    rig = GateRig.transactional(protocol=V2)
    assert [a_transaction(rig) for _ in range(3)] == [(PRODUCER_ID, epoch, 0) for epoch in range(3)]


def test_after_the_last_epoch_the_end_brings_another_id():
    """Requirement 67."""
    rig = GateRig.transactional(protocol=V2)
    a_transaction(rig)
    rig.identity = ProducerIdentity(PRODUCER_ID + 9, 0)
    a_transaction(rig)
    assert a_transaction(rig) == (PRODUCER_ID + 9, 0, 0)


@pytest.mark.parametrize("epoch", [32_760, 32_765, 32_766])
def test_the_epochs_of_an_id_are_used_up_on_a_cluster(epoch):
    """Requirement 67."""
    rig = ClusterRig(1, transactional_id="x")
    rig.init()
    rig.kafka.transactions.find("x").epoch = epoch
    rig.manager._numbering.identity = ProducerIdentity(rig.manager.identity.producer_id, epoch)
    for number in range(10):
        rig.begin()
        rig.send("t", b"%d" % number, partition=0)
        rig.commit()
    assert rig.values() == [b"%d" % number for number in range(10)]
    assert rig.manager.identity.epoch < 10


@both
@pytest.mark.parametrize("commit", [True, False])
def test_where_nothing_was_added_nothing_is_ended(protocol, commit):
    """Requirement 66."""
    rig = opened(protocol)
    if commit:
        rig.commit()
    else:
        rig.abort()
    assert rig.names() == ["InitProducerId"]
    a_transaction(rig)


@both
def test_the_end_waits_for_the_last_batch(protocol):
    """Requirement 66."""
    rig = opened(protocol)
    in_flight(rig, b"a", 0)
    in_flight(rig, b"b", 1)
    ticket = rig.manager.commit()
    rig.answer()
    rig.settle()
    assert "EndTxn" not in rig.names()
    assert not ticket.done
    rig.answer()
    rig.finish(ticket)
    assert rig.names()[-1] == "EndTxn"


@both
def test_a_commit_does_not_wait_for_linger(protocol):
    """Requirement 32."""
    rig = opened(protocol, linger_ms=60_000, delivery_timeout_ms=200_000)
    rig.acknowledge_all()
    delivery = rig.send("t", b"a", partition=0)
    rig.settle()
    assert rig.seen(PRODUCE) == []
    before = rig.clock.now()
    rig.commit()
    delivery.result(0)
    assert rig.clock.now() - before < 1


@both
def test_a_record_goes_out_by_itself(protocol):
    """Nobody has to flush or commit to set it going."""
    rig = opened(protocol, linger_ms=5)
    rig.acknowledge_all()
    before = rig.clock.now()
    rig.deliver(rig.send("t", b"a", partition=0))
    assert rig.clock.now() - before == pytest.approx(0.005)


# ------------------------------------------------------------------------------------- change of the protocol


def test_the_first_protocol_is_left_only_between_transactions_and_with_a_new_epoch():
    """Requirement 65."""
    rig = opened(V1)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.set_protocol(V2)
    rig.deliver(rig.send("t", b"b", partition=1))
    rig.commit()
    assert rig.names() == [
        "InitProducerId",
        "AddPartitionsToTxn",
        "Produce",
        "AddPartitionsToTxn",
        "Produce",
        "EndTxn",
        "InitProducerId",
    ]
    assert rig.asked_versions(END_TXN) == [4]
    assert rig.asked_versions(PRODUCE) == [11, 11]
    bump = rig.asked(INIT_PRODUCER_ID)[-1]
    assert (bump["transactional_id"], bump["producer_id"], bump["producer_epoch"]) == ("x", PRODUCER_ID, 0)
    rig.log.clear()
    rig.begin()
    rig.send("t", b"c", partition=0)
    rig.commit()
    assert rig.names() == ["Produce", "EndTxn"]
    assert rig.asked_versions(END_TXN) == [5]
    assert numbers(rig.batches()[-1]) == (PRODUCER_ID, 1, 0)


def test_the_second_protocol_is_left_only_between_transactions():
    """Requirement 65."""
    rig = opened(V2)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.set_protocol(V1)
    rig.deliver(rig.send("t", b"b", partition=1))
    rig.commit()
    assert rig.names() == ["InitProducerId", "Produce", "Produce", "EndTxn"]
    assert rig.asked_versions(END_TXN) == [5]
    rig.log.clear()
    rig.begin()
    rig.send("t", b"c", partition=0)
    rig.commit()
    assert rig.names() == ["AddPartitionsToTxn", "Produce", "EndTxn"]
    assert rig.asked_versions(END_TXN) == [4]
    assert numbers(rig.batches()[-1]) == (PRODUCER_ID, 1, 0)  # the end of the transaction before brought it


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_cluster_that_changes_the_protocol_loses_nothing(before, after):
    """Requirement 65."""
    rig = ClusterRig(1, features={"transaction.version": before}, transactional_id="x")
    rig.init()
    for number in range(6):
        rig.begin()
        rig.send("t", b"%d" % number, partition=0)
        if number == 2:
            rig.kafka.set_feature("transaction.version", after)
            rig.kafka.drop_connections()
            rig.pump()
        rig.commit()
    assert rig.values() == [b"%d" % number for number in range(6)]


def test_the_protocol_stays_while_no_broker_is_connected():
    rig = opened(V2)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.commit()
    rig.begin()
    for host in ("b0", "b1"):
        del rig.network.listeners[rig.network.names[host][0], 9092]
    for broker in (0, 1):
        rig.break_connection(broker)
    rig.commit()  # of nothing: no broker is asked
    assert rig.manager.uses_v2


# -------------------------------------------------------------------------------------------- wrong order


def uninitialized() -> GateRig:
    rig = GateRig(transactional_id="x")
    rig.know("t", 2)
    return rig


@pytest.mark.parametrize("call", ["begin", "commit", "abort", "detach", "check_send"])
def test_without_init_nothing_is_possible(call):
    """Requirement 74."""
    rig = uninitialized()
    with pytest.raises(IllegalStateError):
        getattr(rig.manager, call)()
    assert rig.state is TxnState.UNINITIALIZED
    rig.init()


@pytest.mark.parametrize("call", ["initialize", "commit", "abort", "detach", "check_send"])
def test_without_begin_nothing_is_possible(call):
    """Requirement 74."""
    rig = GateRig.transactional()
    with pytest.raises(IllegalStateError):
        getattr(rig.manager, call)()
    assert rig.state is TxnState.READY
    a_transaction(rig)


def test_offsets_need_an_open_transaction():
    """Requirement 74."""
    rig = GateRig.transactional()
    with pytest.raises(IllegalStateError, match="open transaction"):
        rig.offsets_ticket({("t", 0): 1})
    a_transaction(rig)


@pytest.mark.parametrize("call", ["begin", "initialize"])
def test_a_transaction_begins_once(call):
    """Requirement 74."""
    rig = opened()
    with pytest.raises(IllegalStateError):
        getattr(rig.manager, call)()
    assert rig.state is TxnState.IN_TRANSACTION


def test_records_are_refused_outside_a_transaction():
    rig = GateRig.transactional()
    for _ in range(2):
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            rig.send("t", b"a")
        assert not rig.parts.accumulator.has_incomplete()
        a_transaction(rig)


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


def test_an_answer_that_does_not_fit_poisons_the_producer():
    """Requirement 74."""
    rig = opened()
    rig.hold(END_TXN)
    in_flight(rig)
    ticket = rig.manager.commit()
    rig.answer()
    rig.run_until(lambda: rig.held(END_TXN))
    rig.manager._state.current = TxnState.UNINITIALIZED  # client and coordinator do not agree any more
    rig.release(END_TXN)
    with pytest.raises(IllegalStateError):
        rig.finish(ticket)
    assert rig.state is TxnState.FATAL_ERROR
    with pytest.raises(IllegalStateError):
        rig.manager.begin()


@pytest.mark.parametrize(
    ("group", "error"),
    [
        (None, TypeError),
        (7, TypeError),
        ("", ValueError),
        (ConsumerGroupMetadata("g", 1, ""), ValueError),
        (ConsumerGroupMetadata("", 1, "m"), ValueError),
    ],
)
def test_a_group_is_an_id_or_says_who_asks(group, error):
    with pytest.raises(error):
        as_group(group)


def test_a_group_may_be_given_in_two_ways():
    assert as_group("g") == ConsumerGroupMetadata("g")
    assert as_group(ConsumerGroupMetadata("g", 3, "m")).generation_id == 3


def test_a_request_that_cannot_be_written_does_not_hold_up_the_rest():
    rig = opened()
    with pytest.raises(KafkaError, match="TxnOffsetCommit could not be sent"):
        rig.send_offsets({("t", 0): 2**70})  # more than fits
    assert rig.state is TxnState.FATAL_ERROR
    rig.parts.sender.initiate_close()
    rig.run_to_end()


def test_a_request_that_cannot_be_put_together_fails_the_call_and_the_producer():
    rig = opened()
    delivery = rig.send("t", b"a", partition=0)
    rig.await_request()
    unsent = rig.send("t", b"b", partition=0)
    with pytest.raises(KafkaError, match="TxnOffsetCommit could not be put together"):
        rig.send_offsets({("t", 0): 1, ("t", None): 2})  # which have no order
    assert rig.state is TxnState.FATAL_ERROR
    rig.answer()
    rig.deliver(delivery, unsent, seconds=1)
    with pytest.raises(KafkaError, match="could not be put together"):
        rig.abort()


# ------------------------------------------------------------------------------------------- one at a time


def test_after_a_time_out_the_same_init_goes_on_and_no_other():
    """Requirement 71."""
    rig = uninitialized()
    rig.hold(INIT_PRODUCER_ID)
    ticket = rig.manager.initialize()
    rig.run_until(lambda: rig.held(INIT_PRODUCER_ID))
    assert rig.manager.initialize() is ticket
    assert rig.manager.initialize("x") is ticket
    for call in (
        rig.manager.begin,
        rig.manager.commit,
        rig.manager.abort,
        lambda: rig.manager.initialize("y"),
    ):
        with pytest.raises(IllegalStateError, match=r"init_transactions\(\) is not known"):
            call()
    rig.release(INIT_PRODUCER_ID)
    assert ticket.done
    with pytest.raises(IllegalStateError):
        rig.manager.begin()  # nobody has heard of the outcome yet
    assert rig.manager.initialize() is ticket
    rig.finish(ticket)
    a_transaction(rig)
    assert len(rig.asked(INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize("call", ["commit", "abort"])
def test_after_a_time_out_the_same_end_goes_on_and_no_other(call):
    """Requirement 71."""
    rig = opened()
    rig.hold(END_TXN)
    rig.send("t", b"a", partition=0)
    rig.await_request()
    rig.answer()
    ticket = getattr(rig.manager, call)()
    rig.run_until(lambda: rig.held(END_TXN))
    assert getattr(rig.manager, call)() is ticket
    other = "abort" if call == "commit" else "commit"
    for name in (other, "begin", "initialize", "detach"):
        with pytest.raises(IllegalStateError, match=rf"{call}_transaction\(\) is not known"):
            getattr(rig.manager, name)()
    rig.release(END_TXN)
    assert getattr(rig.manager, call)() is ticket
    rig.finish(ticket)
    assert len(rig.asked(END_TXN)) == 1
    a_transaction(rig)


def test_after_a_time_out_the_same_offsets_go_on_and_no_others():
    """Requirement 71."""
    rig = opened()
    rig.hold(TXN_OFFSET_COMMIT)
    ticket = rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(TXN_OFFSET_COMMIT))
    assert rig.offsets_ticket({("t", 0): 5}) is ticket
    for offsets, group in (({("t", 0): 6}, "g"), ({("t", 1): 5}, "g"), ({("t", 0): 5}, "h")):
        with pytest.raises(IllegalStateError, match="is not known"):
            rig.offsets_ticket(offsets, group)  # they would be lost silently
    with pytest.raises(IllegalStateError, match="is not known"):
        rig.manager.commit()
    rig.release(TXN_OFFSET_COMMIT)
    rig.finish(ticket)
    rig.commit()


@both
def test_a_transaction_may_be_aborted_while_its_offsets_have_no_answer(protocol):
    rig = opened(protocol)
    waiting_for = ADD_OFFSETS_TO_TXN if protocol == V1 else TXN_OFFSET_COMMIT
    rig.hold(waiting_for)
    offsets = rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(waiting_for))
    ticket = rig.manager.abort()
    with pytest.raises(TransactionAbortedError):
        rig.finish(offsets)
    rig.settle()
    assert not ticket.done
    rig.release(waiting_for)
    rig.finish(ticket)
    assert rig.names()[-1] == "EndTxn"
    assert len(rig.asked(TXN_OFFSET_COMMIT)) == (0 if protocol == V1 else 1)
    rig.acknowledge_all()
    rig.begin()
    rig.send("t", b"a", partition=0)
    rig.commit()


def test_offsets_whose_answer_comes_late_do_not_end_an_abort():
    rig = opened()
    rig.hold(TXN_OFFSET_COMMIT, END_TXN)
    request = in_flight(rig)
    offsets = rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(TXN_OFFSET_COMMIT))
    rig.answer(request, error_code=87)
    with pytest.raises(InvalidRecordError):
        rig.finish(offsets)
    ticket = rig.manager.abort()
    rig.release(TXN_OFFSET_COMMIT)
    rig.run_until(lambda: rig.held(END_TXN))
    assert not ticket.done
    rig.release(END_TXN)
    rig.finish(ticket)


def test_offsets_that_are_refused_after_an_abort_do_not_hold_it_up():
    rig = opened()
    rig.hold(TXN_OFFSET_COMMIT)
    rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(TXN_OFFSET_COMMIT))
    ticket = rig.manager.abort()
    rig.script(TXN_OFFSET_COMMIT, 14)
    rig.release(TXN_OFFSET_COMMIT)
    rig.finish(ticket)
    assert rig.names() == ["InitProducerId", "TxnOffsetCommit", "EndTxn"]


def test_offsets_are_not_tried_again_once_the_transaction_is_aborted():
    rig = opened()
    rig.script(TXN_OFFSET_COMMIT, *[14] * 100)
    rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: len(rig.asked(TXN_OFFSET_COMMIT)) == 2)
    rig.abort()
    asked = len(rig.asked(TXN_OFFSET_COMMIT))
    rig.run_for(2)
    assert len(rig.asked(TXN_OFFSET_COMMIT)) == asked


# -------------------------------------------------------------------------------------- records that fail


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


def test_whoever_uses_a_closed_producer_is_told_so():
    rig = opened()
    rig.manager.close(ProducerClosedError("closed"))
    for call in (rig.manager.check_send, rig.manager.commit, rig.manager.abort, rig.manager.detach):
        with pytest.raises(KafkaError, match="closed"):
            call()
    assert not rig.manager.is_open  # nothing is left that a close would abort


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


def test_one_record_that_is_too_large_spoils_the_transaction():
    rig = opened()
    in_flight(rig)
    rig.answer(error_code=10)
    assert rig.state is TxnState.ABORTABLE_ERROR


# -------------------------------------------------------------------------------------------- every answer


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
def test_a_passing_error_that_does_not_pass_spoils_the_transaction(code):
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
def test_any_other_error_spoils_the_transaction(protocol, code):
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


# ---------------------------------------------------------------------------------------------------- abort


@both
def test_an_abort_drops_what_was_not_sent(protocol):
    """Requirements 73 and 77."""
    rig = opened(protocol, linger_ms=1000)
    told = []
    deliveries = [
        rig.send("t", b"%d" % number, partition=number % 2, on_delivery=lambda _, error: told.append(error))
        for number in range(4)
    ]
    free = rig.parts.accumulator.pool.total
    rig.abort()
    assert {type(delivery.exception(0)) for delivery in deliveries} == {TransactionAbortedError}
    assert len(told) == 4
    assert rig.seen(PRODUCE) == []
    assert rig.available_memory == free
    assert "EndTxn" not in rig.names()  # nothing had been added
    a_transaction(rig)


@both
def test_an_abort_waits_for_what_was_sent(protocol):
    """Requirement 73."""
    rig = opened(protocol)
    sent = rig.send("t", b"a", partition=0)
    rig.await_request()
    rig.answer(error_code=19)  # it will be sent again
    ticket = rig.manager.abort()
    unsent = rig.parts.accumulator.has_incomplete()
    assert unsent
    again = rig.await_request()
    assert batches_of(again)[0].records()[0].value == b"a"
    assert "EndTxn" not in rig.names()
    rig.answer(base_offset=3)
    rig.finish(ticket)
    assert sent.result(0).offset == 3  # it was written, and is dropped by its readers
    assert rig.names()[-1] == "EndTxn"


@pytest.mark.parametrize("api", [ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN], ids=lambda api: api.name)
def test_an_abort_first_asks_again_what_may_have_begun_the_transaction(api):
    """Requirement 73."""
    rig = opened(V1, reconnect_backoff_ms=0)
    rig.script(api, CUT)
    if api is ADD_PARTITIONS_TO_TXN:
        rig.send("t", b"a", partition=0)
    else:
        rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.asked(api))
    rig.settle()
    rig.abort()
    # The coordinator may have done what it could not answer: then there is a transaction to be ended.
    assert [name for name in rig.names() if name in (api.name, "EndTxn")] == [api.name, api.name, "EndTxn"]
    assert "TxnOffsetCommit" not in rig.names()
    a_transaction(rig)


def test_an_abort_does_not_ask_for_what_was_refused_before():
    """Requirement 73."""
    rig = opened(V1)
    rig.script(ADD_PARTITIONS_TO_TXN, *[14] * 50)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_until(lambda: len(rig.asked(ADD_PARTITIONS_TO_TXN)) == 2)
    rig.abort()
    assert isinstance(delivery.exception(0), TransactionAbortedError)
    assert "EndTxn" not in rig.names()


def test_a_demand_to_abort_during_an_abort_is_fatal():
    """Requirement 75."""
    rig = opened()
    in_flight(rig)
    rig.answer()
    rig.script(END_TXN, 120)
    with pytest.raises(TransactionAbortableError):
        rig.abort()
    assert rig.state is TxnState.FATAL_ERROR


def test_a_coordinator_that_cannot_be_had_during_an_abort_is_fatal():
    """Requirement 75."""
    rig = opened()
    in_flight(rig)
    rig.answer()
    rig.script(END_TXN, 16)
    rig.script(FIND_COORDINATOR, 120)
    with pytest.raises(TransactionAbortableError):
        rig.abort()
    assert rig.state is TxnState.FATAL_ERROR


def test_a_record_that_fails_during_an_abort_does_not_stop_it():
    """Requirement 75."""
    rig = opened(V1)
    request = in_flight(rig)
    ticket = rig.manager.abort()
    rig.settle()
    rig.answer(request, error_code=29)
    rig.finish(ticket)
    assert rig.state is TxnState.READY
    assert a_transaction(rig) == (PRODUCER_ID, 1, 0)


# ------------------------------------------------------------------------------------------ throttled, closed


def test_a_throttled_coordinator_is_asked_when_it_may_be():
    """Requirement 78."""
    rig = opened(V1)
    request = in_flight(rig)
    rig.answer(request, throttle_ms=500)
    before = rig.clock.now()
    delivery = rig.send("t", b"b", partition=1)
    rig.await_request()
    assert rig.clock.now() - before == pytest.approx(0.5, abs=0.01)
    rig.answer()
    delivery.result(0)
    rig.commit()


@both
def test_a_close_aborts_what_is_open(protocol):
    """Requirement 76."""
    rig = opened(protocol)
    rig.acknowledge_all()
    delivery = rig.send("t", b"a", partition=0)
    rig.parts.sender.initiate_close()
    rig.run_to_end()
    delivery.result(0)
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]


def test_a_close_aborts_what_has_failed():
    """Requirement 76."""
    rig = opened()
    in_flight(rig)
    rig.answer(error_code=29)
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.parts.sender.initiate_close()
    rig.run_to_end()
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]


def test_a_close_waits_for_a_commit_that_is_under_way():
    """Requirement 76."""
    rig = opened()
    rig.acknowledge_all()
    rig.send("t", b"a", partition=0)
    ticket = rig.manager.commit()
    rig.script(END_TXN, 51, 51)
    rig.parts.sender.initiate_close()
    rig.run_to_end()
    assert ticket.result is None
    assert [body["committed"] for body in rig.asked(END_TXN)] == [True] * 3


@pytest.mark.parametrize("fatal", [True, False])
def test_a_close_ends_when_the_abort_fails(fatal):
    """Requirement 76."""
    rig = opened()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, 90 if fatal else 14)
    rig.parts.sender.initiate_close()
    rig.run_to_end()
    assert len(rig.asked(END_TXN)) == (1 if fatal else 2)


@both
def test_a_forced_close_aborts_nothing(protocol):
    """Requirement 76."""
    rig = opened(protocol)
    request = in_flight(rig)
    assert request
    rig.parts.sender.force_close()
    rig.run_to_end()
    assert "EndTxn" not in rig.names()
    assert not rig.parts.accumulator.has_incomplete()


@pytest.mark.parametrize(
    "api",
    [FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN],
    ids=lambda api: api.name,
)
def test_a_forced_close_ends_every_wait_at_once(api):
    """Requirement 17."""
    if api in (FIND_COORDINATOR, INIT_PRODUCER_ID):
        rig = uninitialized()
        rig.hold(api)
        ticket = rig.manager.initialize()
    else:
        rig = opened(V1)
        rig.hold(api)
        if api is END_TXN:
            in_flight(rig)
            rig.answer()
            ticket = rig.manager.commit()
        else:
            ticket = rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: rig.held(api))
    before = rig.clock.now()
    rig.parts.sender.force_close()
    rig.run_to_end()
    with pytest.raises(ProducerClosedError):
        ticket.result  # noqa: B018
    assert rig.clock.now() == before


# --------------------------------------------------------------------------------------------------- detach


@both
def test_a_detached_transaction_is_a_value(protocol):
    rig = opened(protocol)
    rig.send("t", b"a", partition=1)
    rig.await_request()
    rig.answer(base_offset=7)
    handle = rig.manager.detach()
    assert (handle.transactional_id, handle.producer_id, handle.producer_epoch) == ("x", PRODUCER_ID, 0)
    assert (handle.topic, handle.partition, handle.offset, handle.record_count) == ("t", 1, 7, 1)
    assert handle.end_txn_version == (3 if protocol == V1 else 5)
    assert handle.timeout_ms == rig.config.transaction_timeout_ms
    assert not handle.empty
    assert rig.state is TxnState.UNINITIALIZED
    assert not rig.fast_path_open
    with pytest.raises(IllegalStateError, match="init_transactions"):
        rig.manager.begin()
    rig.init("another")
    assert rig.asked(INIT_PRODUCER_ID)[-1]["transactional_id"] == "another"
    assert [body["coordinator_keys"] for body in rig.asked(FIND_COORDINATOR)] == [["x"], ["another"]]
    assert "EndTxn" not in rig.names()
    a_transaction(rig)
    assert rig.asked(END_TXN)[-1]["transactional_id"] == "another"


@pytest.mark.parametrize("newest", [0, 1, 2, 3, 4, 5])
def test_in_the_first_protocol_a_detached_transaction_is_ended_in_a_version_that_the_brokers_know(newest):
    rig = opened(V1, versions={"EndTxn": (0, newest)})
    in_flight(rig)
    rig.answer()
    assert rig.manager.detach().end_txn_version == min(newest, 3)


def test_after_a_detach_every_call_says_what_is_to_be_done():
    rig = opened()
    rig.manager.detach()
    calls = (
        rig.manager.begin,
        rig.manager.check_send,
        rig.manager.commit,
        rig.manager.abort,
        rig.manager.detach,
        lambda: rig.offsets_ticket({("t", 0): 1}),
    )
    for call in calls:
        with pytest.raises(IllegalStateError, match=r"was detached: call init_transactions\(\) before"):
            call()
    rig.init("another")
    rig.begin()


def test_a_second_call_to_init_transactions_is_told_so():
    rig = GateRig.transactional()
    for state in ("ready", "in a transaction"):
        with pytest.raises(IllegalStateError, match=f"called already, and the producer is {state}"):
            rig.manager.initialize()
        if state == "ready":
            rig.begin()
    assert rig.state is TxnState.IN_TRANSACTION


@pytest.mark.parametrize("code", [90, 47])
def test_a_fence_says_once_what_it_is(code):
    rig = opened()
    rig.script(END_TXN, code)
    in_flight(rig)
    ticket = rig.manager.commit()
    rig.answer()
    with pytest.raises(ProducerFencedError) as caught:
        rig.finish(ticket)
    text = str(caught.value)
    assert text.startswith(
        "another producer has taken over the transactional id 'x' (this one is producer id 4000"
    )
    assert "transaction.timeout.ms (60000)" in text
    assert "Close it" in text
    assert text.count("PRODUCER_FENCED") == 1
    assert isinstance(caught.value.__cause__, BrokerError)
    assert caught.value.__cause__.code == code


def test_a_fence_that_a_partition_tells_of_says_the_same():
    rig = opened()
    request = in_flight(rig)
    rig.answer(request, error_code=90)
    with pytest.raises(ProducerFencedError, match=r"taken over the transactional id 'x'.*Close it"):
        rig.manager.commit()


def test_an_old_epoch_says_how_to_find_out_why():
    rig = opened()
    request = in_flight(rig)
    rig.answer(request, error_code=47)
    with pytest.raises(InvalidProducerEpochError, match=r"call abort_transaction\(\), which tells whether"):
        rig.manager.commit()


def test_a_detached_transaction_may_be_empty():
    rig = opened()
    handle = rig.manager.detach()
    assert handle.empty
    assert (handle.topic, handle.record_count) == (None, 0)


def test_a_transaction_can_be_detached_at_the_moment_a_flush_ends():
    rig = opened()
    deliveries = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    ticket = rig.parts.accumulator.flush()
    handles: list[TransactionHandle] = []
    ticket.on_done(lambda _: handles.append(rig.manager.detach()))
    rig.await_request()
    rig.answer()
    assert [delivery.result(0).partition for delivery in deliveries] == [0, 1]
    assert [handle.record_count for handle in handles] == [2]


def test_a_transaction_is_not_detached_with_records_on_their_way():
    rig = opened()
    in_flight(rig)
    with pytest.raises(IllegalStateError, match="records were sent"):
        rig.manager.detach()
    rig.answer()
    rig.manager.detach()


# -------------------------------------------------------------------------------------- a validating cluster

_CODES = {
    PRODUCE: [7, 20, 19, 6, 3, 51, 87],
    INIT_PRODUCER_ID: [51, 15, 16, 14],
    FIND_COORDINATOR: [15, 14],
    ADD_PARTITIONS_TO_TXN: [51, 15, 16, 14, 3],
    ADD_OFFSETS_TO_TXN: [51, 15, 16],
    TXN_OFFSET_COMMIT: [14, 15, 16, 7, 3],
    END_TXN: [51, 15, 16, 14],
}


def try_transaction(rig: ClusterRig, rng: random.Random, numbers_: range) -> dict[int, list[bytes]] | None:
    """Send some records and offsets, and commit or abort; what was committed."""
    rig.begin()
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    deliveries = []
    try:
        for number in numbers_:
            partition = rng.randrange(3)
            sent[partition].append(b"%d" % number)
            deliveries.append(rig.send("t", b"%d" % number, partition=partition))
            rig.settle(rng.randrange(3))
            if rng.random() < 0.1:
                rig.run_for(rng.random())
        if rng.random() < 0.4:
            rig.finish(rig.offsets_ticket({("in", 0): numbers_.start}), 100)
        if rng.random() < 0.7:
            rig.finish(rig.manager.commit(), 100)
            assert all(delivery.exception(0) is None for delivery in deliveries)
            return sent
    except KafkaError:
        assert rig.state is TxnState.ABORTABLE_ERROR
    rig.finish(rig.manager.abort(), 100)
    assert all(delivery.done() for delivery in deliveries)
    return None


@pytest.mark.parametrize(("release", "level"), [("4.3", 2), ("4.3", 1), ("3.9", 0), ("2.4", 0)])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_exactly_what_was_committed_can_be_read(seed, release, level):
    """Requirements 66 and 68."""
    rng = random.Random(seed)
    marker_delay = rng.choice([0, 0, 0.03])
    rig = ClusterRig(
        3,
        {"t": 3, "in": 1},
        seed=seed,
        release=release,
        features={"transaction.version": level} if release >= "4" else None,
        settings=ClusterSettings(marker_delay=marker_delay),
        transactional_id="x",
        batch_size=rng.choice([100, 300, 2000]),
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
    )
    rig.init()
    committed: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(10):
        for _ in range(rng.randrange(4)):
            api = rng.choice(list(_CODES))
            rig.kafka.faults.add(some_fault(rng, [api], _CODES[api]))
        first = 100 * number
        sent = try_transaction(rig, rng, range(first, first + rng.randrange(12)))
        for partition, values in (sent or {}).items():
            committed[partition] += values
    rig.kafka.faults.clear()
    rig.begin()
    rig.send("t", b"last", partition=0)
    rig.commit()
    rig.run_for(1)
    committed[0].append(b"last")
    assert {partition: rig.values("t", partition) for partition in committed} == committed


@both
@pytest.mark.parametrize("unheard", [1, 3, 5])
def test_answers_of_a_former_leader_that_never_come(unheard, protocol):
    rig = ClusterRig(
        2,
        {"t": 2},
        features={"transaction.version": protocol},
        transactional_id="x",
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
        request_timeout_ms=5000,
    )
    rig.init()
    rig.begin()
    deliveries = [rig.send("t", b"0", partition=0), rig.send("t", b"", partition=1)]
    rig.deliver(*deliveries)  # both brokers are connected now
    leader = rig.kafka.partition("t", 0).leader
    rig.lose_answers(leader)
    for number in range(1, 40):
        if number == unheard + 1:
            rig.kafka.move_leader("t", 0, 1 - leader)
            rig.parts.metadata.request_update(rig.clock.now())
            rig.run_for(0.1)
        deliveries.append(rig.send("t", b"%d" % number, partition=0))
        rig.run_for(0.1 if number > unheard else 0.01)
    rig.deliver(*deliveries, seconds=100)
    rig.commit()
    rig.run_for(1)
    assert rig.values() == [b"%d" % number for number in range(40)]


@both
def test_a_transaction_is_aborted_although_the_one_before_still_gets_its_markers(protocol):
    rig = ClusterRig(
        1,
        features={"transaction.version": protocol},
        settings=ClusterSettings(marker_delay=0.5),
        transactional_id="x",
    )
    rig.init()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.commit()
    rig.kafka.faults.add(Fault(api=PRODUCE, error=87))
    rig.begin()
    refused = rig.send("t", b"b", partition=0)
    rig.deliver(refused)
    assert isinstance(refused.exception(0), InvalidRecordError)
    rig.abort()
    rig.begin()
    rig.send("t", b"c", partition=0)
    rig.commit()
    rig.run_for(1)
    assert rig.values() == [b"a", b"c"]


@both
def test_a_newer_producer_fences_the_older_one(protocol):
    rig = ClusterRig(1, features={"transaction.version": protocol}, transactional_id="x")
    rig.init()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    for _ in range(2):  # the first call ends what is open, the second one takes over
        rig.kafka.transactions.init_producer_id("x", 60_000, None, rig.clock.now())
    rig.send("t", b"b", partition=0)
    with pytest.raises(KafkaError):
        rig.commit()
    if (
        rig.state is TxnState.ABORTABLE_ERROR
    ):  # the broker said that the epoch is old, the coordinator says why
        with pytest.raises(ProducerFencedError):
            rig.abort()
    assert rig.state is TxnState.FATAL_ERROR
    with pytest.raises(ProducerFencedError):
        rig.manager.begin()
    rig.run_for(1)
    assert rig.values() == []


def test_a_transaction_that_took_too_long_can_be_aborted_in_the_second_protocol():
    rig = ClusterRig(1, transactional_id="x", transaction_timeout_ms=1000)
    rig.init()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.run_for(30)  # the coordinator has aborted it
    rig.send("t", b"b", partition=0)
    with pytest.raises(KafkaError):
        rig.commit()
    rig.abort()
    rig.begin()
    rig.send("t", b"c", partition=0)
    rig.commit()
    assert rig.values() == [b"c"]


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


@pytest.mark.parametrize(("code", "state"), [(53, TxnState.UNINITIALIZED), (90, TxnState.FATAL_ERROR)])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_what_the_coordinator_has_confirmed_is_no_failure_when_no_new_epoch_is_given(code, state, commit):
    rig = opened(V1)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.set_protocol(V2)  # with which a new epoch is asked for at the end
    rig.script(INIT_PRODUCER_ID, code)
    (rig.commit if commit else rig.abort)()
    assert rig.state is state
    assert rig.asked(END_TXN)[-1]["committed"] is commit
    if state is TxnState.UNINITIALIZED:
        with pytest.raises(IllegalStateError):
            rig.begin()
        rig.init()
        rig.begin()
    else:
        with pytest.raises(ProducerFencedError):
            rig.begin()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_new_epoch_that_is_refused_for_now_does_not_undo_what_the_coordinator_has_confirmed(commit):
    rig = opened(V1)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.set_protocol(V2)
    rig.script(INIT_PRODUCER_ID, 120)
    (rig.commit if commit else rig.abort)()
    assert rig.state is TxnState.READY
    assert [end["committed"] for end in rig.asked(END_TXN)] == [commit]


@both
def test_a_commit_whose_answer_was_lost_is_not_to_be_aborted_because_nobody_finds_the_coordinator(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, CUT)
    rig.script(FIND_COORDINATOR, 120)
    rig.commit()
    assert rig.state is TxnState.READY
    assert [end["committed"] for end in rig.asked(END_TXN)] == [True, True]


@both
@pytest.mark.parametrize("code", [120, 30])
def test_the_abort_of_an_init_whose_answer_was_lost_does_not_end_the_next_transaction(protocol, code):
    rig = GateRig(2, protocol=protocol, transactional_id="x")
    rig.coordinator = 1
    rig.know("t", leaders=[0, 0])
    rig.acknowledge_all()
    rig.script(FIND_COORDINATOR, 0, code)
    rig.script(INIT_PRODUCER_ID, CUT)
    with pytest.raises(KafkaError):
        rig.init()
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.abort()
    rig.begin()
    delivery = rig.send("t", b"a", partition=0)
    rig.commit()
    delivery.result(0)
    assert rig.names()[-2:] == ["Produce", "EndTxn"]
    assert [end["committed"] for end in rig.asked(END_TXN)] == [True]


@both
@pytest.mark.parametrize("lost", ["the commit's answer", "the search's answer", "nothing yet"])
def test_an_abort_does_not_wait_for_the_coordinator_of_a_group(protocol, lost):
    rig = opened(protocol, reconnect_backoff_ms=0)
    last = TXN_OFFSET_COMMIT if lost == "the commit's answer" else FIND_COORDINATOR
    if lost == "the commit's answer":
        rig.script(FIND_COORDINATOR, 0)
        rig.script(TXN_OFFSET_COMMIT, CUT)
    elif lost == "the search's answer":
        rig.script(FIND_COORDINATOR, CUT)
    else:
        rig.hold(FIND_COORDINATOR)
    rig.script(FIND_COORDINATOR, *[15] * 1000)
    before = len(rig.asked(last))
    offsets = rig.offsets_ticket({("t", 0): 5})
    rig.run_until(lambda: len(rig.asked(last)) > before)
    rig.settle()
    ticket = rig.manager.abort()
    with pytest.raises(TransactionAbortedError):
        rig.finish(offsets)
    rig.release(FIND_COORDINATOR)
    rig.finish(ticket)
    assert [end["committed"] for end in rig.asked(END_TXN)] == [False]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_what_the_coordinator_has_confirmed_is_no_failure_when_the_producer_is_closed(commit):
    rig = opened(V1)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.set_protocol(V2)  # with which a new epoch is asked for at the end
    rig.hold(INIT_PRODUCER_ID)
    ticket = rig.manager.commit() if commit else rig.manager.abort()
    rig.run_until(lambda: rig.held(INIT_PRODUCER_ID))
    rig.parts.sender.force_close()
    rig.run_to_end()
    assert ticket.result is None
    with pytest.raises(KafkaError, match="was closed"):
        rig.begin()


@both
@pytest.mark.parametrize(
    ("code", "state"), [(59, TxnState.FATAL_ERROR), (120, TxnState.ABORTABLE_ERROR)], ids=["59", "120"]
)
def test_whether_a_commit_whose_answer_was_lost_may_be_aborted_is_the_coordinators_word(
    protocol, code, state
):
    """One that has forgotten the producer cannot say that the commit failed; one that asks for an abort can."""
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, CUT, code)
    with pytest.raises(BrokerError):
        rig.commit()
    assert rig.state is state


@both
def test_a_commit_that_was_refused_because_the_producer_is_forgotten_may_be_aborted(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, 59)
    with pytest.raises(BrokerError):
        rig.commit()
    rig.abort()
    assert rig.state is TxnState.READY


@both
def test_an_abort_comes_to_an_end_when_the_coordinator_has_forgotten_the_producer(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, 59)
    with pytest.raises(BrokerError):
        rig.abort()
    assert rig.state is TxnState.FATAL_ERROR


@pytest.mark.parametrize("code", [120, 90])
def test_the_error_of_a_call_does_not_keep_the_caller_alive(code):
    rig = opened()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, code)

    class Belongings:
        pass

    def caller() -> weakref.ref[Belongings]:
        belongings = Belongings()
        with pytest.raises(KafkaError):
            rig.commit()
        return weakref.ref(belongings)

    gone = caller()
    gc.collect()
    assert gone() is None
