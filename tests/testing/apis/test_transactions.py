# SPDX-License-Identifier: Apache-2.0
"""InitProducerId, AddPartitionsToTxn, EndTxn, ListTransactions and DescribeTransactions.

How a transaction ends, row by row, is in the module of the same name one folder up.
"""

from __future__ import annotations

from typing import Any

import pytest
from testing.wire import NOW_MS, Producer, Wire, batch, make_cluster

from penstock.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)
from penstock.testing import Code


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(topics={"t": 2}))


# ------------------------------------------------------------------------------------------------ InitProducerId


def init(wire: Wire, version: int | None = None, broker: int = 0, **fields: Any) -> tuple[int, Producer]:
    body = {"transactional_id": "x", "transaction_timeout_ms": 60_000} | fields
    answer = wire.call(INIT_PRODUCER_ID, body, version, broker)
    return answer["error_code"], Producer(answer["producer_id"], answer["producer_epoch"])


def test_plain_producers_get_new_ids(wire: Wire) -> None:
    producers = [wire.init(None) for _ in range(3)]
    assert {producer.epoch for producer in producers} == {0}
    assert len({producer.id for producer in producers}) == 3


@pytest.mark.parametrize("version", range(6))
def test_each_call_raises_the_epoch(wire: Wire, version: int) -> None:
    _, first = init(wire, version)
    assert first.epoch == 0
    assert init(wire, version) == (0, first.bumped())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, Code.INVALID_REQUEST),
        ({"transaction_timeout_ms": 900_001}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 0}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 7}, Code.INVALID_REQUEST),
        ({"producer_epoch": 7}, Code.INVALID_REQUEST),
    ],
)
def test_init_refuses(wire: Wire, fields: dict[str, Any], code: Code) -> None:
    assert init(wire, **fields) == (code, Producer(-1, -1))


def test_init_on_the_wrong_broker() -> None:
    cluster = make_cluster(2)
    cluster.move_transaction_coordinator("x", 1)
    assert init(Wire(cluster))[0] == Code.NOT_COORDINATOR
    assert init(Wire(cluster), broker=1)[0] == 0


def test_init_denied(wire: Wire) -> None:
    wire.cluster.denied_transactional_ids.add("x")
    assert init(wire)[0] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_producer_that_goes_on_keeps_its_id(wire: Wire) -> None:
    first = wire.init()
    named = {"producer_id": first.id, "producer_epoch": first.epoch}
    assert init(wire, **named) == (0, first.bumped())
    assert init(wire, **named) == (0, first.bumped())  # the answer was lost, and is given again


@pytest.mark.parametrize(("version", "code"), [(3, Code.INVALID_PRODUCER_EPOCH), (4, Code.PRODUCER_FENCED)])
def test_a_producer_that_was_replaced_cannot_go_on(wire: Wire, version: int, code: Code) -> None:
    first = wire.init()
    wire.init()
    assert init(wire, version, producer_id=first.id, producer_epoch=first.epoch)[0] == code
    assert init(wire, version, producer_id=first.id + 50, producer_epoch=1)[0] == code


def test_an_exhausted_id_is_replaced(wire: Wire) -> None:
    first = wire.init()
    transaction = wire.cluster.transactions.find("x")
    assert transaction is not None
    transaction.epoch = 32765
    assert wire.init() == Producer(first.id, 32766)
    fresh = wire.init()
    assert fresh.epoch == 0
    assert fresh.id != first.id
    # Epoch 32766 of the old id may be a repeated call of the producer that was given the new one.
    transaction.last_epoch = 32766
    assert init(wire, producer_id=first.id, producer_epoch=32766) == (0, fresh)


# ------------------------------------------------------------------------------------------------ AddPartitionsToTxn


@pytest.mark.parametrize("version", range(4))
def test_adding_begins_the_transaction(wire: Wire, version: int) -> None:
    producer = wire.init()
    assert wire.add(producer, 0, version=version) == 0
    assert wire.add(producer, 1, version=version) == 0
    described = wire.describe()
    assert described["transaction_state"] == "Ongoing"
    assert described["topics"] == [{"topic": "t", "partitions": [0, 1]}]


def test_adding_is_all_or_nothing(wire: Wire) -> None:
    producer = wire.init()
    body = {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": producer.id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": [
            {"name": "t", "partitions": [0, 7]},
            {"name": "secret", "partitions": [0]},
        ],
    }
    wire.cluster.denied_topics.add("secret")
    topics = wire.call(ADD_PARTITIONS_TO_TXN, body)["results_by_topic_v3_and_below"]
    codes = [row["partition_error_code"] for topic in topics for row in topic["results_by_partition"]]
    assert codes == [
        Code.OPERATION_NOT_ATTEMPTED,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert wire.describe()["transaction_state"] == "Empty"


@pytest.mark.parametrize(("version", "code"), [(1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)])
def test_adding_with_an_old_epoch(wire: Wire, version: int, code: Code) -> None:
    producer = wire.init()
    wire.init()
    assert wire.add(producer, version=version) == code


def test_adding_as_another_producer(wire: Wire) -> None:
    assert wire.add(Producer(1, 0)) == Code.INVALID_PRODUCER_ID_MAPPING
    wire.init()
    assert wire.add(Producer(1, 0)) == Code.INVALID_PRODUCER_ID_MAPPING


def test_adding_while_markers_are_written() -> None:
    wire = Wire(make_cluster(settings={"marker_delay": 1.0}))
    producer = wire.init()
    wire.add(producer)
    wire.end(producer, True, 3)
    assert wire.add(producer) == Code.CONCURRENT_TRANSACTIONS
    wire.now += 1
    assert wire.add(producer) == 0


def test_adding_on_the_wrong_broker_or_denied() -> None:
    cluster = make_cluster(2)
    cluster.move_transaction_coordinator("x", 1)
    wire = Wire(cluster)
    assert wire.add(Producer(1, 0)) == Code.NOT_COORDINATOR
    cluster.denied_transactional_ids.add("x")
    assert wire.add(Producer(1, 0)) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# ------------------------------------------------------------------------------------------------ EndTxn


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_end_commits(wire: Wire, version: int) -> None:
    producer = wire.init()
    wire.add(producer)
    wire.produce(batch(2, producer, transactional=True), transactional_id="x")
    code, answered = wire.end(producer, True, version)
    assert code == 0
    assert answered == (producer.bumped() if version == 5 else Producer(-1, -1))
    assert len(wire.cluster.records("t", 0)) == 2


@pytest.mark.parametrize(("version", "code"), [(1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)])
def test_end_with_an_old_epoch(wire: Wire, version: int, code: Code) -> None:
    producer = wire.init()
    wire.init()
    assert wire.end(producer, True, version)[0] == code


@pytest.mark.parametrize("version", [3, 5])
def test_end_as_another_producer(wire: Wire, version: int) -> None:
    assert wire.end(Producer(1, 0), True, version)[0] == Code.INVALID_PRODUCER_ID_MAPPING
    wire.init()
    assert wire.end(Producer(1, 0), True, version)[0] == Code.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [3, 5])
def test_end_refused_before_the_state_is_asked(version: int) -> None:
    cluster = make_cluster(2)
    cluster.move_transaction_coordinator("x", 1)
    wire = Wire(cluster)
    assert wire.end(Producer(1, 0), True, version)[0] == Code.NOT_COORDINATOR
    cluster.denied_transactional_ids.add("x")
    assert wire.end(Producer(1, 0), True, version)[0] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    body = {"transactional_id": "", "producer_id": 1, "producer_epoch": 0, "committed": True}
    assert wire.call(END_TXN, body, version)["error_code"] == Code.INVALID_REQUEST


# ------------------------------------------------------------------------------------------------ ListTransactions


def listed(wire: Wire, broker: int = 0, **filters: Any) -> list[str]:
    answer = wire.call(LIST_TRANSACTIONS, filters, broker=broker)
    return sorted(row["transactional_id"] for row in answer["transaction_states"])


@pytest.fixture
def busy(wire: Wire) -> Wire:
    """x is Ongoing, y and yy are Empty."""
    wire.add(wire.init("x"))
    wire.init("y")
    wire.init("yy")
    return wire


def test_lists_all_without_filters(busy: Wire) -> None:
    assert listed(busy) == ["x", "y", "yy"]


def test_lists_by_state(busy: Wire) -> None:
    assert listed(busy, state_filters=["Ongoing"]) == ["x"]
    answer = busy.call(LIST_TRANSACTIONS, {"state_filters": ["Empty", "Lost"]})
    assert answer["unknown_state_filters"] == ["Lost"]
    assert len(answer["transaction_states"]) == 2


def test_lists_by_producer(busy: Wire) -> None:
    assert listed(busy, producer_id_filters=[busy.describe("y")["producer_id"]]) == ["y"]


def test_lists_by_pattern_of_the_whole_id(busy: Wire) -> None:
    assert listed(busy, transactional_id_pattern="y") == ["y"]
    assert listed(busy, transactional_id_pattern="y.*") == ["y", "yy"]
    answer = busy.call(LIST_TRANSACTIONS, {"transactional_id_pattern": "("})
    assert answer["error_code"] == Code.INVALID_REGULAR_EXPRESSION


def test_lists_by_age(busy: Wire) -> None:
    assert "x" not in listed(busy, duration_filter=0)


def test_lists_only_what_the_broker_coordinates() -> None:
    cluster = make_cluster(2)
    wire = Wire(cluster)
    cluster.move_transaction_coordinator("x", 0)
    wire.init("x")
    assert listed(wire) == ["x"]
    assert listed(wire, broker=1) == []


def test_does_not_list_denied_ids(busy: Wire) -> None:
    busy.cluster.denied_transactional_ids.add("y")
    assert listed(busy) == ["x", "yy"]


# ------------------------------------------------------------------------------------------------ DescribeTransactions


def test_describes_an_open_transaction(wire: Wire) -> None:
    producer = wire.init(timeout_ms=1234)
    wire.add(producer, 1)
    assert wire.describe() == {
        "error_code": 0,
        "transactional_id": "x",
        "transaction_state": "Ongoing",
        "transaction_timeout_ms": 1234,
        "transaction_start_time_ms": NOW_MS,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "topics": [{"topic": "t", "partitions": [1]}],
    }


def test_describes_what_is_ended(wire: Wire) -> None:
    producer = wire.init()
    wire.add(producer)
    wire.end(producer, False, 3)
    described = wire.describe()
    assert (described["transaction_state"], described["topics"]) == ("CompleteAbort", [])


def test_describes_several(wire: Wire) -> None:
    wire.init("a")
    rows = wire.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": ["a", "b"]})["transaction_states"]
    assert [row["error_code"] for row in rows] == [0, Code.TRANSACTIONAL_ID_NOT_FOUND]


def test_describes_nothing_for_an_empty_or_denied_id(wire: Wire) -> None:
    assert wire.describe("")["error_code"] == Code.INVALID_REQUEST
    wire.cluster.denied_transactional_ids.add("x")
    assert wire.describe()["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_describes_nothing_on_the_wrong_broker() -> None:
    cluster = make_cluster(2)
    cluster.move_transaction_coordinator("x", 1)
    assert Wire(cluster).describe()["error_code"] == Code.NOT_COORDINATOR
