# SPDX-License-Identifier: Apache-2.0
"""One call at a time: alone, and with a time-out, an abort or an error in between."""

from __future__ import annotations

import gc
import weakref

import pytest
from producer.fakes_txn import V1, a_transaction, both, in_flight, opened, uninitialized

from penstock._locks import new_nesting_lock
from penstock._ticket import Ticket
from penstock.errors import IllegalStateError, InvalidRecordError, KafkaError, TransactionAbortedError
from penstock.producer.guarantee.transactions.operation import Operation
from penstock.protocol.messages import ADD_OFFSETS_TO_TXN, END_TXN, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT

# ------------------------------------------------------------------------------------------------- alone


@pytest.fixture
def operation() -> Operation:
    return Operation(new_nesting_lock())


def test_without_a_call_nothing_is_told(operation):
    operation.succeed()
    operation.fail(KafkaError("no"))
    operation.tell(KafkaError("no"))
    operation.complete_tickets()
    assert not operation.pending
    assert operation.name is None
    assert operation.same("commit_transaction") is None


def test_the_same_call_waits_for_the_same_ticket(operation):
    ticket = operation.start("init_transactions", "x")
    assert operation.same("init_transactions", "x") is ticket
    for name, about in (("init_transactions", "y"), ("commit_transaction", None)):
        with pytest.raises(IllegalStateError, match=r"outcome of init_transactions\(\) is not known"):
            operation.same(name, about)
    with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) is not possible"):
        operation.check_none("begin_transaction")


def test_a_ticket_is_completed_once_the_lock_is_free(operation):
    ticket = operation.start("commit_transaction")
    operation.succeed()
    assert operation.pending
    operation.complete_tickets()
    assert ticket.done
    assert not operation.pending
    assert operation.name == "commit_transaction"  # until the caller has seen it


def test_who_waits_is_told_of_a_trouble_and_the_call_goes_on(operation):
    first = operation.start("commit_transaction")
    operation.tell(KafkaError("locked out"))
    operation.complete_tickets()
    with pytest.raises(KafkaError, match="locked out"):
        first.result  # noqa: B018 - raises
    operation.fetched(first)
    assert operation.pending
    second = operation.same("commit_transaction")
    assert second is not first
    assert not second.done
    operation.succeed()
    operation.complete_tickets()
    assert second.result is None
    operation.fetched(second)
    assert operation.name is None


@pytest.mark.parametrize("trouble_first", [True, False])
def test_a_trouble_that_comes_with_the_outcome_does_not_hide_it(operation, trouble_first):
    first = operation.start("commit_transaction")
    if trouble_first:
        operation.tell(KafkaError("locked out"))
    operation.succeed()
    operation.tell(KafkaError("locked out"))
    operation.complete_tickets()
    ticket = operation.same("commit_transaction")
    assert (ticket is first) is not trouble_first
    assert ticket.result is None


def test_the_next_call_may_start_when_the_outcome_was_fetched(operation):
    ticket = operation.start("commit_transaction")
    operation.fetched(Ticket("another"))
    assert operation.name == "commit_transaction"
    operation.drop_if_done()
    assert operation.name == "commit_transaction"
    operation.succeed()
    operation.complete_tickets()
    operation.fetched(ticket)
    operation.check_none("begin_transaction")


def test_a_caller_gets_an_error_of_its_own(operation):
    error = KafkaError("refused")
    ticket = operation.start("commit_transaction")
    operation.fail(error)
    operation.drop()  # it is told nevertheless
    operation.complete_tickets()
    with pytest.raises(KafkaError, match="refused") as caught:
        ticket.result  # noqa: B018
    assert caught.value is not error


# ------------------------------------------------------------------------------------------- in a producer


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


@pytest.mark.parametrize("code", [120, 90])
def test_the_error_of_a_call_does_not_keep_the_caller_alive(code):
    rig = opened()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.script(END_TXN, code)

    class CallersObject:
        pass

    def caller() -> weakref.ref[CallersObject]:
        kept = CallersObject()
        with pytest.raises(KafkaError):
            rig.commit()
        return weakref.ref(kept)

    gone = caller()
    gc.collect()
    assert gone() is None
