# SPDX-License-Identifier: Apache-2.0
"""Programs of migrate/confluent-kafka.md, and `rewind` of transactions.md, with a fake cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from fix_snippets import DOCS, snippets

from penstock import Producer, errors
from penstock.protocol.messages import END_TXN, PRODUCE, TXN_OFFSET_COMMIT
from penstock.testing import Code, FakeKafka, FakeSecurity, Fault
from penstock.types import TopicPartition

SECONDS = 60.0
ORDERS = [b"0", b"1", b"2"]
COMMITTED = {TopicPartition("orders", 0): len(ORDERS)}

Bill = Callable[[Any, Any, Any, Any], None]


def defined(page: str, name: str, *, file: str | None = None) -> Any:
    (found,) = [
        each
        for each in snippets(DOCS / page)
        if f"def {name}(" in each.code and each.file == file and each.language == "python"
    ]
    names: dict[str, Any] = {}
    exec(compile(found.code, str(found), "exec"), names)
    return names[name]


@pytest.fixture
def rewind() -> Callable[[confluent_kafka.Consumer], None]:
    function: Callable[[confluent_kafka.Consumer], None] = defined("transactions.md", "rewind")
    return function


@pytest.fixture
def bill() -> Bill:
    function: Bill = defined("migrate/confluent-kafka.md", "bill", file="after_billing.py")
    return function


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"orders": 1, "invoices": 1}) as cluster:
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for value in ORDERS:
                producer.send("orders", value)
        yield cluster


@pytest.fixture
def consumer(fake: FakeKafka) -> Iterator[confluent_kafka.Consumer]:
    """One with its partitions assigned by hand: the fake cluster has no groups to join."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": fake.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "isolation.level": "read_committed",
    })  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition("orders", 0)])
    yield consumer
    consumer.close()


@pytest.fixture
def producer(fake: FakeKafka) -> Iterator[Producer]:
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="billing-1") as producer:
        producer.init_transactions()
        yield producer


def read(consumer: confluent_kafka.Consumer) -> list[confluent_kafka.Message]:
    records = consumer.consume(len(ORDERS), timeout=SECONDS)
    assert [record.value() for record in records] == ORDERS
    return records


def billed(fake: FakeKafka) -> list[bytes | None]:
    return [record.value for record in fake.records("invoices")]


def committed(fake: FakeKafka) -> dict[TopicPartition, int]:
    return {place: stored.offset for place, stored in fake.cluster.groups.offsets("billing").items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault(api=PRODUCE, error=Code.INVALID_RECORD),
        Fault(api=TXN_OFFSET_COMMIT, error=Code.ILLEGAL_GENERATION),
    ],
    ids=["of a record", "of the positions"],
)
def test_what_was_aborted_is_read_and_billed_again(
    fake: FakeKafka,
    consumer: confluent_kafka.Consumer,
    producer: Producer,
    bill: Bill,
    rewind: Callable[[confluent_kafka.Consumer], None],
    fault: Fault,
) -> None:
    fake.add_fault(fault)
    bill(consumer, producer, read(consumer), rewind)
    assert (billed(fake), committed(fake)) == ([], {})
    bill(consumer, producer, read(consumer), rewind)
    assert (billed(fake), committed(fake)) == (ORDERS, COMMITTED)


@pytest.mark.slow
def test_a_commit_that_had_no_answer_in_time_is_not_aborted(
    fake: FakeKafka, consumer: confluent_kafka.Consumer, producer: Producer, bill: Bill
) -> None:
    records = read(consumer)
    producer.partitions_for("invoices")
    real_commit = producer.commit_transaction
    may_end = threading.Event()
    busy = Code.COORDINATOR_LOAD_IN_PROGRESS
    fake.add_fault(Fault(api=END_TXN, error=busy, match=lambda request: not may_end.is_set(), times=None))

    def commit() -> None:
        producer._core.max_block = 0.05
        try:
            real_commit()
        finally:
            producer._core.max_block = SECONDS
            producer.commit_transaction = real_commit  # type: ignore[method-assign]
            may_end.set()

    producer.commit_transaction = commit  # type: ignore[assignment, method-assign]
    bill(consumer, producer, records, lambda consumer: pytest.fail("it was rewound"))
    assert may_end.is_set()
    assert (billed(fake), committed(fake)) == (ORDERS, COMMITTED)


class Order:
    """What a consumer gives for a record."""

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"order"


class HasRead:
    """A consumer with its partitions assigned by hand, after it has read one order."""

    def assignment(self) -> list[confluent_kafka.TopicPartition]:
        return [confluent_kafka.TopicPartition("orders", 0)]

    def position(
        self, partitions: list[confluent_kafka.TopicPartition]
    ) -> list[confluent_kafka.TopicPartition]:
        return [confluent_kafka.TopicPartition(each.topic, each.partition, 1) for each in partitions]

    def consumer_group_metadata(self) -> str:
        return "billing"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_an_identity_that_is_refused_meanwhile_does_not_end_the_program(bill: Bill, call: str) -> None:
    aborts = call == "abort_transaction"
    topics = {"orders": 1, "invoices": 1}
    with FakeKafka(topics=topics, security=FakeSecurity(protocol="SASL_PLAINTEXT")) as kafka:
        options = kafka.client_options("PLAIN") | {"transactional.id": "billing-1"}
        with Producer(options) as producer:
            producer.init_transactions()
            if aborts:
                kafka.add_fault(Fault(api=PRODUCE, error=Code.INVALID_RECORD))
            real_call = getattr(producer, call)
            refused = []

            def call_without_rights() -> None:
                with kafka.locked() as cluster:
                    cluster.security.users["alice"] = "another"
                    cluster.drop_connections()
                try:
                    real_call()
                except errors.AuthenticationError as error:
                    refused.append(error)
                    setattr(producer, call, real_call)
                    kafka.cluster.security.users["alice"] = "alice-secret"
                    raise

            setattr(producer, call, call_without_rights)
            rewound = []
            bill(HasRead(), producer, [Order()], rewound.append)
            assert (len(refused), len(rewound)) == (1, int(aborts))
            assert billed(kafka) == ([] if aborts else [b"order"])
            bill(HasRead(), producer, [Order()], rewound.append)
            assert billed(kafka) == [b"order"] * (1 if aborts else 2)
            assert committed(kafka) == {TopicPartition("orders", 0): 1}


def test_a_fatal_error_is_raised(
    fake: FakeKafka, consumer: confluent_kafka.Consumer, producer: Producer, bill: Bill
) -> None:
    records = read(consumer)
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="billing-1") as newer:
        newer.init_transactions()
    with pytest.raises(errors.KafkaError) as caught:
        bill(consumer, producer, records, lambda consumer: None)
    assert caught.value.fatal
    assert billed(fake) == []


def recipe(contains: str) -> dict[str, Any]:
    """What a block of the page defines, without the producer behind it."""
    (found,) = [each for each in snippets(DOCS / "migrate/confluent-kafka.md") if contains in each.code]
    names: dict[str, Any] = {}
    exec(compile(found.code.partition("\nwith Producer")[0], str(found), "exec"), names)
    return names


@pytest.mark.parametrize(
    ("of_librdkafka", "here", "loose"),
    [
        ("consistent", "Consistent", []),
        ("murmur2", "Murmur2", []),
        ("fnv1a", "Fnv1a", []),
        ("fnv1a_random", "Fnv1aRandom", [None]),
    ],
)
def test_partitioners_that_place_keys_as_librdkafka(
    of_librdkafka: str, here: str, loose: list[bytes | None]
) -> None:
    names = recipe(f"class {here}(")
    customers = [b"customer-%d" % number for number in range(20)]
    keys = [key for key in (None, b"", b"\xff\x80", *customers) if key not in loose]
    with FakeKafka(topics={"before": 12, "after": 12}) as kafka:
        options = {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": of_librdkafka}
        before = confluent_kafka.Producer(options)
        with Producer(bootstrap_servers=kafka.bootstrap_servers, partitioner=names[here]()) as after:
            for key in keys * 2:
                before.produce("before", b"", key)
                after.send("after", b"", key)
        assert before.flush(SECONDS) == 0

        def places(topic: str) -> set[tuple[bytes | None, int]]:
            return {(record.key, number) for number in range(12) for record in kafka.records(topic, number)}

        assert places("after") == places("before")
        assert len(places("after")) == len(keys)


def test_the_id_of_a_schema_is_added_to_the_headers_of_the_record() -> None:
    serializer = recipe("context.headers.append(")["Registered"]()
    with FakeKafka(topics={"orders": 1}) as kafka:
        with Producer(kafka.client_options(), value_serializer=serializer) as producer:
            producer.send("orders", "two pumps", headers={"source": b"shop"})
        (sent,) = kafka.records("orders")
    assert sent.value == b"two pumps"
    assert [tuple(header) for header in sent.headers] == [
        ("source", b"shop"),
        ("__value_schema_id", b"the id"),
    ]


def test_the_function_for_flush_counts_what_is_left() -> None:
    flush = recipe("def flush(")["flush"]
    with FakeKafka(topics={"orders": 1}) as kafka, Producer(kafka.client_options()) as producer:
        producer.send("orders", b"1").result(SECONDS)
        assert flush(producer, SECONDS) == 0
        may_end = threading.Event()
        busy = Code.NOT_ENOUGH_REPLICAS
        kafka.add_fault(
            Fault(api=PRODUCE, error=busy, match=lambda request: not may_end.is_set(), times=None)
        )
        producer.send("orders", b"2")
        assert flush(producer, 0.1) == 1
        may_end.set()
        assert flush(producer, SECONDS) == 0
