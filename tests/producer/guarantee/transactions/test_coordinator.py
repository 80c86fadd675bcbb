# SPDX-License-Identifier: Apache-2.0
"""What is asked of a scripted coordinator, and what its answers make of protocol, state and the call that waits."""

from __future__ import annotations

import pytest
from producer.fakes_txn import (
    CUT,
    PRODUCER_ID,
    V1,
    V2,
    GateRig,
    a_transaction,
    both,
    in_flight,
    numbers,
    opened,
)

from penstock._identity import ProducerIdentity
from penstock.errors import (
    BrokerError,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from penstock.producer.guarantee.transactions.coordinator import TransactionPartitions
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
from penstock.types import TopicPartition


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


def test_after_the_last_epoch_the_end_brings_another_id():
    """Requirement 67."""
    rig = GateRig.transactional(protocol=V2)
    a_transaction(rig)
    rig.identity = ProducerIdentity(PRODUCER_ID + 9, 0)
    a_transaction(rig)
    assert a_transaction(rig) == (PRODUCER_ID + 9, 0, 0)


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
    assert rig.manager._coordinator.uses_v2


def test_an_answer_that_does_not_fit_is_fatal():
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


def test_a_request_that_cannot_be_written_does_not_hold_up_the_rest():
    rig = opened()
    with pytest.raises(KafkaError, match="TxnOffsetCommit could not be sent"):
        rig.send_offsets({("t", 0): 2**70})  # more than fits
    assert rig.state is TxnState.FATAL_ERROR
    rig.parts.io_thread.initiate_close()
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
    assert "Close this producer" in text
    assert text.count("PRODUCER_FENCED") == 1
    assert isinstance(caught.value.__cause__, BrokerError)
    assert caught.value.__cause__.code == code


def test_a_fence_that_a_partition_tells_of_says_the_same():
    rig = opened()
    request = in_flight(rig)
    rig.answer(request, error_code=90)
    with pytest.raises(
        ProducerFencedError, match=r"taken over the transactional id 'x'.*Close this producer"
    ):
        rig.manager.commit()


def test_an_old_epoch_says_how_to_find_out_why():
    rig = opened()
    request = in_flight(rig)
    rig.answer(request, error_code=47)
    with pytest.raises(InvalidProducerEpochError, match=r"call abort_transaction\(\), which tells whether"):
        rig.manager.commit()


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
    rig.parts.io_thread.force_close()
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


def test_partitions_are_asked_for_once_and_again_when_others_were_refused():
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    partitions = TransactionPartitions()
    partitions.wanted.update((first, second))
    assert partitions.take_wanted() == {first, second}
    assert partitions.take_wanted() == frozenset()
    error = KafkaError("no right to it")
    partitions.refuse({first: error}, frozenset({second}))
    assert partitions.refused == {first: error}
    assert partitions.take_wanted() == {second}
    assert not partitions.traces  # nothing was added
    partitions.add([second])
    assert (partitions.added, partitions.traces) == ({second}, 1)
    partitions.clear()
    assert (partitions.added, partitions.refused, partitions.wanted, partitions.traces) == (
        set(),
        {},
        set(),
        0,
    )
