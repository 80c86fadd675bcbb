# SPDX-License-Identifier: Apache-2.0
"""What a task may do, and under which id: no id carries two transactions that could meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sink.support import TOPIC, World, handles_of

from penstock import Producer
from penstock.errors import RestoredCheckpointError, SinkError, SinkSupersededError
from penstock.protocol.messages import INIT_PRODUCER_ID
from penstock.sink import (
    Admission,
    BatchPlan,
    Execution,
    ExecutionStamp,
    ProducerIdentity,
    Slots,
    admit,
    open_transaction,
)
from penstock.sink import task as module
from penstock.sink.identity import parse_task_id
from penstock.sink.messages import Content, Repair
from penstock.sink.settings import OnRestoredCheckpoint
from penstock.testing import Fault
from penstock.transaction_handle import TransactionHandle

KEY = "0123456789abcdef"


def plan(
    generation: int = 1, number: int = 1, last: int | None = None, restored: OnRestoredCheckpoint = "fail"
) -> BatchPlan:
    stamp = ExecutionStamp(KEY, Execution(generation, number), ProducerIdentity("c", 1, 0, 5))
    return BatchPlan(stamp, {} if last is None else {"q": last}, 900_000, restored, None)


@pytest.mark.parametrize(
    ("last", "batch", "wanted"),
    [(None, 0, Admission.WRITE), (4, 5, Admission.WRITE), (5, 5, Admission.SKIP), (5, 9, Admission.WRITE)],
)
def test_a_batch_is_written_unless_it_was_decided(last: int | None, batch: int, wanted: Admission) -> None:
    assert admit(plan(last=last), "q", batch, Slots()) is wanted
    assert admit(plan(last=last), "another query", batch, Slots()) is Admission.WRITE


def test_a_restored_checkpoint_is_refused_or_rewritten() -> None:
    with pytest.raises(RestoredCheckpointError, match=r"batch 3 .* older than batch 5.*onRestoredCheckpoint"):
        admit(plan(last=5), "q", 3, Slots())
    assert admit(plan(last=5, restored="rewrite"), "q", 3, Slots()) is Admission.WRITE
    assert (
        admit(plan(last=5, restored="rewrite"), "q", 5, Slots()) is Admission.SKIP
    )  # there is nothing to compare
    compared = replace(plan(last=5, restored="rewrite"), compared=frozenset({"q"}))
    assert admit(compared, "q", 5, Slots()) is Admission.COMPARE
    assert admit(replace(compared, on_restored_checkpoint="fail"), "q", 5, Slots()) is Admission.SKIP


@pytest.mark.parametrize(("before", "now"), [("orders", "copies"), ("orders", None), (None, "orders")])
def test_a_batch_that_was_decided_for_another_topic_is_neither_skipped_nor_repaired(
    before: str | None, now: str | None
) -> None:
    elsewhere = replace(plan(last=5), topics={"q": before}, topic=now)
    with pytest.raises(RestoredCheckpointError):
        admit(elsewhere, "q", 5, Slots())
    assert admit(elsewhere, "q", 6, Slots()) is Admission.WRITE
    assert admit(replace(elsewhere, topic=before), "q", 5, Slots()) is Admission.SKIP
    assert admit(replace(elsewhere, topics={"p": before}), "q", 5, Slots()) is Admission.SKIP  # not known
    rewriting = replace(elsewhere, on_restored_checkpoint="rewrite")
    assert admit(rewriting, "q", 5, Slots()) is Admission.COMPARE
    repairing = replace(rewriting, repair=Repair("q", 5, {0: Content(1)}))
    with pytest.raises(RestoredCheckpointError):
        admit(repairing, "q", 5, Slots(), task=0)
    assert admit(replace(repairing, topic=before), "q", 5, Slots(), task=0) is Admission.REPAIR


def test_a_query_that_may_have_been_forgotten_is_refused_unless_it_begins() -> None:
    after = replace(plan(last=5), forgotten=1)
    assert admit(after, "another query", 0, Slots()) is Admission.WRITE
    assert admit(after, "q", 6, Slots()) is Admission.WRITE
    with pytest.raises(
        RestoredCheckpointError, match=r"batch 1 of query another query .* not known any more"
    ):
        admit(after, "another query", 1, Slots())
    rewriting = replace(after, on_restored_checkpoint="rewrite")
    assert admit(rewriting, "another query", 1, Slots()) is Admission.WRITE


def test_an_older_execution_is_refused() -> None:
    slots = Slots()
    admit(plan(1, 2), "q", 0, slots)
    admit(plan(1, 2), "q", 0, slots)
    with pytest.raises(SinkSupersededError, match=r"execution 1\.1 .* 1\.2"):
        admit(plan(1, 1), "q", 0, slots)
    admit(plan(2, 1), "q", 0, slots)
    with pytest.raises(SinkSupersededError):
        slots.take(plan(1, 3))


def test_a_slot_is_used_again_only_by_a_later_execution() -> None:
    slots = Slots()
    first = slots.take(plan(1, 1))
    slots.give_back(first, plan(1, 1))
    second = slots.take(plan(1, 1))
    assert second != first
    assert slots.take(plan(1, 2)) == first
    slots.give_back(second, plan(1, 1))  # late
    assert slots.take(plan(1, 2)) == second
    assert slots.take(plan(1, 2)) not in (first, second)


def test_what_was_not_given_back_is_never_used_again() -> None:
    slots = Slots()
    kept = slots.take(plan(1, 1))
    assert kept not in [slots.take(plan(1, number)) for number in range(1, 20)]


def test_a_new_generation_has_ids_of_its_own() -> None:
    slots = Slots()
    old = slots.take(plan(1, 1))
    slots.give_back(old, plan(1, 1))
    new = slots.take(plan(2, 1))
    slots.give_back(old, plan(1, 1))
    parts = parse_task_id(new)
    assert parts is not None
    assert (parts.sink_key, parts.generation) == (KEY, 2)
    assert slots.take(plan(2, 2)) != old


def test_sinks_do_not_share_slots() -> None:
    slots = Slots()
    slots.note(plan(9, 9))
    other = ExecutionStamp("f" * 16, Execution(1, 1), ProducerIdentity("c", 1, 0, 5))
    assert slots.take(BatchPlan(other, {}, 1, "fail", None)).startswith("ps.ffffffffffffffff.1.")


def test_clusters_do_not_share_slots() -> None:
    slots = Slots()
    slots.note(replace(plan(9, 9), cluster="a"))
    slots.note(replace(plan(1, 1), cluster="b"))
    with pytest.raises(SinkSupersededError):
        slots.note(replace(plan(1, 1), cluster="a"))


def test_no_id_is_given_out_twice_however_the_cluster_is_named() -> None:
    slots = Slots()
    one, other = replace(plan(), cluster="a:9092"), replace(plan(), cluster="a:9092,b:9092")
    given = [slots.take(each) for each in (one, other, one, other)]
    slots.give_back(given[0], one)
    later = replace(plan(1, 2), cluster="a:9092,b:9092")
    assert len({*given, slots.take(later)}) == 5


def test_what_is_remembered_of_sinks_is_bounded_and_no_id_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SINKS", 2)
    slots = Slots()
    given = []
    for digit in "abcab":
        stamp = ExecutionStamp(digit * 16, Execution(1, 1), ProducerIdentity("c", 1, 0, 5))
        given.append(slots.take(replace(plan(), stamp=stamp)))
    assert len(set(given)) == 5
    assert len(slots._sinks) == 2


def test_a_fork_makes_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots()
    parent = parse_task_id(slots.take(plan()))
    monkeypatch.setattr(module.os, "getpid", lambda: -7)
    child = parse_task_id(slots.take(plan()))
    assert parent is not None
    assert child is not None
    assert parent.worker != child.worker
    slots.give_back(str(parent), plan())  # is ignored
    assert slots.take(plan(1, 2)) == str(child._replace(slot=1))


def test_every_transaction_has_an_initialisation_of_its_own(world: World) -> None:
    driver = world.driver()
    seen = set()
    for number in range(4):
        plan_now = driver.prepare()
        message = driver.task(plan_now, number, 0, ["x"])
        handle = handles_of([message])[0].transaction
        seen.add((handle.transactional_id, handle.producer_id, handle.producer_epoch))
        driver.commit([message], number)
    assert len(seen) == 4
    assert len({name for name, _, _ in seen}) == 1  # and yet one slot is enough


def test_an_initialisation_without_an_answer_burns_the_id(world: World) -> None:
    driver = world.driver()
    plan_now = driver.prepare()
    world.kafka.add_fault(Fault(api=INIT_PRODUCER_ID, cut="after"))
    with driver.producer(plan_now) as producer:
        name = open_transaction(producer, plan_now, world.workers)
        with world.kafka.locked() as cluster:
            asked = [r.body["transactional_id"] for r in cluster.received if r.api is INIT_PRODUCER_ID][-3:]
        assert asked[0] == asked[1] != asked[2] == name  # lost, repeated by the producer, and given up
        assert not producer.initialization_in_doubt
        producer.send(TOPIC, b"x", partition=0)
        producer.flush()
        assert producer.detach_transaction().transactional_id == name


def test_a_coordinator_that_never_answers_at_once_is_given_up() -> None:
    producer = _Doubtful()
    with pytest.raises(SinkError, match="10 times"):
        open_transaction(producer, plan(), Slots())
    assert len(set(producer.tried)) == 10


class _Doubtful:
    """A producer whose initialisation always needs a second request."""

    initialization_in_doubt = True

    def __init__(self) -> None:
        self.tried: list[str | None] = []

    def init_transactions(self, transactional_id: str | None = None) -> None:
        self.tried.append(transactional_id)

    def begin_transaction(self) -> None:
        pass

    def detach_transaction(self) -> TransactionHandle:
        return TransactionHandle(
            transactional_id="x", producer_id=1, producer_epoch=0, end_txn_version=5, timeout_ms=1, empty=True
        )


def test_a_real_producer_is_what_is_wanted() -> None:
    assert isinstance(Producer.initialization_in_doubt, property)
