# SPDX-License-Identifier: Apache-2.0
"""Transactions on a real broker, opened with raw requests in both protocols and ended from elsewhere."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from control.support import V1, V2, OpenTransaction, init_producer_id
from fix_broker import consume_from
from fix_patience import wait_until

from penstock.control import (
    AbortCause,
    ControlClient,
    TransactionHandle,
    complete_all,
    complete_transaction,
    create_topic,
    describe_transactions,
    list_transactions,
)
from penstock.control.complete import ending_steps
from penstock.control.markers import Marker, MarkerSearch
from penstock.control.steps import CoordinatorOf, ask_until_answered
from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM
from penstock.errors import (
    BrokerError,
    KafkaTimeoutError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionUnknownError,
)
from penstock.protocol.messages import INIT_PRODUCER_ID
from penstock.protocol.requests import SchemaRequest
from penstock.types import TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]

both_protocols = pytest.mark.parametrize("protocol", [V1, V2], ids=["v1", "v2"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """A broker that looks for transactions that are too old more often than every 10 s."""
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with DevCluster(properties=interval) as cluster:
        yield cluster


@pytest.fixture
def config(cluster: DevCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}


@pytest.fixture
def client(config: dict[str, str]) -> Iterator[ControlClient]:
    with ControlClient(config) as client:
        yield client


@pytest.fixture
def topic(client: ControlClient) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    create_topic(name, 1, 1, config=client)
    return name


@pytest.fixture
def begin(client: ControlClient, topic: str) -> Callable[..., OpenTransaction]:
    """Give a function that begins a transaction with an id of its own and writes two records."""

    def begin(protocol: int, timeout_ms: int = 60_000) -> OpenTransaction:
        opened = OpenTransaction(client, f"x-{uuid.uuid4().hex[:12]}", protocol, timeout_ms)
        return opened.send(topic, b"one", b"two")

    return begin


Begin = Callable[..., OpenTransaction]


def marker_of(client: ControlClient, handle: TransactionHandle) -> Marker | None:
    assert handle.topic is not None
    search = MarkerSearch(
        handle.topic, handle.partition, handle.offset, handle.producer_id, handle.producer_epoch
    )
    return client.run(search.look()).marker


@both_protocols
def test_commit_as_often_as_it_takes(
    config: dict[str, str], client: ControlClient, begin: Begin, protocol: int
) -> None:
    handle = begin(protocol).handle()
    assert marker_of(client, handle) is None
    for _ in range(3):
        assert complete_transaction(handle, config=config).committed
    marker = marker_of(client, handle)
    assert marker is not None
    assert marker.committed
    with pytest.raises(TransactionCommittedError):
        complete_transaction(handle, commit=False, config=config)


@both_protocols
def test_abort_as_often_as_it_takes(config: dict[str, str], begin: Begin, protocol: int) -> None:
    handle = begin(protocol).handle()
    for _ in range(3):
        outcome = complete_transaction(handle, commit=False, config=config)
        assert not outcome.committed
        assert outcome.causes == ()
    with pytest.raises(TransactionAbortedError, match="somebody's decision"):
        complete_transaction(handle, config=config)


@both_protocols
def test_fenced_before_the_commit(
    config: dict[str, str], client: ControlClient, begin: Begin, protocol: int
) -> None:
    handle = begin(protocol).handle()
    init_producer_id(client, handle.transactional_id)
    with pytest.raises(TransactionAbortedError, match="fence") as caught:
        complete_transaction(handle, config=config)
    assert "PRODUCER_FENCED" in str(caught.value.__cause__)
    outcome = complete_transaction(handle, commit=False, config=config)
    assert AbortCause.FENCE in outcome.causes


@both_protocols
def test_taken_over_after_the_commit(
    config: dict[str, str], client: ControlClient, begin: Begin, protocol: int
) -> None:
    handle = begin(protocol).handle()
    assert complete_transaction(handle, config=config).committed
    init_producer_id(client, handle.transactional_id)
    # The coordinator only says PRODUCER_FENCED now; the log knows better.
    outcome = complete_transaction(handle, config=config)
    assert outcome.committed
    assert outcome.marker is not None


@both_protocols
def test_ended_by_its_time_out(
    config: dict[str, str], client: ControlClient, begin: Begin, protocol: int
) -> None:
    handle = begin(protocol, timeout_ms=1000).handle()
    wait_until(lambda: marker_of(client, handle) is not None)
    with pytest.raises(TransactionAbortedError, match="time-out"):
        complete_transaction(handle, config=config)
    assert not complete_transaction(handle, commit=False, config=config).committed


def test_an_empty_one_is_left_alone(config: dict[str, str], client: ControlClient) -> None:
    opened = OpenTransaction(client, f"x-{uuid.uuid4().hex[:12]}", V2)
    assert complete_transaction(opened.handle(), config=config).committed
    assert not complete_transaction(opened.handle(), commit=False, config=config).committed
    description = describe_transactions([opened.transactional_id], config)[opened.transactional_id]
    assert description is not None
    assert (description.state, description.producer_epoch) == ("Empty", opened.epoch)


@both_protocols
def test_without_an_offset_only_the_coordinator_can_tell(
    config: dict[str, str], client: ControlClient, begin: Begin, protocol: int
) -> None:
    opened = begin(protocol)
    blind = opened.handle(offset=-1)
    assert complete_transaction(blind, config=config).committed
    init_producer_id(client, blind.transactional_id)
    with pytest.raises(TransactionUnknownError, match="does not say where"):
        complete_transaction(blind, config=config)
    assert complete_transaction(opened.handle(), config=config).committed


def test_records_that_retention_removed(
    cluster: DevCluster, config: dict[str, str], client: ControlClient, begin: Begin
) -> None:
    handle = begin(V2).handle()
    assert complete_transaction(handle, config=config).committed
    init_producer_id(client, handle.transactional_id)
    offsets = cluster.data_dir / f"{uuid.uuid4().hex}.json"
    place = {"topic": handle.topic, "partition": 0, "offset": handle.offset + 2}
    offsets.write_text(json.dumps({"version": 1, "partitions": [place]}))
    done = cluster.run_tool(
        "org.apache.kafka.tools.DeleteRecordsCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--offset-json-file", str(offsets)),
        jvm=QUICK_JVM,
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(TransactionUnknownError, match="does not have its first batch any more"):
        complete_transaction(handle, config=config)


@both_protocols
def test_a_commit_that_races_a_fence_reports_what_the_log_says(
    client: ControlClient, begin: Begin, protocol: int
) -> None:
    for _ in range(20):
        handle = begin(protocol).handle()
        body = {"transactional_id": handle.transactional_id, "transaction_timeout_ms": 60_000}
        take_over = ask_until_answered(
            CoordinatorOf(handle.transactional_id), SchemaRequest.of(INIT_PRODUCER_ID, body)
        )
        ended, _ = client.run_all([ending_steps(handle, commit=True), take_over])
        marker = marker_of(client, handle)
        assert marker is not None
        try:
            committed = ended.result.committed
        except TransactionAbortedError:
            committed = False
        assert committed == marker.committed


def test_two_hundred_at_once(
    cluster: DevCluster, config: dict[str, str], client: ControlClient, topic: str, begin: Begin
) -> None:
    handles = [begin(V1 if number % 2 else V2).handle() for number in range(200)]
    for _ in range(2):
        completions = complete_all(handles, config=config, timeout=60)
        assert [completion.handle for completion in completions] == handles
        assert [completion.error for completion in completions] == [None] * 200
    found = consume_from(cluster, topic, count=400, isolation_level="read_committed")
    assert [record.value for record in found] == [b"one", b"two"] * 200


def test_list_and_describe(config: dict[str, str], client: ControlClient, begin: Begin, topic: str) -> None:
    opened = begin(V2)
    name = opened.transactional_id
    (listing,) = list_transactions(config, pattern=name, states=["Ongoing"])
    assert (listing.transactional_id, listing.producer_id, listing.state) == (
        name,
        opened.producer_id,
        "Ongoing",
    )
    assert list_transactions(config, pattern=name[:-1]) == []
    found = describe_transactions([name, "never-heard-of"], config)
    assert found["never-heard-of"] is None
    description = found[name]
    assert description is not None
    assert (description.state, description.producer_id, description.producer_epoch) == (
        "Ongoing",
        opened.producer_id,
        opened.epoch,
    )
    assert description.timeout_ms == opened.timeout_ms
    assert description.start_time_ms > 0
    assert description.partitions == (TopicPartition(topic, 0),)
    complete_transaction(opened.handle(), config=config)
    assert list_transactions(config, pattern=name, states=["Ongoing"]) == []
    with pytest.raises(ValueError, match="Lost"):
        list_transactions(config, states=["Lost"])


def test_a_topic_that_exists_already(config: dict[str, str], topic: str) -> None:
    with pytest.raises(BrokerError, match=topic) as caught:
        create_topic(topic, config=config)
    assert caught.value.name == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(BrokerError, match=r"replication factor|brokers") as refused:
        create_topic("too-many-copies", 1, 3, config=config)
    assert refused.value.name == "INVALID_REPLICATION_FACTOR"
    with pytest.raises(BrokerError, match=r"no\.such\.setting"):
        create_topic("odd", settings={"no.such.setting": 1}, config=config)


@both_protocols
def test_a_broker_that_is_killed_and_comes_back(
    cluster: DevCluster, config: dict[str, str], client: ControlClient, begin: Begin, protocol: int
) -> None:
    handle = begin(protocol).handle()
    cluster.kill(1)
    with pytest.raises(KafkaTimeoutError, match="safe to ask again"):
        complete_transaction(handle, config=client, timeout=0.5)
    starting = threading.Thread(target=cluster.start_node, args=(1,))
    starting.start()
    try:
        # The same client, whose connections are gone.
        assert complete_transaction(handle, config=client, timeout=60).committed
    finally:
        starting.join()
    assert complete_transaction(handle, config=config).committed
