# SPDX-License-Identifier: Apache-2.0
"""The transaction calls: in which order, and what a commit, an abort, a close and a detach do with what is open."""

from __future__ import annotations

import pytest
from producer.fakes_txn import (
    PRODUCER_ID,
    V1,
    GateRig,
    a_transaction,
    batches_of,
    both,
    in_flight,
    opened,
    uninitialized,
)

from penstock.errors import IllegalStateError, KafkaError, ProducerClosedError, TransactionAbortedError
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.transaction_handle import TransactionHandle


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
        with pytest.raises(
            IllegalStateError, match=r"^no transaction is open: .* `producer\.transaction\(\)`"
        ):
            rig.send("t", b"a")
        assert not rig.parts.accumulator.has_incomplete()
        a_transaction(rig)


def test_the_use_of_a_closed_producer_is_refused():
    rig = opened()
    rig.manager.close(ProducerClosedError("closed"))
    for call in (rig.manager.check_send, rig.manager.commit, rig.manager.abort, rig.manager.detach):
        with pytest.raises(KafkaError, match="closed"):
            call()
    assert not rig.manager.is_open  # nothing is left that a close would abort


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


@both
def test_a_close_aborts_what_is_open(protocol):
    """Requirement 76."""
    rig = opened(protocol)
    rig.acknowledge_all()
    delivery = rig.send("t", b"a", partition=0)
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    delivery.result(0)
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]


def test_a_close_aborts_what_has_failed():
    """Requirement 76."""
    rig = opened()
    in_flight(rig)
    rig.answer(error_code=29)
    assert rig.state is TxnState.ABORTABLE_ERROR
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]


def test_a_close_waits_for_a_commit_that_is_under_way():
    """Requirement 76."""
    rig = opened()
    rig.acknowledge_all()
    rig.send("t", b"a", partition=0)
    ticket = rig.manager.commit()
    rig.script(END_TXN, 51, 51)
    rig.parts.io_thread.initiate_close()
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
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    assert len(rig.asked(END_TXN)) == (1 if fatal else 2)


@both
def test_a_forced_close_aborts_nothing(protocol):
    """Requirement 76."""
    rig = opened(protocol)
    request = in_flight(rig)
    assert request
    rig.parts.io_thread.force_close()
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
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    with pytest.raises(ProducerClosedError):
        ticket.result  # noqa: B018
    assert rig.clock.now() == before


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
