# SPDX-License-Identifier: Apache-2.0
"""Tables on a real Kafka: what Kafka's own consumer reads back is what the table has, row by row."""

from __future__ import annotations

import datetime

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from fix_broker import Consume, MakeTopic

from penstock import Producer
from penstock._primitives_cy import partition_for_key
from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOON = 60.0
MOMENT_MS = 1_767_323_045_678


@pytest.mark.core
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_table_arrives_as_it_is(
    dev_cluster: DevCluster, topic: MakeTopic, consume: Consume, compression: str
) -> None:
    name = topic(3)
    count = 2000
    table = pa.table(
        {
            "key": [None if n % 7 == 0 else f"key-{n % 50}" for n in range(count)],
            "value": [None if n % 11 == 0 else b"%d" % n * (n % 40) for n in range(count)],
            "headers": [[{"key": "row", "value": b"%d" % n}] for n in range(count)],
            "timestamp": pa.array([MOMENT_MS + n for n in range(count)], pa.timestamp("ms", tz="UTC")),
            "partition": pa.array([n % 3 if n % 5 == 0 else None for n in range(count)], pa.int8()),
        }
    )
    with Producer(
        bootstrap_servers=dev_cluster.bootstrap_servers, compression_type=compression, batch_size=5000
    ) as producer:
        report = producer.send_arrow(name, table).result(SOON)
    assert report.records == count
    records = consume(name, count=count)
    read = {int(record.headers[0][1] or b""): record for record in records}
    for number, row in enumerate(table.to_pylist()):
        record = read[number]
        key = None if row["key"] is None else row["key"].encode()
        assert (record.key, record.value, record.timestamp_ms) == (key, row["value"], MOMENT_MS + number)
        if row["partition"] is not None:
            assert record.partition == row["partition"]
        elif key is not None:
            assert record.partition == partition_for_key(key, 3)
    for partition in range(3):
        mine = [int(record.headers[0][1] or b"") for record in records if record.partition == partition]
        assert mine == sorted(mine)
        place = report.partitions[name, partition]  # type: ignore[index]  # a TopicPartition is a tuple
        assert (place.records, place.first_offset, place.last_offset) == (len(mine), 0, len(mine) - 1)


def test_polars_and_duckdb_in_a_transaction(
    dev_cluster: DevCluster, topic: MakeTopic, consume: Consume
) -> None:
    name = topic(2)
    frame = pl.DataFrame(
        {
            "value": ["a", "b" * 100],
            "timestamp": [datetime.datetime.fromtimestamp(MOMENT_MS / 1000, datetime.UTC)] * 2,
        }
    )
    relation = duckdb.sql(
        "select 'row ' || number as value, map {'n': number::varchar} as headers from range(500) r(number)"
    )
    with Producer(bootstrap_servers=dev_cluster.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_arrow(name, frame)
        producer.abort_transaction()
        with producer.transaction():
            producer.send_arrow(name, frame)
            producer.send_arrow(name, relation)
            producer.send_many(name, [b"last"], keys=[b"k"])
    records = consume(name, isolation_level="read_committed")
    found = sorted(record.value or b"" for record in records)
    assert found == sorted([b"a", b"b" * 100, b"last", *(b"row %d" % n for n in range(500))])
