# SPDX-License-Identifier: Apache-2.0
"""Before a batch: who may write, what is finished first, and what the tasks are told."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from sink.support import (
    QUERY,
    TOPIC,
    Crash,
    Driver,
    World,
    abort_from_elsewhere,
    handles_of,
    open_by_hand,
    open_task,
)

from penstock.control import complete_transaction
from penstock.control.topics import describe_topic
from penstock.errors import (
    ConfigError,
    DecidedDataLostError,
    KafkaError,
    RunIdReusedError,
    SinkAuthorizationError,
    SinkError,
    SinkLogLostError,
    SinkSupersededError,
)
from penstock.protocol.messages import INIT_PRODUCER_ID, LIST_TRANSACTIONS
from penstock.sink import Admission, Message, Slots, admit, preparing
from penstock.sink.effects import (
    AppendFacts,
    AppendInTransaction,
    EndAll,
    EndTransaction,
    FenceAll,
    InitProducer,
    ListOngoing,
    Pause,
    ReadLog,
)
from penstock.sink.identity import coordinator_id, parse_task_id
from penstock.testing import FakeKafka
from penstock.testing.settings import ClusterSettings


def changes(driver: Driver) -> list[object]:
    """The effects of a driver that change something at the brokers."""
    kinds = (InitProducer, AppendInTransaction, EndTransaction, AppendFacts, EndAll, FenceAll)
    return [effect for effect in driver.seen if isinstance(effect, kinds)]


# ---- the plan


def test_a_plan_is_small_and_can_be_pickled(world: World) -> None:
    plan = world.driver().prepare()
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert len(pickle.dumps(plan)) < 1500
    assert plan.execution == (1, plan.stamp.coordinator.epoch)
    assert plan.transaction_timeout_ms == 900_000


def test_executions_are_numbered_whichever_process_of_a_driver_plans(world: World) -> None:
    """As in an application with two queries: the planner processes of one JVM do not take the sink from each other."""
    driver = world.driver()
    planners = [driver, driver.replaced(), driver.replaced()]
    executions = [planners[number % 3].prepare().execution for number in range(9)]
    assert [execution.generation for execution in executions] == [1] * 9
    assert executions == sorted(set(executions))


def test_a_process_that_dies_between_plan_and_commit_takes_no_number_with_it(world: World) -> None:
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    lost = driver.replaced()
    dead = lost.prepare()
    lost.task(dead, 1, 0, ["never seen"])
    other = driver.replaced()
    plan = other.prepare()
    assert plan.execution > dead.execution
    assert world.ongoing() == []  # the execution before was not decided, no matter which process planned it
    other.commit([other.task(plan, 1, 0, ["b"])], 1)
    assert world.visible() == ["a", "b"]


def test_ids_grow_with_drivers_and_not_with_batches(world: World) -> None:
    driver = world.driver()
    planners = [driver, driver.replaced()]
    for number in range(6):
        planners[number % 2].batch(number, {0: [str(number)], 1: [str(number)]})
    with world.kafka.locked() as cluster:
        tasks = {txn.transactional_id for txn in cluster.transactions if parse_task_id(txn.transactional_id)}
    assert len(tasks) == 2
    assert world.driver().prepare().execution.generation == 2


def test_a_generation_begins_when_the_epochs_of_the_coordinators_id_are_used_up(world: World) -> None:
    driver = world.driver()
    first = driver.prepare().execution
    own = coordinator_id(driver.settings.sink_key)
    with world.kafka.locked() as cluster:
        txn = cluster.transactions.find(own)
        assert txn is not None
        txn.epoch = 32_766
    plans = [driver.prepare(), driver.replaced().prepare()]
    assert [plan.execution.generation for plan in plans] == [2, 2]
    assert first < plans[0].execution < plans[1].execution
    assert plans[0].stamp.coordinator.producer_id == plans[1].stamp.coordinator.producer_id
    driver.batch(0, {0: ["a"]})
    assert world.visible() == ["a"]


def test_a_planner_that_was_overtaken_by_another_of_its_driver_cleans_up_nothing(world: World) -> None:
    """What is open then may be of the batch that the other one has planned."""
    slow = world.driver()
    slow.task(slow.prepare(), 0, 0, ["failed"])
    quick = slow.replaced()
    messages: list[Message | None] = []

    def overtake(effect: object) -> None:
        if isinstance(effect, ListOngoing):
            slow.before = lambda _: None
            plan = quick.prepare()
            messages.append(quick.task(plan, 0, 0, ["a"]))

    slow.before = overtake
    slow.prepare()
    quick.commit(messages, 0)
    assert world.visible() == ["a"]


@pytest.fixture(params=["3.0", "3.7"])
def older(request: pytest.FixtureRequest) -> Iterator[World]:
    """Three brokers that take, or do not take, what is written to a transaction that was aborted."""
    with FakeKafka(brokers=3, topics={TOPIC: 2}, release=request.param) as kafka:
        yield World(kafka)


def test_what_a_task_writes_after_it_was_cleaned_up_behind_never_stays_open(older: World) -> None:
    """Before Kafka 3.6 brokers take it after a mere abort, and readers would wait for it for ever."""
    driver = older.driver()
    driver.batch(0, {0: ["a"]})
    zombie = open_task(driver, driver.prepare(), 0, "failed", Slots())
    driver.batch(1, {1: ["b"]})
    refused = zombie.send(TOPIC, b"late", partition=0)
    with pytest.raises(KafkaError):
        refused.result(60)
    zombie.close(0)
    driver.batch(2, {0: ["c"]})
    assert older.visible() == ["a", "b", "c"]
    assert older.ongoing() == []


def test_generations_grow_with_what_is_left_open_and_only_before_kafka_3_6(older: World) -> None:
    driver = older.driver()
    driver.prepare()
    driver.prepare()  # without a decision in between: nothing was written
    zombie = open_task(driver, driver.prepare(), 0, "failed", Slots())
    following = [driver.prepare().execution for _ in range(3)]
    zombie.close(0)
    verifies = older.kafka.cluster.release.verifies_transactions
    assert [execution.generation for execution in following] == [1 if verifies else 2] * 3
    assert following == sorted(set(following))
    assert older.driver().prepare().execution.generation == (2 if verifies else 3)


def test_old_brokers_do_not_let_a_planner_that_was_overtaken_begin_a_generation(older: World) -> None:
    slow = older.driver()
    slow.task(slow.prepare(), 0, 0, ["failed"])
    quick = slow.replaced()
    messages: list[Message | None] = []

    def overtake(effect: object) -> None:
        if isinstance(effect, ListOngoing):
            slow.before = lambda _: None
            messages.append(quick.task(quick.prepare(), 0, 0, ["a"]))

    slow.before = overtake
    slow.prepare()
    quick.commit(messages, 0)
    assert older.visible() == ["a"]


def test_drivers_that_take_over_at_the_same_time_do_not_fence_each_other_for_ever(world: World) -> None:
    """In step, request by request: each takes the id before the other's owner record is committed."""
    one, other = world.driver(), world.driver()
    names = {one.identity.token: one, other.identity.token: other}
    waits = {
        token: [preparing._pause_seconds(driver.identity, pauses) for pauses in range(18)]
        for token, driver in names.items()
    }
    for pauses in zip(*waits.values(), strict=True):
        assert 0 <= min(pauses) < max(pauses) <= 3
    assert max(abs(mine - yours) for mine, yours in zip(*waits.values(), strict=True)) > 1
    rounds = 0

    def fence(effect: object) -> None:
        nonlocal rounds
        if isinstance(effect, Pause):
            one.before = lambda _: None  # the other one waits now for longer
        elif isinstance(effect, EndTransaction):
            rounds += 1
            with world.kafka.locked() as cluster:
                cluster.fence(coordinator_id(one.settings.sink_key), 0.0)

    one.before = fence
    one.prepare()
    assert rounds == 2
    assert [effect for effect in one.seen if isinstance(effect, Pause)]


def test_every_prepare_takes_the_right_to_decide_from_the_one_before(world: World) -> None:
    driver = world.driver()
    first = driver.prepare()
    messages = [driver.task(first, 0, 0, ["a"])]
    driver.prepare()
    with pytest.raises(SinkSupersededError, match="was not decided"):
        driver.commit(messages, 0)
    assert world.visible() == []


# ---- the log's topic


def test_the_log_is_made_compacted_with_three_replicas(world: World) -> None:
    world.driver().prepare()
    found = describe_topic(world.config, "penstock-sink-log")
    assert found is not None
    assert (found.partitions, found.replication) == (1, 3)
    assert found.settings["cleanup.policy"] == "compact"
    assert found.settings["min.insync.replicas"] == "2"


def test_a_log_that_deletes_is_refused(world: World) -> None:
    world.kafka.create_topic(
        "penstock-sink-log", 1, replication=3, configs={"cleanup.policy": "compact,delete"}
    )
    driver = world.driver()
    with pytest.raises(SinkError, match=r"cleanup\.policy=compact,delete.*twice"):
        driver.prepare()
    assert changes(driver) == []


def test_a_log_with_fewer_replicas_than_the_target_is_refused(world: World) -> None:
    world.kafka.create_topic("penstock-sink-log", 1, replication=1, configs={"cleanup.policy": "compact"})
    with pytest.raises(SinkError, match="has 1 replicas and 'orders' has 3"):
        world.driver().prepare()


def test_a_log_that_was_lost_is_not_taken_for_a_new_sink(world: World) -> None:
    world.driver().batch(0, {0: ["a"]})
    driver = world.driver(log_topic="made-anew")
    with pytest.raises(SinkLogLostError, match="used before"):
        driver.prepare()
    assert not any(isinstance(effect, InitProducer) for effect in driver.seen)


@pytest.mark.parametrize("kind", [AppendFacts, InitProducer, AppendInTransaction, EndTransaction])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_first_start_that_died_half_way_is_not_taken_for_a_lost_log(
    world: World, kind: type, when: str
) -> None:
    driver = world.driver()
    with pytest.raises(Crash):
        driver.prepare(**{when: kind})
    again = world.driver()
    again.batch(0, {0: ["a"]})
    assert world.visible() == ["a"]


# ---- ownership


def test_an_older_driver_that_wakes_touches_nothing(world: World) -> None:
    old = world.driver()
    old.batch(0, {0: ["a"]})
    new = world.driver()
    plan = new.prepare()
    messages = [new.task(plan, 1, 0, ["b"])]
    old.seen.clear()
    with pytest.raises(SinkSupersededError, match="belongs to another driver now"):
        old.prepare()
    assert changes(old) == []
    new.commit(messages, 1)
    assert world.visible() == ["a", "b"]


def test_an_older_driver_cannot_decide(world: World) -> None:
    old = world.driver()
    plan = old.prepare()
    messages = [old.task(plan, 0, 0, ["a"])]
    world.driver().prepare()
    with pytest.raises(SinkSupersededError, match="another driver"):
        old.commit(messages, 0)
    assert world.visible() == []


def test_an_owner_of_long_ago_is_still_known(world: World) -> None:
    first = world.driver()
    first.prepare()
    for _ in range(16):
        world.driver().prepare()
    with pytest.raises(SinkSupersededError):
        first.prepare()


def test_a_driver_that_stalls_before_its_last_look_sees_what_others_decided(world: World) -> None:
    """It has written its owner record and sleeps; others take over and decide; then it takes the id again."""
    stalled = world.driver()
    with pytest.raises(Crash):
        stalled.prepare(after=EndTransaction)
    other = stalled.replaced()  # the same JVM, so that it is not refused for that
    other.batch(0, {0: ["a"]})
    assert stalled.prepare().last_decided == {QUERY: 0}
    # Someone else's JVM: the same moment, but refused.
    late = world.driver()
    with pytest.raises(Crash):
        late.prepare(after=EndTransaction)
    world.driver().prepare()
    with pytest.raises(SinkSupersededError):
        late.prepare()


def overtaken(driver: Driver, by: Driver) -> None:
    """Let another driver write a whole batch between the owner record and the last taking of the id."""
    own = coordinator_id(driver.settings.sink_key)
    taken = 0

    def overtake(effect: object) -> None:
        nonlocal taken
        taken += isinstance(effect, InitProducer) and effect.transactional_id == own
        if taken == 2:
            driver.before = lambda _: None
            by.batch(0, {0: ["a"]})

    driver.before = overtake


def test_a_process_that_is_overtaken_by_another_of_its_driver_before_its_last_look_goes_on(
    world: World,
) -> None:
    driver = world.driver()
    overtaken(driver, by=driver.replaced())
    plan = driver.prepare()
    assert (plan.execution.generation, plan.last_decided) == (1, {QUERY: 0})
    driver.commit([driver.task(plan, 1, 0, ["b"])], 1)
    assert world.visible() == ["a", "b"]


def test_a_driver_that_is_overtaken_before_its_last_look_is_refused(world: World) -> None:
    driver, other = world.driver(), world.driver()
    overtaken(driver, by=other)
    with pytest.raises(SinkSupersededError):
        driver.prepare()
    other.batch(1, {0: ["b"]})
    assert world.visible() == ["a", "b"]


def test_a_driver_that_slept_before_it_ever_was_an_owner_gives_way(world: World) -> None:
    """It is in nobody's list of former owners, and would take over with an old batch."""
    driver, other = world.driver(), world.driver()

    def overtake(effect: object) -> None:
        if isinstance(effect, AppendInTransaction):
            driver.before = lambda _: None
            for number in range(3):
                other.batch(number, {0: [str(number)]})

    driver.before = overtake
    with pytest.raises(SinkSupersededError, match="belongs to another driver"):
        driver.prepare()
    other.batch(3, {0: ["3"]})
    assert world.visible() == ["0", "1", "2", "3"]


def test_of_two_drivers_that_start_together_the_later_one_stays(world: World) -> None:
    first, second = world.driver(), world.driver()
    with pytest.raises(Crash):
        first.prepare(after=ReadLog, nth=2)
    second.prepare()
    first.batch(0, {0: ["a"]})  # it came to write its owner record last
    with pytest.raises(SinkSupersededError):
        second.batch(0, {0: ["a"]})
    assert world.visible() == ["a"]


def test_the_log_is_read_again_after_each_taking_of_the_id(world: World) -> None:
    driver = world.driver()
    driver.prepare()
    names = [type(effect).__name__ for effect in driver.seen]
    own = coordinator_id(driver.settings.sink_key)
    taken = [
        position
        for position, effect in enumerate(driver.seen)
        if isinstance(effect, InitProducer) and effect.transactional_id == own
    ]
    assert len(taken) == 2
    assert all(names[position + 1] == "ReadLog" for position in taken)


# ---- roll forward


@pytest.mark.parametrize("stop", [{"after": EndTransaction}, {"before": EndAll}, {"after": EndAll}])
def test_what_was_decided_is_finished_by_the_next_driver_and_skipped_by_its_tasks(
    world: World, stop: dict[str, type]
) -> None:
    with pytest.raises(Crash):
        world.driver().batch(0, {0: ["a"], 1: ["b"]}, **stop)
    driver = world.driver()
    plan = driver.prepare()
    assert world.visible() == ["a", "b"]
    assert admit(plan, QUERY, 0, world.workers) is Admission.SKIP
    assert driver.batch(0, {0: ["a"], 1: ["b"]}).skipped
    assert world.visible() == ["a", "b"]


def test_half_of_the_ends_is_completed(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, [str(number)]) for number in range(2)]
    with pytest.raises(Crash):
        driver.commit(messages, 0, before=EndAll)
    half = handles_of(messages)[0].transaction
    assert complete_transaction(half, config=world.config).committed
    assert world.visible() == ["0"]
    world.driver().prepare()
    assert world.visible() == ["0", "1"]


def test_another_querys_decision_is_finished_too(world: World) -> None:
    with pytest.raises(Crash):
        world.driver().batch(3, {0: ["a"]}, query_id="deleted checkpoint", after=EndTransaction)
    driver = world.driver()
    report = driver.batch(0, {0: ["b"]}, query_id="new checkpoint")
    assert report.decided
    assert world.visible() == ["a", "b"]


def test_a_decided_transaction_that_was_aborted_stops_everything_with_counts(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, 0, ["a", "b"]), driver.task(plan, 0, 1, ["c"])]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    abort_from_elsewhere(world, messages[0])
    for _ in range(2):
        following = world.driver()
        with pytest.raises(
            DecidedDataLostError, match=r"1 of its 2 transactions.*orders-0: 2 records"
        ) as caught:
            following.prepare()
        assert caught.value.partitions == ((TOPIC, 0, 2),)
        assert pickle.loads(pickle.dumps(caught.value)).partitions == ((TOPIC, 0, 2),)
        assert not any(isinstance(effect, FenceAll) for effect in following.seen)
    assert world.visible() == ["c"]


# ---- limits


def test_the_same_run_id_with_another_topic_is_refused(world: World) -> None:
    world.kafka.create_topic("other", 2)
    job = {"sink_id": "batch", "run_id": "2024-05-01"}
    world.driver(**job).batch(0, {0: ["a"]})
    with pytest.raises(RunIdReusedError, match=r"'orders' before.*'other' now"):
        world.driver(**job, topic="other").prepare()
    world.driver(**(job | {"run_id": "2024-05-02"}), topic="other").batch(0, {0: ["b"]})
    assert world.visible("other") == ["b"]


def test_the_time_out_is_halved_until_brokers_take_it() -> None:
    settings = ClusterSettings(transaction_max_timeout_ms=240_000)
    with FakeKafka(brokers=1, topics={TOPIC: 2}, settings=settings) as kafka:
        driver = World(kafka).driver(recovery_time_ms=60_000)
        assert driver.prepare().transaction_timeout_ms == 225_000
        driver.seen.clear()
        driver.prepare()  # asked once per process
        asked = [effect for effect in driver.seen if isinstance(effect, InitProducer)]
        assert [effect.timeout_ms for effect in asked] == [30_000]
        # Half of what was refused may be too little where the least that is needed is allowed.
        driver = World(kafka).driver(sink_id="sink-2", recovery_time_ms=118_000)
        assert driver.prepare().transaction_timeout_ms == 236_000
        with pytest.raises(
            ConfigError, match=r"260000 ms.*transaction\.max\.timeout\.ms.*transactionTimeout"
        ):
            World(kafka).driver(recovery_time_ms=130_000).prepare()


def test_no_permission_for_the_coordinators_id(world: World) -> None:
    driver = world.driver()
    with world.kafka.locked() as cluster:
        cluster.denied_transactional_ids.add(coordinator_id(driver.settings.sink_key))
    with pytest.raises(SinkAuthorizationError, match="transactional id"):
        driver.prepare()


# ---- cleaning up


def test_older_generations_are_fenced_own_ones_ended_newer_ones_left(world: World) -> None:
    first = world.driver()
    first.task(first.prepare(), 0, 0, ["old"])
    driver = first.replaced()
    plan = driver.prepare()
    assert world.ongoing() == []  # of the older generation
    driver.task(plan, 0, 1, ["mine"])
    driver.prepare()  # the execution before was not decided, so it has failed
    assert world.ongoing() == []
    newer = f"ps.{driver.settings.sink_key}.99.worker.0"
    open_by_hand(world, newer)
    driver.prepare()
    assert world.ongoing() == [newer]
    assert world.visible() == []


def test_own_generation_is_never_initialised_by_the_driver(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    message = driver.task(plan, 0, 0, ["a"])
    name = handles_of([message])[0].transaction.transactional_id
    driver.seen.clear()
    with world.kafka.locked() as cluster:
        cluster.received.clear()
    driver.prepare()
    with world.kafka.locked() as cluster:
        taken = [r.body["transactional_id"] for r in cluster.received if r.api is INIT_PRODUCER_ID]
    assert name not in taken
    assert parse_task_id(name) is not None


def test_every_broker_is_asked_at_takeover_and_once_a_minute(world: World) -> None:
    driver = world.driver()

    def asked() -> int:
        with world.kafka.locked() as cluster:
            count = sum(request.api is LIST_TRANSACTIONS for request in cluster.received)
            cluster.received.clear()
        return count

    def batch(number: int) -> int:
        plan = driver.prepare()
        count = asked()
        driver.commit([driver.task(plan, number, 0, ["x"])], number)
        asked()
        return count

    assert batch(0) == 3
    assert batch(1) == 0
    world.now = 61.0
    assert batch(2) == 3


def test_a_server_of_no_known_release_is_not_given_one() -> None:
    steps = preparing._check_release()
    next(steps)
    with pytest.raises(SinkError, match="a broker of this cluster is of an unknown release"):
        steps.send("unknown")


@pytest.mark.parametrize("release", ["0.10.2", "0.11.0", "2.8"])
def test_brokers_that_cannot_tell_the_states_of_transactions_are_refused_before_anything_is_written(
    release: str,
) -> None:
    with FakeKafka(brokers=2, topics={TOPIC: 2}, release=release) as kafka:
        world = World(kafka)
        with pytest.raises(SinkError) as caught:
            world.driver().prepare()
        for part in (
            "exactly-once needs Kafka 3.0",
            f"Kafka {release}",
            "Nothing was written",
            "at-least-once",
        ):
            assert part in str(caught.value)
        with kafka.locked() as cluster:
            assert [topic.name for topic in cluster.topics] == [TOPIC]
            assert not [txn.transactional_id for txn in cluster.transactions]
