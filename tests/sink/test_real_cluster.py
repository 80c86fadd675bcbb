# SPDX-License-Identifier: Apache-2.0
"""The protocol on a real broker: tasks with real producers, drivers that die, and an independent reader."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from sink.support import Crash, Driver, World, handles_of, open_task

from penstock.control import ControlClient, complete_transaction, create_topic, list_transactions
from penstock.control.partition_log import init_producer_id
from penstock.control.topics import describe_topic
from penstock.devbroker import DevCluster
from penstock.errors import DecidedDataLostError, DecisionRefusedError, KafkaError, SinkSupersededError
from penstock.producer.guarantee.transactions.coordinator import ClusterFacts
from penstock.sink import Slots, abort, commit, end_left_over, inspect_sinks, prepare, roll_forward
from penstock.sink.effects import AppendFacts, AppendInTransaction, EndAll, EndTransaction, InitProducer
from penstock.sink.identity import task_id_pattern
from penstock.sink.task import check_wanted

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@dataclass
class RealKafka:
    """Stands where the fake one stands."""

    bootstrap_servers: str


class RealWorld(World):
    """A world with a topic of its own, read by another client than ours."""

    topic = ""

    def settings(self, **changed: Any) -> Any:
        return super().settings(**({"sink_id": self.topic, "topic": self.topic} | changed))

    def visible(self, topic: str = "", partitions: int = 2) -> list[str]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([TopicPartition(topic or self.topic, number, 0) for number in range(partitions)])
            values, ends = [], 0
            while ends < partitions:
                message = consumer.poll(30)
                assert message is not None, "the consumer did not come to the end"
                if message.error():
                    ends += 1
                else:
                    values.append(message.value().decode())
            return sorted(values)
        finally:
            consumer.close()

    def ongoing(self) -> list[str]:
        pattern = task_id_pattern(self.settings().sink_key)
        return [
            found.transactional_id
            for found in list_transactions(self.config, pattern=pattern, states=["Ongoing"])
        ]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(
    dev_cluster: DevCluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> RealWorld:
    """In either transaction protocol: a new broker takes the older one from clients that know no better."""
    if request.param == 1:
        monkeypatch.setattr(ControlClient, "end_txn_version", lambda *_: 3)
        monkeypatch.setattr(ClusterFacts, "transaction_version", lambda _: 1)
    world = RealWorld(RealKafka(dev_cluster.bootstrap_servers))  # type: ignore[arg-type]
    world.topic = f"t-{uuid.uuid4().hex[:12]}"
    create_topic(world.topic, 2, 1, config=world.config)
    return world


ROWS = {0: ["a", "b"], 1: ["c"]}


def test_batches_become_visible_once(world: RealWorld) -> None:
    driver = world.driver()
    assert driver.batch(0, ROWS).decided
    assert driver.batch(0, ROWS).skipped
    driver.batch(1, {0: ["d"]})
    assert world.visible() == ["a", "b", "c", "d"]
    assert world.ongoing() == []
    log = describe_topic(world.config, "penstock-sink-log")
    assert log is not None
    assert log.settings["cleanup.policy"] == "compact"


@pytest.mark.parametrize("kind", [InitProducer, AppendInTransaction, EndTransaction, EndAll, AppendFacts])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_dies_and_another_takes_over(world: RealWorld, kind: type, when: str) -> None:
    driver = world.driver()
    driver.batch(0, {0: ["first"]})
    stop = {when: kind}
    if kind is InitProducer:
        with pytest.raises(Crash):
            driver.prepare(**stop)
    else:
        with pytest.raises(Crash):
            driver.batch(1, ROWS, **stop)
    world.driver().batch(1, ROWS)
    assert world.visible() == ["a", "b", "c", "first"]
    assert world.ongoing() == []


def test_an_older_driver_is_refused_and_its_tasks_fenced(world: RealWorld) -> None:
    old = world.driver()
    plan = old.prepare()
    messages = [old.task(plan, 0, 0, ["old"])]
    zombie = open_task(old, plan, 1, "zombie", Slots())
    new = world.driver()
    new.batch(0, ROWS)
    with pytest.raises(SinkSupersededError):
        old.commit(messages, 0)
    with pytest.raises(SinkSupersededError):
        old.prepare()
    with pytest.raises(KafkaError):
        zombie.commit_transaction()
    zombie.close(0)
    new.batch(1, {0: ["d"]})
    assert world.visible() == ["a", "b", "c", "d"]


def test_what_failed_attempts_left_open_is_cleaned_up(world: RealWorld) -> None:
    driver = world.driver()
    plan = driver.prepare()
    driver.task(plan, 0, 0, ["lost"])
    assert len(world.ongoing()) == 1
    driver.batch(0, ROWS)
    assert world.ongoing() == []
    assert world.visible() == ["a", "b", "c"]


def test_abort_undoes_only_what_is_undecided(world: RealWorld) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, 0, ["no"]), None]
    assert driver.abort(messages, 0)
    assert world.ongoing() == []
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in ROWS.items()]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    assert driver.abort(messages, 0) is False
    world.driver().prepare()
    assert world.visible() == ["a", "b", "c"]


def test_no_decision_with_a_dead_handle(world: RealWorld) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in ROWS.items()]
    with ControlClient(world.config) as client:
        init_producer_id(client, handles_of(messages)[1].transaction.transactional_id, 60_000)
    with pytest.raises(DecisionRefusedError):
        driver.commit(messages, 0)
    assert world.visible() == []
    assert world.ongoing() == []


def test_recover_shows_and_finishes(world: RealWorld) -> None:
    driver = world.driver()
    with pytest.raises(Crash):
        driver.batch(0, ROWS, after=EndTransaction)
    key = driver.settings.sink_key
    deadline = time.monotonic() + 30
    # A coordinator answers EndTxn before the marker is in the log, by which a decision becomes one.
    while not inspect_sinks(world.config, key)[0].needs_roll_forward:
        assert time.monotonic() < deadline, "the decision does not show"
        time.sleep(0.1)
    assert roll_forward(world.config, key).rows == 3
    (state,) = inspect_sinks(world.config, key)
    assert not state.needs_roll_forward
    assert world.visible() == ["a", "b", "c"]


def test_a_loss_after_the_decision_is_told(world: RealWorld) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in ROWS.items()]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    complete_transaction(handles_of(messages)[0].transaction, commit=False, config=world.config)
    with pytest.raises(DecidedDataLostError) as caught:
        world.driver().prepare()
    assert caught.value.partitions == ((world.topic, 0, 2),)
    assert world.visible() == ["c"]


def test_the_blocking_calls(world: RealWorld) -> None:
    settings = world.settings()
    first = plan = prepare(settings)
    worker = Driver(world, settings)
    messages = [worker.task(plan, 0, number, values) for number, values in ROWS.items()]
    assert commit(settings, messages, 0).rows == 3
    plan = prepare(settings)
    messages = [worker.task(plan, 1, 0, ["no"])]
    assert abort(settings, messages, 1)
    # Numbers belong to the process, not to the sink: they only grow.
    third = prepare(settings)
    assert first.execution < plan.execution < third.execution
    assert third.execution.generation == first.execution.generation
    assert world.visible() == ["a", "b", "c"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_batch_that_is_given_up_without_a_plan_leaves_nothing_open(world: RealWorld, begun: bool) -> None:
    """As when a query is stopped before a task has ended; also when its commit had begun to decide."""
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    plan = driver.prepare()
    running = open_task(driver, plan, 1, "never seen", Slots())
    if begun:
        message = driver.task(plan, 1, 0, ["never seen"])
        with pytest.raises(Crash):
            driver.commit([message], 1, after=AppendInTransaction)
    assert driver.replaced().abort([None, None], 1)
    assert world.ongoing() == []
    with ControlClient(world.config) as client, pytest.raises(SinkSupersededError):
        check_wanted(plan, client)
    running.close(0)
    following = driver.prepare()
    assert following.execution > plan.execution
    assert following.execution.generation == 1
    driver.commit([driver.task(following, 1, 1, ["b"])], 1)
    assert world.visible() == ["a", "b"]


def test_what_a_dead_driver_left_is_ended_when_the_caller_says_so(world: RealWorld) -> None:
    driver = world.driver()
    messages = [driver.task(driver.prepare(), 0, 0, ["never seen"])]
    (name,) = world.ongoing()
    key = driver.settings.sink_key
    assert end_left_over(world.config, key) == []
    assert end_left_over(world.config, key, elsewhere=True) == [name]
    with pytest.raises(SinkSupersededError):
        driver.commit(messages, 0)
    assert world.visible() == []
