# SPDX-License-Identifier: Apache-2.0
"""The brokers are gone for longer than delivery.timeout.ms: those records fail, and the same producer goes on after.

Gone in two ways: killed, so that nothing can be sent; and frozen, so that what was sent takes effect once they wake up,
when its sender has long been told that it failed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.check import read_committed
from penstock import Delivery, Producer
from penstock.devbroker import DevCluster
from penstock.errors import DeliveryTimeoutError, KafkaError

pytestmark = [pytest.mark.broker, pytest.mark.slow]
pytest.importorskip("confluent_kafka", reason="what was written is read back with confluent-kafka")

OPTIONS = {
    "linger_ms": 0,
    "request_timeout_ms": 1000,
    "delivery_timeout_ms": 2500,
    "max_block_ms": 30_000,
    "reconnect_backoff_max_ms": 200,
}
Change = Callable[[DevCluster], None]


def freeze(cluster: DevCluster, node_id: int) -> None:
    """Pause a broker, and wait until the last of its threads has stopped: on a busy machine that takes a moment."""
    cluster.pause(node_id)
    for _ in range(2000):
        states = [
            path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{cluster.node(node_id).pid}/task").glob("*/stat")
        ]
        if set(states) == {"T"}:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the broker does not stop")


lost_and_found = pytest.mark.parametrize(
    ("lose", "find"),
    [
        (lambda cluster: cluster.kill(1), lambda cluster: cluster.start_node(1)),
        (lambda cluster: freeze(cluster, 1), lambda cluster: cluster.resume(1)),
    ],
    ids=["killed", "frozen"],
)


@pytest.fixture(scope="module")
def started() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(started: DevCluster) -> str:
    if not started.node(1).running:
        started.start_node(1)
    name = f"lost-{uuid.uuid4().hex[:12]}"
    started.create_topic(name, 1)
    return name


def send(producer: Producer, topic: str, mark: str, count: int = 40) -> list[Delivery]:
    return [producer.send(topic, b"%s %d" % (mark.encode(), number)) for number in range(count)]


def values(mark: str, count: int = 40) -> list[bytes]:
    return [b"%s %d" % (mark.encode(), number) for number in range(count)]


def read(cluster: DevCluster, topic: str) -> list[bytes]:
    return [value for _, _, value in read_committed(cluster.bootstrap_servers, topic, 1)]


@lost_and_found
def test_records_fail_and_the_next_ones_are_delivered(
    started: DevCluster, topic: str, lose: Change, find: Change
) -> None:
    with Producer(bootstrap_servers=started.bootstrap_servers, **OPTIONS) as producer:
        for delivery in send(producer, topic, "before"):
            delivery.result(60)
        lose(started)
        lost = send(producer, topic, "lost")
        errors = [delivery.exception(60) for delivery in lost]
        find(started)
        # Not all at once: the first attempt may still meet a broker that has just come back.
        found = [producer.send(topic, value) for value in values("after")]
        outcomes = [delivery.exception(60) for delivery in found]
        if any(outcomes):
            assert {type(error) for error in outcomes if error} <= {DeliveryTimeoutError}
            found = send(producer, topic, "after that")
            assert [delivery.exception(60) for delivery in found] == [None] * len(found)
    assert {type(error) for error in errors} == {DeliveryTimeoutError}
    log = read(started, topic)
    assert len(log) == len(set(log)), "nothing is there twice"
    assert log[:40] == values("before")
    sent = values("before") + values("lost") + values("after") + values("after that")
    assert log == [value for value in sent if value in set(log)], "nothing was overtaken"
    acknowledged = values("after that" if any(outcomes) else "after")
    assert log[-40:] == acknowledged


@lost_and_found
def test_a_transaction_fails_and_the_next_one_is_committed(
    started: DevCluster, topic: str, lose: Change, find: Change
) -> None:
    options = {**OPTIONS, "transactional_id": f"x-{topic}"}
    with Producer(bootstrap_servers=started.bootstrap_servers, **options) as producer:
        producer.init_transactions()
        with producer.transaction():
            send(producer, topic, "before")
        producer.begin_transaction()
        for delivery in send(producer, topic, "aborted"):
            delivery.result(60)
        lose(started)
        lost = send(producer, topic, "lost")
        errors = [delivery.exception(60) for delivery in lost]
        find(started)
        assert all(isinstance(error, KafkaError) for error in errors), errors
        with pytest.raises(KafkaError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            send(producer, topic, "after")
    assert read(started, topic) == values("before") + values("after")
