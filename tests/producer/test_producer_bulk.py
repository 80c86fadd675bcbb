# SPDX-License-Identifier: Apache-2.0
"""send_many and send_arrow as users call them: real threads, a fake cluster on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from fix_patience import wait_until

from penstock import Producer
from penstock.errors import (
    BadRowsError,
    BufferExhaustedError,
    ForkedProducerError,
    IllegalStateError,
    ProducerClosedError,
    SerializationError,
)
from penstock.protocol.messages import PRODUCE
from penstock.serializers import MutableHeaders, Serializer, StringSerializer
from penstock.testing import FakeKafka, Fault

SOON = 60.0  # seconds that a test that passes never needs
Make = Callable[..., Producer]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 3, "one": 1}) as kafka:
        yield kafka


@pytest.fixture
def make(kafka: FakeKafka) -> Iterator[Make]:
    made: list[Producer] = []

    def make_producer(**options: Any) -> Producer:
        options = {"linger_ms": 0, "max_block_ms": 60_000, "retry_backoff_ms": 10} | options
        made.append(Producer(bootstrap_servers=kafka.bootstrap_servers, **options))
        return made[-1]

    yield make_producer
    for producer in made:
        producer.close(0)


def written(kafka: FakeKafka, topic: str = "t", partitions: int = 3) -> list[Any]:
    return [record for number in range(partitions) for record in kafka.records(topic, number)]


def values(kafka: FakeKafka, topic: str = "t", partitions: int = 3) -> list[bytes]:
    return sorted(record.value for record in written(kafka, topic, partitions))


# ------------------------------------------------------------------------------------------------ send_many


def test_many_records_are_those_of_as_many_sends(make, kafka):
    producer = make()
    bulk = producer.send_many(
        "one",
        [b"a", None, b"c"],
        keys=[b"k", None, b""],
        headers=[{"h": b"1"}, None, []],
        timestamps_ms=[5, 6, None],
    )
    assert bulk.result(SOON).records == 3
    found = [(r.value, r.key, [tuple(h) for h in r.headers]) for r in kafka.records("one", 0)]
    assert found == [(b"a", b"k", [("h", b"1")]), (None, None, []), (b"c", b"", [])]
    assert [record.timestamp for record in kafka.records("one", 0)][:2] == [5, 6]


def test_nothing_is_nothing(make):
    assert make().send_many("t", []).result(0).records == 0


def test_serializers_apply_to_many(make, kafka):
    class Tagging(Serializer):
        def serialize(self, topic: str, headers: MutableHeaders, data: Any) -> bytes:
            headers.add("kind", type(data).__name__.encode())
            return str(data).encode()

    producer = make(key_serializer=StringSerializer(), value_serializer=Tagging())
    producer.send_many("t", [1, 2.5], keys=["a", None]).result(SOON)
    found = sorted((r.value, r.key, [tuple(h) for h in r.headers]) for r in written(kafka))
    assert found == [(b"1", b"a", [("kind", b"int")]), (b"2.5", None, [("kind", b"float")])]


def test_what_cannot_be_serialized_is_told_before_anything_is_sent(make, kafka):
    producer = make()
    with pytest.raises(SerializationError, match="not str") as caught:
        producer.send_many("t", [b"a", "b"])
    assert caught.value.__notes__ == ["row 1; no row was sent"]
    producer.flush(SOON)
    assert written(kafka) == []
    assert errors_counted(producer) == 1


def errors_counted(producer: Producer) -> float:
    return producer.metrics()["producer-metrics"]["record-error-total"]


def test_records_that_are_too_large_are_told_by_their_rows(make, kafka):
    producer = make(max_request_size=1000)
    with pytest.raises(BadRowsError, match=r"row 1: the record takes up to \d+ bytes") as caught:
        producer.send_many("t", [b"a", b"x" * 2000], keys=[b"k", b"k"])
    assert caught.value.count == 1
    assert written(kafka) == []


def test_bytearrays_are_bytes(make, kafka):
    make().send_many("t", [bytearray(b"a"), memoryview(b"b")]).result(SOON)
    assert values(kafka) == [b"a", b"b"]


# ------------------------------------------------------------------------------------------------ send_arrow


def sources() -> dict[str, Any]:
    columns = {"value": [b"a", b"b"], "key": ["1", "2"]}
    return {
        "pyarrow table": pa.table(columns),
        "pyarrow batch": pa.record_batch(columns),
        "pyarrow reader": pa.table(columns).to_reader(),
        "polars": pl.DataFrame(columns),
        "duckdb": duckdb.sql("select * from (values ('a'::blob, '1'), ('b'::blob, '2')) rows(value, key)"),
    }


@pytest.mark.parametrize("source", sorted(sources()))
def test_tables_of_many_libraries_can_be_sent(make, kafka, source):
    assert make().send_arrow("t", sources()[source]).result(SOON).records == 2
    assert sorted((r.value, r.key) for r in written(kafka)) == [(b"a", b"1"), (b"b", b"2")]


def test_serializers_do_not_apply_to_columns(make, kafka):
    make(value_serializer=lambda data: b"never").send_arrow("t", pa.table({"value": ["a"]})).result(SOON)
    assert values(kafka) == [b"a"]


def test_a_topic_column(make, kafka):
    report = make().send_arrow(None, pa.table({"value": ["a", "b"], "topic": ["t", "one"]})).result(SOON)
    assert {place.topic for place in report.partitions} == {"t", "one"}
    assert (values(kafka), values(kafka, "one", 1)) == ([b"a"], [b"b"])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("t", {"value": [b"a"]}), TypeError, "must be an Arrow table"),
        (("t", pa.table({"v": [b"a"]})), ValueError, "no column 'value'"),
        (("t", pa.table({"value": [1]})), TypeError, "must hold bytes or strings"),
        (("", pa.table({"value": [b"a"]})), ValueError, "topic must not be empty"),
        ((7, pa.table({"value": [b"a"]})), TypeError, "topic must be a str"),
    ],
)
def test_what_is_wrong_is_said(make, arguments, error, text):
    with pytest.raises(error, match=text):
        make().send_arrow(*arguments)


def test_on_error_is_one_of_two(make):
    with pytest.raises(ValueError, match='on_error must be "fail" or "skip", not \'drop\''):
        make().send_arrow("t", pa.table({"value": [b"a"]}), on_error="drop")


def test_a_source_that_fails_in_the_middle_sends_nothing_or_says_how_much(make, kafka):
    def batches() -> Any:
        yield pa.record_batch({"value": [b"a", b"b"]})
        raise RuntimeError("the disk is gone")

    def reader() -> Any:
        return pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), batches())

    producer = make()
    with pytest.raises(OSError, match="the disk is gone"):
        producer.send_arrow("t", reader())
    producer.flush(SOON)
    assert written(kafka) == []
    with pytest.raises(OSError, match="the disk is gone") as caught:
        producer.send_arrow("t", reader(), on_error="skip")
    assert "2 rows had been accepted" in caught.value.__notes__[0]
    assert caught.value.bulk_delivery.result(SOON).records == 2
    producer.flush(SOON)
    assert values(kafka) == [b"a", b"b"]


def test_the_data_are_let_go_when_the_call_returns(make):
    before = pa.total_allocated_bytes()
    producer = make()
    bulk = producer.send_arrow("t", pa.table({"value": pa.array([b"v" * 1000] * 1000)}))
    assert pa.total_allocated_bytes() - before < 1_000_000
    bulk.result(SOON)


def test_a_large_table_passes_through_little_memory(make, kafka):
    producer = make(buffer_memory=100_000, batch_size=10_000)
    table = pa.table(
        {"value": [b"%06d" % number * 20 for number in range(5000)], "key": [b"%d" % n for n in range(5000)]}
    )
    report = producer.send_arrow("t", table).result(SOON)
    assert report.records == 5000
    assert len(written(kafka)) == 5000


def test_a_cluster_that_takes_nothing_ends_the_wait(make, kafka):
    kafka.add_fault(Fault(api=PRODUCE, times=None, cut="before"))
    producer = make(buffer_memory=40_000, batch_size=10_000)
    producer.partitions_for("t")
    producer._core.max_block = 0.2
    with pytest.raises(BufferExhaustedError) as caught:
        producer.send_arrow("t", pa.table({"value": [b"v" * 100] * 1000}))
    bulk = caught.value.bulk_delivery
    assert 0 < bulk.accepted < 1000
    assert bulk.accepted + sum(entry.count for entry in bulk.errors) == 1000


# ------------------------------------------------------------------------------------------------ where and when


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_holds_the_rows(version):
    with (
        FakeKafka(topics={"t": 3}, features={"transaction.version": version}) as kafka,
        Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="x", linger_ms=0) as producer,
    ):
        producer.init_transactions()
        table = pa.table(
            {
                "value": [b"%d" % number for number in range(100)],
                "key": [f"k{number}" for number in range(100)],
            }
        )
        with pytest.raises(IllegalStateError):
            producer.send_arrow("t", table)
        with producer.transaction():
            producer.send_arrow("t", table)
            producer.send_many("t", [b"100"])
            producer.flush(SOON)
            assert written(kafka) == []
        assert len(written(kafka)) == 101
        producer.begin_transaction()
        producer.send_arrow("t", table)
        producer.abort_transaction()
        assert len(written(kafka)) == 101


def test_a_closed_producer_takes_nothing(make):
    producer = make()
    producer.close(0)
    with pytest.raises(ProducerClosedError):
        producer.send_many("t", [b"a"])
    assert errors_counted(producer) == 1
    with pytest.raises(ProducerClosedError):
        producer.send_arrow("t", pa.table({"value": [b"a"]}))
    assert errors_counted(producer) == 2


def test_a_producer_from_before_a_fork_takes_nothing(make):
    producer = make()
    producer._core.after_fork_in_child()
    try:
        with pytest.raises(ForkedProducerError):
            producer.send_many("t", [b"a"])
        with pytest.raises(ForkedProducerError):
            producer.send_arrow("t", pa.table({"value": [b"a"]}))
    finally:
        producer._core.forked = False


def test_the_outcome_can_be_awaited_and_followed(make):
    producer = make()
    producer.partitions_for("t")  # a wait in the loop would be warned of
    followed = threading.Event()

    async def send() -> Any:
        bulk = producer.send_many("t", [b"a", b"b"])
        bulk.add_done_callback(lambda _: followed.set())
        return await bulk

    assert asyncio.run(send()).records == 2
    assert followed.wait(SOON)


def test_a_callback_that_raises_breaks_nothing(make, caplog):
    bulk = make().send_many("t", [b"a"])
    bulk.add_done_callback(lambda _: 1 / 0)
    assert bulk.result(SOON).records == 1
    bulk.add_done_callback(lambda _: 1 / 0)
    wait_until(lambda: "a done callback of a bulk delivery raised" in caplog.text)


def test_threads_share_a_producer(make, kafka):
    producer = make(batch_size=2000, buffer_memory=50_000)
    tables = [
        pa.table({"value": [b"%d-%05d" % (thread, n) for n in range(3000)], "key": [str(thread)] * 3000})
        for thread in range(4)
    ]
    threads = [threading.Thread(target=producer.send_arrow, args=("t", table)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    producer.flush(60)
    for thread in range(4):
        mine = [record.value for record in written(kafka) if record.value.startswith(b"%d-" % thread)]
        assert mine == [b"%d-%05d" % (thread, n) for n in range(3000)]
