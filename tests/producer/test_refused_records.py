# SPDX-License-Identifier: Apache-2.0
"""Records that the broker refuses by their numbers: they fail, and their neighbours are written once and in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import Producer
from penstock.errors import BrokerError, BulkDeliveryError, KafkaError
from penstock.testing import FakeKafka

FAR = int(time.time() * 1000) + 10 * 24 * 3600 * 1000  # Kafka allows an hour
NOW = int(time.time() * 1000)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=1, topics={"t": 1, "secret": 1}) as kafka:
        yield kafka


def make(kafka: FakeKafka, **options: Any) -> Producer:
    return Producer(**({"bootstrap_servers": kafka.bootstrap_servers, "linger_ms": 50} | options))


def values(kafka: FakeKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records("t", 0)]


@pytest.mark.parametrize("bad", [{0}, {4}, {9}, {3, 4, 7}, {0, 9}], ids=str)
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_the_neighbours_of_a_refused_record_are_written(
    kafka: FakeKafka, idempotent: bool, bad: set[int]
) -> None:
    told: list[int] = []
    with make(kafka, enable_idempotence=idempotent, linger_ms=60_000) as producer:  # one batch
        deliveries = [
            producer.send(
                "t",
                b"%d" % number,
                timestamp_ms=FAR if number in bad else NOW,
                on_delivery=lambda _metadata, _error, number=number: told.append(number),
            )
            for number in range(10)
        ]
        producer.flush()
        failed = {number for number in range(10) if deliveries[number].exception(0) is not None}
        assert failed == bad
        assert told == list(range(10))
        after = producer.send("t", b"after")
    assert after.exception(0) is None
    assert values(kafka) == [b"%d" % number for number in range(10) if number not in bad] + [b"after"]


def test_many_batches_with_refused_records_keep_their_order(kafka: FakeKafka) -> None:
    with make(kafka, batch_size=300) as producer:
        deliveries = [
            producer.send("t", b"%03d" % number, timestamp_ms=FAR if number % 7 == 3 else NOW)
            for number in range(300)
        ]
        producer.flush()
        assert {number for number in range(300) if deliveries[number].exception(0)} == set(range(3, 300, 7))
    assert values(kafka) == [b"%03d" % number for number in range(300) if number % 7 != 3]


def table(bad: set[int], rows: int = 10) -> pa.Table:
    moments = pa.array([FAR if row in bad else NOW for row in range(rows)], pa.timestamp("ms"))
    return pa.table({"value": [b"%03d" % row for row in range(rows)], "timestamp": moments})


def test_a_call_that_skips_bad_rows_goes_on_without_them(kafka: FakeKafka) -> None:
    with make(kafka) as producer:
        bulk = producer.send_arrow("t", table({2, 5}), on_error="skip")
        report = bulk.result(60)
        assert (report.records, [entry.first_row for entry in report.errors]) == (8, [2, 5])
        with pytest.raises(BulkDeliveryError, match="1 of 10 records was not delivered; row 3"):
            producer.send_arrow("t", table({3})).result(60)
    assert len(values(kafka)) == 17


@pytest.mark.parametrize("bad", [{2}, {0, 5, 299}, set(range(300))], ids=["one", "some", "all"])
def test_a_transaction_goes_on_without_rows_that_may_be_left_out(kafka: FakeKafka, bad: set[int]) -> None:
    with make(kafka, transactional_id="x", batch_size=300) as producer:
        producer.init_transactions()
        for _ in range(2):
            with producer.transaction():
                bulk = producer.send_arrow("t", table(bad, 300), on_error="skip")
                producer.flush()
                report = bulk.result(60)
                assert {
                    row for entry in report.errors for row in range(entry.first_row, entry.last_row + 1)
                } == bad
                producer.send("t", b"more")
    good = [b"%03d" % row for row in range(300) if row not in bad]
    assert values(kafka) == [*good, b"more"] * 2


def test_a_transaction_is_aborted_by_a_record_that_must_not_be_left_out(kafka: FakeKafka) -> None:
    with make(kafka, transactional_id="x") as producer:
        producer.init_transactions()
        with pytest.raises(KafkaError), producer.transaction():  # noqa: PT012 - the end of it raises
            bulk = producer.send_arrow("t", table({2}), on_error="skip")
            producer.send("t", b"v", timestamp_ms=FAR)
            producer.flush()
            bulk.exception(60)
    assert values(kafka) == []


def test_a_lone_refused_record_has_the_brokers_words(kafka: FakeKafka) -> None:
    with make(kafka) as producer:
        error = producer.send("t", b"v", timestamp_ms=FAR).exception(60)
    assert isinstance(error, BrokerError)
    assert error.name == "INVALID_TIMESTAMP"
    assert f"Timestamp {FAR} is out of range" in str(error)


@pytest.mark.parametrize("name", ["bad topic!", "..", "x" * 250, "", None])
def test_a_row_with_a_name_that_no_topic_can_have_is_bad(kafka: FakeKafka, name: str | None) -> None:
    rows = pa.table({"topic": ["t", name, "t"], "value": [b"1", b"2", b"3"]})
    with make(kafka) as producer:
        bulk = producer.send_arrow(None, rows, on_error="skip")
        assert (bulk.accepted, [entry.first_row for entry in bulk.errors]) == (2, [1])
        assert bulk.result(60).records == 2


def test_a_row_for_a_topic_that_is_forbidden_is_bad(kafka: FakeKafka) -> None:
    with kafka.locked() as cluster:
        cluster.denied_topics.add("secret")
    rows = pa.table({"topic": ["t"] + ["secret"] * 120 + ["t"], "value": [b"1"] * 122})
    with make(kafka) as producer:
        bulk = producer.send_arrow(None, rows, on_error="skip")
        assert bulk.result(60).records == 2
        (text,) = {str(entry.error) for entry in bulk.errors}
        assert text.startswith("not authorized to use topic 'secret'")
        assert text.endswith("[TOPIC_AUTHORIZATION_FAILED (29)]")
        with pytest.raises(
            KafkaError, match=r"120 of 122 rows cannot be sent, and none was sent\. row 1: not authorized"
        ):
            producer.send_arrow(None, rows)


def forbid_writing(kafka: FakeKafka, topic: str = "secret") -> None:
    with kafka.locked() as cluster:
        cluster.read_only_topics.add(topic)


def rows_for(*topics: str) -> pa.Table:
    return pa.table({"topic": topics, "value": [b"%d" % row for row in range(len(topics))]})


MIXED = rows_for("t", "secret", "secret", "t", "secret", "t")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def either_protocol(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    features = {"transaction.version": request.param}
    with FakeKafka(brokers=1, topics={"t": 1, "secret": 1}, features=features) as kafka:
        yield kafka


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_rows_for_a_topic_that_may_not_be_written_to_are_bad(kafka: FakeKafka, idempotent: bool) -> None:
    forbid_writing(kafka)
    with make(kafka, enable_idempotence=idempotent) as producer:
        bulk = producer.send_arrow(None, MIXED, on_error="skip")
        report = bulk.result(60)
        assert report.records == 3
        assert [(entry.first_row, entry.last_row) for entry in report.errors] == [(1, 2), (4, 4)]
        assert all("TOPIC_AUTHORIZATION_FAILED" in str(entry.error) for entry in report.errors)
        with pytest.raises(BulkDeliveryError, match="3 of 6 records were not delivered; row"):
            producer.send_arrow(None, MIXED).result(60)
    assert values(kafka) == [b"0", b"3", b"5"] * 2


def test_a_transaction_goes_on_without_a_topic_that_may_not_be_written_to(either_protocol: FakeKafka) -> None:
    kafka = either_protocol
    forbid_writing(kafka)
    with make(kafka, transactional_id="x") as producer:
        producer.init_transactions()
        for _ in range(2):
            with producer.transaction():
                bulk = producer.send_arrow(None, MIXED, on_error="skip")
                report = bulk.result(60)
                assert (report.records, [entry.first_row for entry in report.errors]) == (3, [1, 4])
                late = producer.send_arrow(None, MIXED, on_error="skip")
        assert late.result(60).records == 3
    assert values(kafka) == [b"0", b"3", b"5"] * 4


def test_a_transaction_of_nothing_but_refused_rows_can_be_committed(either_protocol: FakeKafka) -> None:
    kafka = either_protocol
    forbid_writing(kafka)
    with make(kafka, transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            bulk = producer.send_arrow(None, rows_for("secret", "secret"), on_error="skip")
        assert [(entry.first_row, entry.last_row) for entry in bulk.result(60).errors] == [(0, 1)]
        producer.begin_transaction()
        producer.send_arrow(None, rows_for("secret"), on_error="skip")
        handle = producer.detach_transaction()
        assert handle.empty
        producer.init_transactions("y")
        with producer.transaction():
            producer.send("t", b"after")
    assert values(kafka) == [b"after"]


def test_a_refused_topic_aborts_a_transaction_that_needs_its_records(either_protocol: FakeKafka) -> None:
    kafka = either_protocol
    forbid_writing(kafka)
    with make(kafka, transactional_id="x") as producer:
        producer.init_transactions()
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"), producer.transaction():  # noqa: PT012
            producer.send_arrow(None, MIXED, on_error="skip")
            producer.send("secret", b"v")
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"), producer.transaction():  # noqa: PT012
            producer.send_arrow(None, MIXED, on_error="skip").result(60)
            producer.send("secret", b"v")  # behind what was refused
        with producer.transaction():
            producer.send("t", b"after")
    assert [record.value for record in kafka.records("t", 0) if record.value == b"after"] == [b"after"]


def test_a_topic_that_is_allowed_later_is_written_to_in_the_next_transaction(
    either_protocol: FakeKafka,
) -> None:
    kafka = either_protocol
    forbid_writing(kafka)
    with make(kafka, transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            assert producer.send_arrow(None, MIXED, on_error="skip").result(60).records == 3
        with kafka.locked() as cluster:
            cluster.read_only_topics.clear()
        with producer.transaction():
            assert producer.send_arrow(None, MIXED, on_error="skip").result(60).records == 6
    assert [record.value for record in kafka.records("secret", 0)] == [b"1", b"2", b"4"]


def test_what_may_be_left_out_is_noted_as_few_ranges(kafka: FakeKafka) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=60_000) as producer:
        row = table(set(), 1)
        for number in range(120):
            if number == 50:
                producer.send("t", b"needed")
            producer.send_arrow("t", row, on_error="skip")
        [batch] = producer._parts.accumulator._incomplete
        assert batch.result.expendable == [(0, 50), (51, 70)]
        assert not batch.result.may_lose_all(batch.record_count)
        assert batch.result.may_lose([49, 51, 120])


def test_rows_that_a_transaction_goes_on_without_are_told_if_nobody_looks(
    either_protocol: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    forbid_writing(either_protocol)
    with make(either_protocol, transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_arrow(None, MIXED, on_error="skip")
    assert "3 records for topic 'secret' failed, and the program did not ask" in caplog.text
