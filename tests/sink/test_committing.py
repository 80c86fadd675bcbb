# SPDX-License-Identifier: Apache-2.0
"""After a batch: what is decided, what is not, and what a reader of committed records sees."""

from __future__ import annotations

import pytest
from sink.support import QUERY, TOPIC, Crash, Driver, World, abort_from_elsewhere, handles_of, open_task

from penstock.errors import (
    DecidedDataLostError,
    DecisionInDoubtError,
    DecisionRefusedError,
    KafkaError,
    SinkError,
    SinkSupersededError,
)
from penstock.protocol.messages import END_TXN
from penstock.sink import BATCH_QUERY_ID, BatchPlan, Message, Slots, Step, inspect_sinks
from penstock.sink.committing import commit_steps
from penstock.sink.effects import (
    AppendFacts,
    AppendInTransaction,
    Describe,
    EndAll,
    EndTransaction,
    FindTopicIds,
    ListOngoing,
    Reached,
)
from penstock.sink.identity import coordinator_id
from penstock.sink.log import records as log_records
from penstock.testing import Fault


def two_tasks(driver: Driver, batch_id: int = 0) -> tuple[BatchPlan, list[Message | None]]:
    plan = driver.prepare()
    return plan, [driver.task(plan, batch_id, number, [f"{batch_id}.{number}"]) for number in range(2)]


def test_a_batch_becomes_visible_and_is_reported(world: World) -> None:
    report = world.driver().batch(0, {0: ["a", "b"], 1: ["c"]})
    assert (report.decided, report.skipped, report.handles, report.rows) == (True, False, 2, 3)
    assert [tuple(count) for count in report.counts] == [(TOPIC, 0, 2), (TOPIC, 1, 1)]
    assert world.visible() == ["a", "b", "c"]
    assert world.ongoing() == []


def test_the_order_is_decision_description_commit_ends_done(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    driver.seen.clear()
    driver.commit(messages, 0)
    kinds = (AppendInTransaction, Describe, EndTransaction, EndAll, AppendFacts, Reached)
    seen = [effect for effect in driver.seen if isinstance(effect, kinds)]
    names = [effect.step.name if isinstance(effect, Reached) else type(effect).__name__ for effect in seen]
    assert names == [
        "Describe",
        "AppendInTransaction",
        "AppendInTransaction",
        "Describe",
        "BEFORE_DECISION",
        "EndTransaction",
        "AFTER_DECISION",
        "EndAll",
        "AFTER_ALL_ENDS",
        "AppendFacts",
        "AFTER_DONE",
    ]


def test_topics_are_the_last_thing_that_is_asked_for_before_the_decision(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    driver.seen.clear()
    with pytest.raises(DecisionRefusedError, match=r"topic 'orders' was deleted and created again"):
        driver.run(commit_steps(driver.settings, messages, 0, {TOPIC: frozenset((b"of another topic",))}))
    question = driver.seen.index(FindTopicIds((TOPIC,)))
    assert [type(effect) for effect in driver.seen[question - 1 :]] == [
        Describe,
        FindTopicIds,
        EndTransaction,
        EndAll,
    ]
    assert world.ongoing() == []
    assert world.visible() == []


def test_left_overs_are_looked_for_before_the_decision_has_begun(world: World) -> None:
    """From its first record on the decision has thirty seconds, and a broker that is down would use them up."""
    driver = world.driver()
    _, messages = two_tasks(driver)
    driver.seen.clear()
    driver.commit(messages, 0)
    kinds = [type(effect) for effect in driver.seen if isinstance(effect, ListOngoing | AppendInTransaction)]
    assert ListOngoing not in kinds[kinds.index(AppendInTransaction) :]


def test_no_rows_no_decision(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    driver.seen.clear()
    assert not driver.commit([driver.task(plan, 0, 0, []), driver.task(plan, 0, 1, [])], 0).decided
    assert not driver.commit([], 0).decided
    assert driver.seen == []


def test_the_same_batch_again_is_skipped(world: World) -> None:
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    report = driver.batch(0, {0: ["a"], 1: []})
    assert (report.decided, report.skipped) == (False, True)
    assert world.visible() == ["a"]


def test_commit_may_be_called_again(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    driver.commit(messages, 0)
    assert not driver.commit(messages, 0).decided
    assert world.visible() == ["0.0", "0.1"]


@pytest.mark.parametrize("kind", [AppendInTransaction, Describe, EndTransaction, EndAll, AppendFacts])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_may_die_anywhere_and_the_batch_is_there_once(world: World, kind: type, when: str) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    with pytest.raises(Crash):
        driver.commit(messages, 0, **{when: kind})
    world.driver().batch(0, {0: ["0.0"], 1: ["0.1"]})
    assert world.visible() == ["0.0", "0.1"]
    assert world.ongoing() == []


def test_a_repeated_commit_never_uses_the_identity_twice(world: World) -> None:
    """In the older protocol the epoch would be the same, and the second decision merge with the first."""
    driver = world.driver()
    _, messages = two_tasks(driver)
    with pytest.raises(Crash):
        driver.commit(messages, 0, before=EndTransaction)
    with pytest.raises(DecisionInDoubtError, match="Ongoing"):
        driver.commit(messages, 0)
    assert world.visible() == []
    world.driver().batch(0, {0: ["0.0"], 1: ["0.1"]})
    assert world.visible() == ["0.0", "0.1"]


@pytest.mark.parametrize("stop", [{}, {"before": AppendFacts}], ids=["done", "not done"])
@pytest.mark.parametrize(("batch_id", "rows"), [(1, ["x", "y"]), (0, ["x"])])
def test_a_decision_of_another_batch_never_passes_for_ones_own(
    world: World, stop: dict[str, type], batch_id: int, rows: list[str]
) -> None:
    driver = world.driver()
    plan = driver.prepare()
    first = driver.task(plan, 0, 0, ["a", "b"])
    if stop:
        with pytest.raises(Crash):
            driver.commit([first], 0, **stop)
    else:
        driver.commit([first], 0)
    other = driver.task(plan, batch_id, 1, rows)
    with pytest.raises(SinkError, match="decision of other transactions"):
        driver.commit([other], batch_id)
    driver.prepare()
    assert world.visible() == ["a", "b"]


# ---- handles that are dead, or too old


def test_a_dead_handle_means_no_decision_and_the_others_are_aborted(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    abort_from_elsewhere(world, messages[1])  # type: ignore[arg-type]
    with pytest.raises(DecisionRefusedError, match=r"task 1 .* is not open any more"):
        driver.commit(messages, 0)
    assert world.visible() == []
    assert world.ongoing() == []
    driver.batch(0, {0: ["0.0"], 1: ["0.1"]})
    assert world.visible() == ["0.0", "0.1"]


def test_a_handle_that_timed_out_means_no_decision(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    name = handles_of(messages)[0].transaction.transactional_id
    with world.kafka.locked() as cluster:
        cluster.fence(name, 0.0)
    with pytest.raises(DecisionRefusedError, match="task 0"):
        driver.commit(messages, 0)
    assert world.visible() == []


@pytest.mark.parametrize(("age_ms", "decided"), [(555_000, True), (561_000, False)])
def test_a_handle_must_outlive_the_decision_by_the_recovery_time(
    world: World, age_ms: int, decided: bool
) -> None:
    """Of 900 s, 300 s are for recovery, 30 s for the decision and 10 s for the coordinator's look at the clock."""
    driver = world.driver()
    _, messages = two_tasks(driver)
    with world.kafka.locked() as cluster:
        txn = cluster.transactions.find(handles_of(messages)[1].transaction.transactional_id)
        assert txn is not None
        txn.started_ms -= age_ms
    if decided:
        driver.commit(messages, 0)
        assert world.visible() == ["0.0", "0.1"]
        return
    with pytest.raises(DecisionRefusedError, match=r"task 1 .*340000 ms are needed.*recoveryTime"):
        driver.commit(messages, 0)
    assert world.visible() == []
    assert world.ongoing() == []


def test_a_decision_that_was_lost_to_its_time_out_is_not_made_late(world: World) -> None:
    """The driver stalls between its last look and the commit of the decision."""
    driver = world.driver()
    _, messages = two_tasks(driver)

    def stall(effect: object) -> None:
        if isinstance(effect, Reached) and effect.step is Step.BEFORE_DECISION:
            with world.kafka.locked() as cluster:
                cluster.fence(coordinator_id(driver.settings.sink_key), 0.0)

    driver.before = stall
    with pytest.raises(DecisionInDoubtError, match="not known"):
        driver.commit(messages, 0)
    assert world.visible() == []
    world.driver().batch(0, {0: ["0.0"], 1: ["0.1"]})
    assert world.visible() == ["0.0", "0.1"]


def test_an_answer_that_was_lost_after_the_decision_leaves_the_handles_alone(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)

    def take_over(effect: object) -> None:
        # The decision is committed, the answer is lost, and another driver has come before it is asked again.
        if isinstance(effect, EndTransaction):
            driver.before = lambda _: None
            driver.run(_perform(effect))
            with world.kafka.locked() as cluster:
                cluster.fence(effect.identity.transactional_id, 0.0)

    driver.before = take_over
    with pytest.raises(DecisionInDoubtError):
        driver.commit(messages, 0)
    assert driver.abort(messages, 0) is False
    assert len(world.ongoing()) == 2
    world.driver().prepare()
    assert world.visible() == ["0.0", "0.1"]


def _perform(effect: EndTransaction):  # type: ignore[no-untyped-def]
    yield effect


def test_data_that_is_lost_after_the_decision_is_told_with_its_partitions(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)

    def lose(effect: object) -> None:
        if isinstance(effect, EndAll):
            abort_from_elsewhere(world, messages[0])  # type: ignore[arg-type]

    driver.before = lose
    with pytest.raises(DecidedDataLostError) as caught:
        driver.commit(messages, 0)
    assert caught.value.partitions == ((TOPIC, 0, 1),)
    assert world.visible() == ["0.1"]


def test_passing_trouble_with_the_coordinator_is_waited_out(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    for code in (14, 16, 51):
        world.kafka.add_fault(Fault(api=END_TXN, error=code))
    driver.commit(messages, 0)
    assert world.visible() == ["0.0", "0.1"]


# ---- what belongs together


def test_messages_of_different_executions_are_refused(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    first = driver.task(plan, 0, 0, ["a"])
    second = driver.task(driver.prepare(), 0, 1, ["b"])
    with pytest.raises(SinkError, match="different executions"):
        driver.commit([first, second], 0)
    with pytest.raises(SinkError, match="batch 7"):
        driver.commit([second], 7)
    with pytest.raises(SinkError, match="sink key"):
        world.driver(sink_id="other").commit([second], 0)


def test_a_batch_that_rewrites_may_follow_a_restored_checkpoint(world: World) -> None:
    driver = world.driver(on_restored_checkpoint="rewrite")
    for number in range(3):
        driver.batch(number, {0: [str(number)]})
    driver.batch(1, {0: ["1"]})
    assert world.visible() == ["0", "1", "1", "2"]
    assert driver.prepare().last_decided == {QUERY: 1}
    driver.batch(2, {0: ["2"]})
    assert world.visible() == ["0", "1", "1", "2", "2"]


def test_only_the_latest_queries_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "MAX_QUERIES", 16)
    driver = world.driver()
    for number in range(18):
        driver.batch(0, {0: ["x"]}, query_id=f"q{number}")
    driver.batch(1, {0: ["x"]}, query_id="q5")
    assert list(driver.prepare().last_decided) == [f"q{n}" for n in (*range(2, 5), *range(6, 18))] + ["q5"]


# ---- batch jobs


def test_a_run_is_written_once_and_another_one_again(world: World) -> None:
    job = {"sink_id": "batch", "run_id": "a"}
    for _ in range(2):
        world.driver(**job).batch(0, {0: ["x"]}, BATCH_QUERY_ID)
    world.driver(**(job | {"run_id": "b"})).batch(0, {0: ["x"]}, BATCH_QUERY_ID)
    assert world.visible() == ["x", "x"]


def test_what_speculation_left_open_does_not_hold_up_the_readers_of_a_batch_job(world: World) -> None:
    driver = world.driver(sink_id="batch", run_id="a")
    plan = driver.prepare()
    loser = open_task(driver, plan, 0, "loser", Slots())
    driver.commit([driver.task(plan, 0, 0, ["winner"], BATCH_QUERY_ID)], 0)
    assert world.ongoing() == []
    assert world.visible() == ["winner"]
    loser.send(TOPIC, b"goes on", partition=0)
    with pytest.raises(KafkaError):
        loser.commit_transaction()  # it is shut out, in either protocol
    assert world.visible() == ["winner"]
    loser.close(0)


def test_what_lost_attempts_left_open_does_not_hold_up_the_readers_of_a_stream(world: World) -> None:
    """In the older protocol it is left to the next batch: an abort would not shut out a loser that goes on."""
    driver = world.driver()
    plan = driver.prepare()
    loser = open_task(driver, plan, 0, "loser", Slots())
    driver.commit([driver.task(plan, 0, 0, ["winner"])], 0)
    newer = plan.stamp.coordinator.joins_by_writing
    assert (world.ongoing() == []) == newer
    world.now = 61.0
    driver.prepare()
    assert world.ongoing() == []
    assert world.visible() == ["winner"]
    loser.close(0)


def test_a_commit_that_stalls_before_it_cleans_up_hits_nothing_of_the_next_batch(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    loser = open_task(driver, plan, 0, "loser", Slots())
    message = driver.task(plan, 0, 0, ["a"])
    following: list[Message | None] = []

    def go_on_elsewhere(effect: object) -> None:
        if isinstance(effect, Reached) and effect.step is Step.AFTER_DONE:
            driver.before = lambda _: None
            following.append(driver.task(driver.prepare(), 1, 1, ["b"]))

    driver.before = go_on_elsewhere
    driver.commit([message], 0)
    assert driver.commit(following, 1).decided
    world.now = 61.0
    driver.prepare()
    assert world.visible() == ["a", "b"]
    loser.close(0)


def test_a_batch_job_that_is_done_leaves_a_newer_run_of_it_alone(world: World) -> None:
    driver = world.driver(sink_id="batch", run_id="a")
    plan = driver.prepare()
    message = driver.task(plan, 0, 0, ["a"], BATCH_QUERY_ID)
    newer = []

    def take_over(effect: object) -> None:
        if isinstance(effect, ListOngoing):
            driver.before = lambda _: None
            other = world.driver(sink_id="batch", run_id="a", on_restored_checkpoint="rewrite")
            newer.append(open_task(other, other.prepare(), 1, "newer", Slots()))

    driver.before = take_over
    driver.commit([message], 0)
    assert len(world.ongoing()) == 1
    newer[0].close(0)


def test_a_one_off_run_leaves_nothing_in_the_log(world: World) -> None:
    driver = world.driver(sink_id="batch", run_id="random", one_off=True)
    driver.batch(0, {0: ["a"]}, BATCH_QUERY_ID)
    assert world.visible() == ["a"]
    assert inspect_sinks(world.config) == []


def test_a_decision_of_many_handles_is_cut_into_records_that_brokers_take(world: World) -> None:
    driver = world.driver()
    plan, messages = two_tasks(driver)
    del plan
    (first, second) = messages
    assert first is not None
    # Of one and the same transaction, which the log does not care about.
    many = [first] * 2100
    driver.seen.clear()
    driver.commit([*many, second], 0)
    chunks = [effect for effect in driver.seen if isinstance(effect, AppendInTransaction)]
    assert len(chunks) == 3
    assert all(len(record.value or b"") <= 512 * 1024 for effect in chunks for record in effect.records)
    assert world.visible() == ["0.0", "0.1"]
    following = world.driver()
    assert following.prepare().last_decided == {QUERY: 0}


def test_a_zombie_of_an_earlier_execution_is_never_visible(world: World) -> None:
    driver = world.driver()
    zombie = open_task(driver, driver.prepare(), 0, "zombie", Slots())
    driver.batch(0, {0: ["a"]})
    assert world.visible() == ["a"]
    zombie.close(0)


def test_a_superseded_commit_says_so(world: World) -> None:
    driver = world.driver()
    _, messages = two_tasks(driver)
    driver.replaced().prepare()
    with pytest.raises(SinkSupersededError, match="taken away by a later batch"):
        driver.commit(messages, 0)
    world.driver().prepare()
    with pytest.raises(SinkSupersededError, match="taken the sink over"):
        driver.commit(messages, 0)
