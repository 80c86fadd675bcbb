# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/transactions.md, run on a real broker with the consumers of three libraries."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from fix_broker import Consume, MakeTopic, committed_position
from fix_other_clients import kafka_python

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.errors import KafkaError

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    # What other libraries think of the Python that they run on.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka.*"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transactions.md"
PROGRAMS = dict(
    re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
SECONDS = 90.0
COUNT = 30


def program(library: str, orders: str, invoices: str) -> Callable[[str, Callable[[], bool]], Any]:
    source = PROGRAMS[library].replace('"orders"', repr(orders)).replace('"invoices"', repr(invoices))
    source = source.replace('"billing', f'"{orders}-billing')
    names: dict[str, Any] = {}
    exec(compile(source, f"{PAGE.name}: {library}", "exec"), names)
    found: Callable[[str, Callable[[], bool]], Any] = names["bill"]
    return found


def send_orders(cluster: DevCluster, topic: str, first: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(first, first + COUNT):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def until_read(cluster: DevCluster, group: str, topic: str, count: int) -> Callable[[], bool]:
    """True while the committed positions of both partitions do not add up to what was sent."""
    deadline = time.monotonic() + SECONDS

    def running() -> bool:
        assert time.monotonic() < deadline, "the consumer did not get that far"
        return sum(max(0, committed_position(cluster, group, topic, part)) for part in (0, 1)) < count

    return running


def test_the_page_has_a_program_for_each_library() -> None:
    assert list(PROGRAMS) == ["confluent-kafka", "kafka-python", "aiokafka"]


@pytest.mark.parametrize("library", list(PROGRAMS))
def test_what_is_read_is_written_once_and_positions_move_with_it(
    library: str, dev_cluster: DevCluster, topic: MakeTopic, consume: Consume
) -> None:
    orders, invoices = topic(2), topic()
    bill = program(library, orders, invoices)
    for turn in (1, 2):  # the second run goes on where the first one stopped
        send_orders(dev_cluster, orders, COUNT * (turn - 1))
        running = until_read(dev_cluster, f"{orders}-billing", orders, COUNT * turn)
        outcome = bill(dev_cluster.bootstrap_servers, running)
        if inspect.isawaitable(outcome):

            async def finish(waiting: Any = outcome) -> None:
                await waiting

            asyncio.run(finish())
        written = consume(invoices, count=COUNT * turn, isolation_level="read_committed")
        assert sorted(int(record.value or b"-1") for record in written) == list(range(COUNT * turn))


class Joined:
    """A consumer that has joined its group: its positions, and its group."""

    def __init__(self, positions: Any, group: Any, leave: Callable[[], object]) -> None:
        self.positions = positions
        self.group = group
        self.leave = leave


def joined_confluent(servers: str, topic: str, **options: Any) -> Joined:
    config = {"bootstrap.servers": servers, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(config | {"enable.auto.commit": False} | options)
    consumer.subscribe([topic])
    assert consumer.consume(1, timeout=SECONDS)
    positions = consumer.position(consumer.assignment())
    return Joined(positions, consumer.consumer_group_metadata(), consumer.close)


def joined_kafka_python(servers: str, topic: str) -> Joined:
    consumer = kafka_python.KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"{topic}-g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    records = consumer.poll(timeout_ms=SECONDS * 1000)
    assert records
    positions = {
        partition: kafka_python.OffsetAndMetadata(consumer.position(partition), "noted", -1)
        for partition in records
    }
    return Joined(positions, consumer.group_metadata(), consumer.close)


@pytest.fixture
def producer(dev_cluster: DevCluster, topic: MakeTopic) -> Iterator[Producer]:
    servers = dev_cluster.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=f"{topic()}-p") as running:
        running.init_transactions()
        yield running


@pytest.mark.parametrize(
    "join",
    [
        joined_confluent,
        lambda servers, topic: joined_confluent(servers, topic, **{"group.instance.id": "lasting name"}),
        joined_kafka_python,
    ],
    ids=["confluent-kafka", "confluent-kafka, static member", "kafka-python"],
)
def test_a_member_of_the_group_is_checked_by_its_coordinator(
    join: Callable[[str, str], Joined], dev_cluster: DevCluster, topic: MakeTopic, producer: Producer
) -> None:
    name = topic(2)
    send_orders(dev_cluster, name, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        member = join(dev_cluster.bootstrap_servers, name)
        try:
            with producer.transaction():
                producer.send_offsets_to_transaction(member.positions, member.group)
        finally:
            member.leave()
    read = sum(max(0, committed_position(dev_cluster, f"{name}-g", name, part)) for part in (0, 1))
    assert read >= 1
    stranger = as_generation(member.group, 99)
    with pytest.raises(KafkaError, match=r"generation|member"), producer.transaction():
        producer.send_offsets_to_transaction(member.positions, stranger)
    again = sum(max(0, committed_position(dev_cluster, f"{name}-g", name, part)) for part in (0, 1))
    assert again == read


def as_generation(group: Any, generation: int) -> Any:
    """The same member in a generation that the group does not have: only who passes it on is refused."""
    if isinstance(group, bytes):
        return group[:7] + generation.to_bytes(4, "little") + group[11:]
    return group._replace(generation_id=generation)
