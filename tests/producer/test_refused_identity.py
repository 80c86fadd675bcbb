# SPDX-License-Identifier: Apache-2.0
"""A producer whose identity is refused: who is told, when, in which words; and that it goes on afterwards."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from producer.fakes_sender import Rig
from producer.fakes_txn import GateRig, both, opened

from penstock._ticket import Ticket
from penstock.errors import (
    AuthenticationError,
    ClusterAuthorizationError,
    DeliveryTimeoutError,
    IllegalStateError,
    KafkaError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from penstock.network.transport import RefusedError
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import END_TXN, FIND_COORDINATOR, INIT_PRODUCER_ID

REFUSAL = RefusedError("the certificate has expired", "Renew it.")


def lock_out(rig: Rig) -> None:
    """Cut every connection, and let none in again."""
    rig.network.refusal = REFUSAL
    for broker in rig.brokers:
        for peer in broker.peers:
            peer.reset()


def let_in(rig: Rig) -> None:
    rig.network.refusal = None


def causes(error: BaseException | None) -> list[type[BaseException]]:
    found: list[type[BaseException]] = []
    while error is not None:
        found.append(type(error))
        error = error.__cause__
    return found


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_send_that_waits_for_metadata_is_told_at_once_and_works_when_that_is_put_right(idempotent):
    rig = GateRig(enable_idempotence=idempotent)
    rig.cluster.add_topic("t")
    rig.acknowledge_all()
    rig.network.refusal = REFUSAL
    for _ in range(3):
        start = rig.clock.now()
        with pytest.raises(AuthenticationError, match=r"the certificate has expired\. Renew it\.") as caught:
            rig.send("t", b"1")
        assert rig.clock.now() - start <= 1.3, "no longer than the wait before the next attempt"
        assert "b0:9092" in str(caught.value)
    let_in(rig)
    delivery = rig.send("t", b"2")
    rig.deliver(delivery)
    assert delivery.result().partition == 0


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_send_that_waits_for_memory_is_told_at_once_and_works_when_that_is_put_right(idempotent):
    rig = GateRig(enable_idempotence=idempotent, buffer_memory=2048, batch_size=1024)
    rig.know("t")
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"1"))
    lock_out(rig)
    deliveries = [rig.send("t", b"x" * 900) for _ in range(2)]
    for _ in range(3):
        start = rig.clock.now()
        with pytest.raises(AuthenticationError, match=r"Renew it\. buffer\.memory is full with records"):
            rig.send("t", b"x" * 900)
        assert rig.clock.now() - start <= 1.3, "no longer than the wait before the next attempt"
    let_in(rig)
    deliveries.append(rig.send("t", b"x" * 900))
    rig.deliver(*deliveries)
    assert [delivery.exception() for delivery in deliveries] == [None] * 3


@pytest.mark.parametrize("idempotent", [False, True])
def test_accepted_records_wait_and_are_written_once_when_that_is_put_right(idempotent, caplog):
    rig = GateRig(2, enable_idempotence=idempotent)
    rig.know("t", leaders=[0, 1])
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"before", partition=0))
    with caplog.at_level(logging.INFO):
        lock_out(rig)
        deliveries = [rig.send("t", str(number).encode(), partition=number % 2) for number in range(10)]
        rig.run_for(30)
        assert not any(delivery.done() for delivery in deliveries)
        logged = [record for record in caplog.records if "certificate" in record.getMessage()]
        assert 1 <= len(logged) <= 3, "once for each broker"
        let_in(rig)
        rig.deliver(*deliveries)
    assert [delivery.exception() for delivery in deliveries] == [None] * 10
    values = [
        record.value for broker in (0, 1) for batch in rig.batches(broker) for record in batch.records()
    ]
    assert sorted(values) == sorted([b"before", *(str(number).encode() for number in range(10))])


@pytest.mark.parametrize("idempotent", [False, True])
def test_records_that_time_out_because_of_it_say_so(idempotent):
    rig = GateRig(enable_idempotence=idempotent, delivery_timeout_ms=5000, request_timeout_ms=2000)
    rig.know("t")
    lock_out(rig)
    delivery = rig.send("t", b"1")
    rig.run_for(6)
    error = delivery.exception()
    assert isinstance(error, DeliveryTimeoutError)
    assert "the certificate has expired. Renew it." in str(error)
    assert AuthenticationError in causes(error)


def test_a_producer_id_that_could_not_be_asked_for_is_asked_for_again():
    """Java's producer is lost for good here."""
    rig = GateRig()
    rig.cluster.add_topic("t")
    rig.acknowledge_all()
    rig.know("t")
    lock_out(rig)
    delivery = rig.send("t", b"1")
    rig.run_for(60)
    assert not delivery.done()
    assert not rig.asked(INIT_PRODUCER_ID)
    let_in(rig)
    rig.deliver(delivery)
    assert delivery.exception() is None


def test_init_transactions_is_told_at_once_and_may_be_called_again():
    rig = GateRig(transactional_id="x", max_block_ms=60_000)
    rig.network.refusal = REFUSAL
    for _ in range(2):
        start = rig.clock.now()
        with pytest.raises(AuthenticationError, match="the certificate has expired"):
            rig.init()
        assert rig.clock.now() - start <= 1.3
        assert rig.state is TxnState.UNINITIALIZED
    let_in(rig)
    rig.init()
    rig.know("t")
    rig.acknowledge_all()
    rig.begin()
    delivery = rig.send("t", b"1")
    rig.commit()
    assert delivery.exception() is None


def told(rig: GateRig, ticket: Ticket[None]) -> str:
    """What a call that waits is told, soon; it goes on."""
    start = rig.clock.now()
    with pytest.raises(AuthenticationError, match="the certificate has expired") as caught:
        rig.finish(ticket)
    assert rig.clock.now() - start <= 2.5, "an attempt, and the wait before the next one"
    assert caught.value.broker
    return str(caught.value)


@both
def test_a_commit_is_told_at_once_and_goes_on_when_that_is_put_right(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"1", partition=0))
    lock_out(rig)
    for _ in range(3):
        text = told(rig, rig.manager.commit())
        assert "commit_transaction() continues when the cause is fixed, and its outcome is not known" in text
        assert rig.state is TxnState.COMMITTING
        for other in (rig.manager.abort, rig.manager.begin):
            with pytest.raises(IllegalStateError, match=r"outcome of commit_transaction\(\) is not known"):
                other()
    let_in(rig)
    rig.commit()
    assert rig.state is TxnState.READY
    assert [body["committed"] for body in rig.asked(END_TXN)] == [True]


@both
def test_a_commit_whose_records_wait_is_told(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    lock_out(rig)
    delivery = rig.send("t", b"1", partition=0)
    told(rig, rig.manager.commit())
    assert not delivery.done()
    let_in(rig)
    rig.commit()
    assert delivery.exception() is None
    assert [record.value for batch in rig.batches() for record in batch.records()] == [b"1"]


@both
def test_a_commit_that_is_on_its_way_when_brokers_begin_to_refuse_has_the_outcome_that_it_has(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"1", partition=0))
    rig.hold(END_TXN)
    ticket = rig.manager.commit()
    rig.run_for(1)
    assert len(rig.held(END_TXN)) == 1
    lock_out(rig)
    assert "its outcome is not known yet" in told(rig, ticket)
    rig.release(END_TXN)
    let_in(rig)
    rig.commit()
    assert rig.state is TxnState.READY
    assert [body["committed"] for body in rig.asked(END_TXN)] == [True, True]


def test_a_commit_that_has_come_through_unseen_is_a_success_when_it_is_asked_for_again():
    rig = opened()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"1", partition=0))
    lock_out(rig)
    told(rig, rig.manager.commit())
    let_in(rig)
    rig.run_for(5)
    assert rig.state is TxnState.READY
    rig.commit()
    rig.begin()


@both
def test_an_abort_is_told_at_once_and_goes_on_when_that_is_put_right(protocol):
    rig = opened(protocol)
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"1", partition=0))
    lock_out(rig)
    assert "abort_transaction() continues" in told(rig, rig.manager.abort())
    let_in(rig)
    rig.abort()
    assert [body["committed"] for body in rig.asked(END_TXN)] == [False]
    rig.begin()


@both
def test_offsets_are_told_at_once_and_may_be_sent_again_or_be_aborted(protocol):
    for ends in ("offsets", "abort"):
        rig = opened(protocol)
        lock_out(rig)
        assert "send_offsets_to_transaction() continues" in told(rig, rig.offsets_ticket({("t", 0): 5}))
        let_in(rig)
        if ends == "offsets":
            rig.send_offsets({("t", 0): 5})
            rig.commit()
        else:
            rig.abort()
        assert rig.state is TxnState.READY


def test_a_flush_is_told_at_once_and_the_records_stay():
    rig = GateRig()
    rig.know("t")
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"1"))
    lock_out(rig)
    deliveries = [rig.send("t", b"2"), rig.send("t", b"3")]
    for _ in range(2):
        start = rig.clock.now()
        flushes = [rig.parts.accumulator.flush() for _ in range(2)]
        while not all(flush.done for flush in flushes):
            rig.turn()
            assert rig.clock.now() - start <= 2.5, "an attempt, and the wait before the next one"
        for flush in flushes:
            with pytest.raises(AuthenticationError, match="2 records have no outcome yet"):
                flush.result  # noqa: B018 - raises
    assert not rig.parts.accumulator.everything_sendable(), "nobody waits any more"
    let_in(rig)
    flush = rig.parts.accumulator.flush()
    rig.deliver(*deliveries)
    assert flush.result is None
    assert [delivery.exception() for delivery in deliveries] == [None, None]


def test_a_listener_that_wants_sasl_is_told_to_a_waiting_send():
    rig = Rig()
    rig.cluster.add_topic("t")
    rig.brokers[0].rules[3] = lambda request: request.peer.close()
    start = rig.clock.now()
    with pytest.raises(AuthenticationError, match="A listener that wants SASL does that"):
        rig.send("t", b"1")
    assert rig.clock.now() - start <= 2


# ---- rights that are missing


def refused(rig: GateRig, **sent: Any) -> KafkaError | None:
    delivery = rig.send("t", b"1", **sent)
    rig.deliver(delivery)
    return delivery.exception()


def test_the_right_for_a_producer_id_is_named():
    rig = GateRig()
    rig.know("t")
    rig.script(INIT_PRODUCER_ID, 31)
    error = refused(rig)
    assert isinstance(error, ClusterAuthorizationError)
    assert "IDEMPOTENT_WRITE on the cluster" in str(error)
    rig.acknowledge_all()
    assert refused(rig) is None, "given the right, it goes on"


@pytest.mark.parametrize(
    ("code", "kind", "texts"),
    [
        (29, TopicAuthorizationError, ["t-0", "WRITE on the topic"]),
        (31, ClusterAuthorizationError, ["IDEMPOTENT_WRITE on the cluster"]),
        (53, TransactionalIdAuthorizationError, ["WRITE on the transactional id", "'x'"]),
    ],
)
def test_the_right_to_write_is_named(code, kind, texts):
    rig = GateRig.transactional()
    rig.begin()
    delivery = rig.send("t", b"1", partition=0)
    rig.await_request()
    rig.answer(error_code=code, base_offset=-1)
    rig.deliver(delivery)
    error = delivery.exception()
    assert kind in causes(error)
    for text in texts:
        assert text in str(error)


@pytest.mark.parametrize("api", [FIND_COORDINATOR, INIT_PRODUCER_ID], ids=lambda api: api.name)
def test_the_right_on_a_transactional_id_is_named(api):
    rig = GateRig(transactional_id="orders-1")
    rig.script(api, 53)
    with pytest.raises(
        TransactionalIdAuthorizationError, match="transactional id 'orders-1': the rights DESCRIBE and WRITE"
    ):
        rig.init()


def test_the_rights_on_a_topic_are_named():
    rig = Rig()
    rig.cluster.add_topic("secret", error_code=29)
    with pytest.raises(TopicAuthorizationError, match="topic 'secret': the rights DESCRIBE and WRITE"):
        rig.send("secret", b"1")
