# SPDX-License-Identifier: Apache-2.0
"""Nothing gets in that nobody would let in, wherever a thread was when it was let in: transactions, topics, Ctrl-C."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from producer.fakes_core import TOPIC, Core, encoded, run
from producer.fakes_sender import Rig
from producer.fakes_txn import GateRig

from penstock import Producer
from penstock.errors import IllegalStateError
from penstock.producer.batch._partitioner_cy import TopicState
from penstock.producer.batch._queue_cy import Admission, NotAdmitted, PartitionQueue
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.types import ProducerRecord


def test_a_queue_takes_nothing_while_records_are_not_admitted():
    core = Core()
    core.append(b"first")
    core.accumulator.admit(False)
    batch, _ = core.queue().head()
    assert core.fast(b"fast") is None
    with pytest.raises(NotAdmitted):
        core.append(b"general")
    assert batch.record_count == 1
    core.accumulator.admit(True)
    assert core.fast(b"fast") is not None
    assert batch.record_count == 2


def test_queues_that_are_made_later_look_at_the_same_admission():
    core = Core([1, 1])
    core.accumulator.admit(False)
    with pytest.raises(NotAdmitted):
        core.append(b"v", 1)
    core.accumulator.admit(True)
    core.append(b"v", 1)


def test_to_pass_the_lock_of_a_queue_is_to_come_back():
    queue = PartitionQueue("t", 0, set(), set(), Admission())
    queue.pass_lock()
    assert queue.depth() == 0


def test_a_thread_that_was_let_in_before_the_commit_does_not_append_after_it():
    """The fast path looks at the beginning, and again where it appends: opening a batch takes time in between."""
    rig = GateRig.transactional()
    rig.acknowledge_all()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    accumulator = rig.parts.accumulator
    rig.commit()
    state = accumulator.topics["t"]
    memory = rig.available_memory
    assert accumulator.appender.append_now(state, 0, (0, None, b"late", None, 200), None) is None
    with pytest.raises(IllegalStateError, match="transaction ended"):
        rig.drive(accumulator.appender.append_steps(state, 0, encoded(b"late"), None))
    assert rig.available_memory == memory
    assert not accumulator.has_incomplete()
    assert rig.state is TxnState.READY


def opened() -> GateRig:
    """A producer in a transaction."""
    rig = GateRig.transactional()
    rig.begin()
    return rig


def send_during_the_look(rig: GateRig) -> list[Any]:
    """Let records come in, by every way there is, while the manager looks whether any are on their way."""
    look = rig.manager._hooks.has_incomplete
    accepted: list[Any] = []

    def has_incomplete() -> bool:
        answer = look()
        accepted.append(rig.parts.fast_path.try_send("t", b"late", None, None, 0, None, None))
        for steps in (
            rig.steps(ProducerRecord("t", b"late", partition=0)),
            rig.parts.columns.record_steps([ProducerRecord("t", b"late", partition=0)]),
        ):
            with pytest.raises(IllegalStateError):
                accepted.append(rig.drive(steps))
        return answer

    rig.manager._hooks = rig.manager._hooks._replace(has_incomplete=has_incomplete)
    return accepted


def test_nothing_is_accepted_while_a_transaction_is_being_detached():
    rig = opened()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"v", partition=0))
    accepted = send_during_the_look(rig)
    handle = rig.manager.detach()
    assert accepted == [None]
    assert handle.record_count == 1
    assert not rig.parts.accumulator.has_incomplete()


def test_records_are_accepted_again_after_a_detach_that_was_refused():
    rig = opened()
    rig.send("t", b"v", partition=0)
    rig.await_request()
    with pytest.raises(IllegalStateError, match="records were sent"):
        rig.manager.detach()
    assert rig.fast_path_open
    rig.answer()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"v", partition=0))
    assert rig.manager.detach().record_count == 2


def test_a_record_that_met_a_closed_queue_is_accepted_when_it_opens_again():
    core = Core()
    asked: list[bool] = []

    def admitted() -> None:
        """Another thread closes the queue after the second look, and opens it again a little later."""
        asked.append(core.accumulator.admits_records())
        core.accumulator.admit(len(asked) != 2)

    run(core.accumulator.appender.append_steps(core.topic(), 0, encoded(b"v"), None, admitted))
    assert asked == [True, True, False, True, True]
    assert core.queue().head()[0].record_count == 1


def test_a_commit_that_comes_while_the_producer_closes_waits_for_the_abort(monkeypatch):
    rig = opened()
    drop = rig.manager._operation.drop_if_done
    refused: list[Exception] = []

    def commit() -> None:
        try:
            rig.manager.commit()
        except IllegalStateError as error:
            refused.append(error)

    other = threading.Thread(target=commit)

    def between_look_and_abort() -> None:
        other.start()
        other.join(0.05)  # it cannot end before the abort has begun
        drop()

    monkeypatch.setattr(rig.manager._operation, "drop_if_done", between_look_and_abort)
    rig.manager.begin_close()
    other.join(60)
    assert rig.state is TxnState.ABORTING
    assert len(refused) == 1


def test_a_topic_that_metadata_has_lost_gets_no_new_batch_on_the_fast_path():
    rig = Rig(linger_ms=1000)
    rig.know("t", partitions=6)
    accumulator = rig.parts.accumulator
    state = accumulator.topic("t", 6)
    fields = (0, None, b"v", None, 100)
    assert accumulator.appender.append_now(state, 0, fields, None) is not None
    accumulator.follow_partition_counts({}.get)
    assert accumulator.appender.append_now(state, 1, fields, None) is None
    accumulator.follow_partition_counts({"t": 3}.get)
    assert accumulator.appender.append_now(state, 1, fields, None) is not None
    assert len(state.queues) == 3


def test_records_for_a_topic_that_was_forgotten_are_placed_by_what_it_has_become():
    rig = Rig(linger_ms=0, metadata_max_idle_ms=5000, metadata_max_age_ms=4000)
    rig.know("t", partitions=6)
    rig.acknowledge_all()
    rig.send("t", b"v", key=b"k")
    rig.run_for(30)  # nobody sends to it: it is forgotten
    rig.cluster.add_topic("t", partitions=1)  # and made again meanwhile
    deliveries = [rig.send("t", b"v", key=b"k%d" % number) for number in range(20)]
    rig.run_until(lambda: all(delivery.done() for delivery in deliveries))
    assert {delivery.result(0).partition for delivery in deliveries} == {0}


@pytest.mark.parametrize("moment", ["new batch", "choice of the partition"])
def test_an_interrupt_while_a_batch_is_opened_loses_no_memory(monkeypatch, moment):
    core = Core()
    topic, partition = core.topic(), 0
    free = core.pool.available()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    if moment == "new batch":
        monkeypatch.setattr(Core, "now", property(interrupted), raising=False)  # when the batch was made
    else:
        queues, partition = topic.queues, None
        topic = TopicState(topic.name, topic.sticky_size, interrupted)
        topic.queues = queues
    buffer = core.pool.try_take(core.accumulator.batch_size)
    with pytest.raises(KeyboardInterrupt):
        core.accumulator.appender._append(topic, partition, encoded(b"v"), None, buffer)
    assert core.pool.available() == free


def test_a_producer_that_was_not_made_says_so():
    class SendsBeforeInit(Producer):
        def __init__(self) -> None:
            self.send(TOPIC, b"v")

    with pytest.raises(IllegalStateError, match="super"):
        SendsBeforeInit()
