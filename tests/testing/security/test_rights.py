# SPDX-License-Identifier: Apache-2.0
"""ACLs of the fake cluster: what tests/security/test_rights.py shows of a real broker, without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from testing.wire import Wire, batch, make_cluster

from penstock import Producer, TopicPartition
from penstock.control import ControlClient, complete_transaction
from penstock.control.reach import TopicCheck
from penstock.errors import (
    ClusterAuthorizationError,
    KafkaError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from penstock.protocol.messages import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
)
from penstock.testing import Acl, Code, FakeKafka, FakeSecurity

SECONDS = 60.0
USERS = {"alice": "alice-secret", "bob": "bob-secret"}


@pytest.fixture
def security() -> FakeSecurity:
    return FakeSecurity(
        protocol="SASL_PLAINTEXT", users=dict(USERS), mechanisms=("SCRAM-SHA-256",), acls={"bob": Acl()}
    )


@pytest.fixture
def kafka(security: FakeSecurity) -> Iterator[FakeKafka]:
    with FakeKafka(topics={"orders": 1, "other": 1}, security=security) as kafka:
        yield kafka


@pytest.fixture
def options(kafka: FakeKafka) -> dict[str, str]:
    return kafka.client_options(user="bob") | {"linger.ms": "0"}


def grant(kafka: FakeKafka, **rights: Any) -> None:
    with kafka.locked() as cluster:
        assert cluster.security.acls is not None
        cluster.security.acls["bob"] = Acl(**rights)


# ---- a producer


def test_who_may_write_to_a_topic_writes(kafka: FakeKafka, options: dict[str, str]) -> None:
    grant(kafka, write="orders")
    with Producer(options) as producer:
        assert producer.send("orders", b"1").result(SECONDS).offset == 0


def test_a_topic_that_may_not_be_written_to(kafka: FakeKafka, options: dict[str, str]) -> None:
    grant(kafka, write="other")
    with Producer(options) as producer:
        with pytest.raises(TopicAuthorizationError, match="DESCRIBE and WRITE"):
            producer.send("orders", b"1").result(SECONDS)
        grant(kafka, write="other", describe="orders")
        with pytest.raises(TopicAuthorizationError, match="WRITE on the topic"):
            producer.send("orders", b"1").result(SECONDS)
        grant(kafka, write=("other", "ord*"))
        assert producer.send("orders", b"1").result(SECONDS).offset == 0


def test_numbers_need_a_right(kafka: FakeKafka, options: dict[str, str]) -> None:
    grant(kafka, describe="orders")
    with Producer(options) as producer, pytest.raises(ClusterAuthorizationError, match="IDEMPOTENT_WRITE"):
        producer.send("orders", b"1").result(SECONDS)
    with (
        Producer(options, enable_idempotence=False) as producer,
        pytest.raises(TopicAuthorizationError, match="WRITE"),
    ):
        producer.send("orders", b"1").result(SECONDS)


def test_numbers_need_another_right_before_2_8(security: FakeSecurity) -> None:
    assert security.acls is not None
    with FakeKafka(topics={"orders": 1}, security=security, release="2.4") as kafka:
        options = kafka.client_options(user="bob")
        grant(kafka, write="orders")
        with Producer(options) as producer:
            with pytest.raises(ClusterAuthorizationError):
                producer.send("orders", b"1").result(SECONDS)
            grant(kafka, write="orders", cluster="IDEMPOTENT_WRITE")
            producer.send("orders", b"1").result(SECONDS)


def test_transactions(kafka: FakeKafka, options: dict[str, str]) -> None:
    grant(kafka, write="orders")
    with (
        Producer(options, transactional_id="shop-1") as producer,
        pytest.raises(TransactionalIdAuthorizationError, match="DESCRIBE and WRITE"),
    ):
        producer.init_transactions()
    grant(kafka, write="orders", transactional_ids="shop-*")
    with Producer(options, transactional_id="shop-1") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"1")
        producer.begin_transaction()
        with pytest.raises(KafkaError, match="'readers'"):
            producer.send_offsets_to_transaction({TopicPartition("baskets", 0): 17}, "readers")
        producer.abort_transaction()
        grant(kafka, write="orders", transactional_ids="shop-*", groups="readers", read="other")
        with producer.transaction():
            producer.send_offsets_to_transaction({TopicPartition("other", 0): 17}, "readers")
    assert [record.value for record in kafka.records("orders")] == [b"1"]


def test_a_transaction_that_may_not_be_ended(kafka: FakeKafka, options: dict[str, str]) -> None:
    grant(kafka, super_user=True)
    with Producer(options, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"1")
        handle = producer.detach_transaction()
    grant(kafka, write="orders", describe_transactional_ids="x")
    with pytest.raises(KafkaError, match="WRITE"):
        complete_transaction(handle, config=options, timeout=SECONDS)
    grant(kafka, transactional_ids="x")
    assert complete_transaction(handle, config=options, timeout=SECONDS).committed


def test_each_user_has_rights_of_its_own(kafka: FakeKafka) -> None:
    with kafka.locked() as cluster:
        cluster.security.acls = {"alice": Acl(write="orders")}
    with Producer(kafka.client_options(user="alice")) as producer:
        producer.send("orders", b"1").result(SECONDS)
    with Producer(kafka.client_options(user="bob")) as producer, pytest.raises(TopicAuthorizationError):
        producer.send("orders", b"2").result(SECONDS)


@pytest.mark.parametrize(("wants_certificate", "user"), [(True, "alice"), (False, "ANONYMOUS")])
def test_who_a_client_without_sasl_is(wants_certificate: bool, user: str) -> None:
    security = FakeSecurity(
        protocol="SSL", wants_certificate=wants_certificate, acls={user: Acl(write="orders")}
    )
    with (
        FakeKafka(topics={"orders": 1, "other": 1}, security=security) as kafka,
        Producer(kafka.client_options()) as producer,
    ):
        producer.send("orders", b"1").result(SECONDS)
        with pytest.raises(TopicAuthorizationError):
            producer.send("other", b"1").result(SECONDS)


def test_what_the_control_client_may_not(kafka: FakeKafka, options: dict[str, str]) -> None:
    with ControlClient(options) as client, pytest.raises(KafkaError, match="DESCRIBE") as refused:
        client.find_coordinator("of-somebody-else", timeout=SECONDS)
    assert "of-somebody-else" in str(refused.value)


def test_a_look_ahead_is_told_what_may_be_done(kafka: FakeKafka, options: dict[str, str]) -> None:
    with ControlClient(options) as client:
        grant(kafka, describe="orders")
        with pytest.raises(TopicAuthorizationError):
            TopicCheck(["orders"]).run(client, SECONDS)
        grant(kafka, write="orders")
        TopicCheck(["orders"]).run(client, SECONDS)


# ---- byte by byte


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(topics={"orders": 1, "other": 1}, security=FakeSecurity(acls={})))


def allow(wire: Wire, **rights: Any) -> None:
    wire.cluster.security.acls = {"ANONYMOUS": Acl(**rights)}


def topic_codes(wire: Wire, *names: str, **fields: Any) -> list[int]:
    rows = wire.call(METADATA, {"topics": [{"name": name} for name in names], **fields})["topics"]
    return [row["error_code"] for row in rows]


def test_metadata(wire: Wire) -> None:
    allow(wire, describe="orders", read="oth*")
    assert topic_codes(wire, "orders", "other") == [0, 0]
    allow(wire, describe="orders")
    assert topic_codes(wire, "orders", "other") == [0, Code.TOPIC_AUTHORIZATION_FAILED]
    assert [row["name"] for row in wire.call(METADATA, {"topics": None})["topics"]] == ["orders"]
    known = wire.cluster.topics.by_name("other")
    assert known is not None
    (row,) = wire.call(METADATA, {"topics": [{"topic_id": known.topic_id, "name": None}]})["topics"]
    assert (row["error_code"], row["name"]) == (Code.TOPIC_AUTHORIZATION_FAILED, None)


def test_a_topic_is_made_for_who_may_make_it(wire: Wire) -> None:
    making = {"allow_auto_topic_creation": True}
    for rights in ({"write": "*"}, {"write": "*", "create": "orders-*"}):
        allow(wire, **rights)
        assert topic_codes(wire, "new", **making) == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert wire.cluster.topics.by_name("new") is None
    for number, rights in enumerate(({"cluster": "CREATE"}, {"create": "new-*"})):
        allow(wire, write="*", **rights)
        assert topic_codes(wire, f"new-{number}", **making) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert topic_codes(wire, f"new-{number}") == [0]


def test_topics_that_are_made_by_request(wire: Wire) -> None:
    rows = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in ("log", "new")
    ]
    allow(wire, create="log")
    answer = wire.call(CREATE_TOPICS, {"topics": rows, "timeout_ms": 1000, "validate_only": False})
    assert [row["error_code"] for row in answer["topics"]] == [0, Code.TOPIC_AUTHORIZATION_FAILED]


def test_operations_are_told(wire: Wire) -> None:
    wanted = {"include_topic_authorized_operations": True}

    def told() -> set[int]:
        (row,) = wire.call(METADATA, {"topics": [{"name": "orders"}], **wanted})["topics"]
        return {bit for bit in range(16) if row["topic_authorized_operations"] & 1 << bit}

    allow(wire, write="orders")
    assert told() == {4, 8}
    allow(wire, super_user=True)
    assert told() == {3, 4, 5, 6, 7, 8, 10, 11}
    wire.cluster.read_only_topics.add("orders")
    assert 4 not in told()


def test_produce_is_refused_by_topic(wire: Wire) -> None:
    allow(wire, write="orders")
    topics = [
        {"name": name, "partition_data": [{"index": 0, "records": batch(1)}]} for name in ("orders", "other")
    ]
    body = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": topics}
    answer = wire.call(PRODUCE, body, 12)
    codes = [row["error_code"] for topic in answer["responses"] for row in topic["partition_responses"]]
    assert codes == [0, Code.TOPIC_AUTHORIZATION_FAILED]
    assert len(wire.cluster.records("orders")) == 1


def test_producer_ids(wire: Wire) -> None:
    def code(transactional_id: str | None) -> int:
        body = {"transactional_id": transactional_id, "transaction_timeout_ms": 1000}
        return int(wire.call(INIT_PRODUCER_ID, body)["error_code"])

    assert code(None) == Code.CLUSTER_AUTHORIZATION_FAILED
    assert code("x") == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allow(wire, write="any", transactional_ids="x")
    assert (code(None), code("x")) == (0, 0)
    allow(wire, cluster=("IDEMPOTENT_WRITE",))
    assert code(None) == 0


def test_reading(wire: Wire) -> None:
    def codes() -> tuple[int, int]:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        body = {
            "topics": [{"topic": "orders", "partitions": [partition]}],
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1000,
            "isolation_level": 0,
        }
        fetched = wire.call(FETCH, body, 12)["responses"][0]["partitions"][0]
        asked = {"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}
        listed = wire.call(LIST_OFFSETS, {"isolation_level": 0, "topics": [asked]})
        return fetched["error_code"], listed["topics"][0]["partitions"][0]["error_code"]

    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert codes() == (denied, denied)
    allow(wire, describe="orders")
    assert codes() == (denied, 0)
    allow(wire, read="orders")
    assert codes() == (0, 0)


def test_offsets_of_a_group(wire: Wire) -> None:
    def fetched() -> tuple[int, list[int]]:
        topics = [{"name": name, "partition_indexes": [0]} for name in ("orders", "other")]
        (group,) = wire.call(OFFSET_FETCH, {"groups": [{"group_id": "g", "topics": topics}]})["groups"]
        rows = [row["error_code"] for topic in group["topics"] for row in topic["partitions"]]
        return group["error_code"], rows

    assert fetched()[0] == Code.GROUP_AUTHORIZATION_FAILED
    allow(wire, groups="g", describe="other")
    assert fetched() == (0, [Code.TOPIC_AUTHORIZATION_FAILED, 0])


def test_options(wire: Wire) -> None:
    def codes() -> list[int]:
        rows = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            for kind, name in ((2, "orders"), (4, "0"))
        ]
        return [row["error_code"] for row in wire.call(DESCRIBE_CONFIGS, {"resources": rows})["results"]]

    allow(wire, write="orders")
    assert codes() == [Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED]
    allow(wire, describe_configs="orders", cluster="DESCRIBE_CONFIGS")
    assert codes() == [0, 0]


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="a star stands at the end"):
        Acl(write="*-orders")
    with pytest.raises(ValueError, match="and no FLY"):
        Acl(cluster="FLY")
