# SPDX-License-Identifier: Apache-2.0
"""What is in the broker's log files: every batch is valid and the very one that was sent, every record is exact."""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass

import pytest
from fix_broker import ConsumedRecord, LoggedBatch, consume_from
from integration.support import SentBatches, dump_topic

from penstock import Producer, RecordMetadata
from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.core]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")  # each has the partition of its place in this list
SIZES = (0, 1, 2, 63, 64, 65, 100, 1000, 8191, 8192, 16_384, 65_536, 250_000, 900_000)

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Sample:
    """A record to be sent."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True)
class Outcome:
    """What was sent to one partition, what the producer said, and what two tools of Kafka found there."""

    sent: list[Sample]
    acknowledged: list[RecordMetadata]
    checksums: list[tuple[int, int]]
    consumed: list[ConsumedRecord]
    logged: list[LoggedBatch]
    byte_total: int


def make_samples(seed: str) -> list[Sample]:
    """Records of all sizes and with every kind of null, their timestamps in no order."""
    rng = random.Random(seed)
    base_ms = int(time.time() * 1000)

    def data(size: int) -> bytes:
        # Half noise, half repetition: codecs find something, but not everything.
        return (
            rng.randbytes(size - size // 2) + b"penstock" * (size // 16) + b"." * (size // 2 - size // 16 * 8)
        )

    samples = []
    for size in SIZES:
        for key in (None, b"", data(min(size, 3000))):
            headers: Headers = (("null", None), ("empty", b""), ("", b"no name"), ("bytes", data(size % 400)))
            samples.append(
                Sample(key, data(size), headers[: rng.randrange(5)], base_ms + rng.randrange(-(10**9), 1000))
            )
    samples += [Sample(key, None, (), base_ms - number) for number, key in enumerate((None, b"", b"gone"))]
    samples.append(Sample(data(900_000), b"", (), base_ms))
    samples.append(Sample(None, None, (("only", data(500_000)),), base_ms))
    # Many small ones, so that batches hold more than a few.
    samples += [Sample(b"%d" % number, data(number % 50), (), base_ms + number) for number in range(2000)]
    rng.shuffle(samples)
    return samples


@pytest.fixture(scope="module")
def outcomes(dev_cluster: DevCluster) -> dict[str, Outcome]:
    """Send the samples with every codec, then read everything back, once for all tests of this file."""
    topic = f"log-{uuid.uuid4().hex[:12]}"
    dev_cluster.create_topic(topic, len(CODECS))
    batches = SentBatches()
    sent = {}
    with pytest.MonkeyPatch.context() as patch:
        batches.watch(patch)
        for partition, codec in enumerate(CODECS):
            sent[codec] = send_samples(dev_cluster, topic, partition, codec)
    consumed: defaultdict[int, list[ConsumedRecord]] = defaultdict(list)
    for record in consume_from(dev_cluster, topic):
        consumed[record.partition].append(record)
    logged = dump_topic(dev_cluster, topic)
    return {
        codec: Outcome(
            *sent[codec][:2],
            batches.checksums(partition),
            consumed[partition],
            logged[partition],
            sent[codec][2],
        )
        for partition, codec in enumerate(CODECS)
    }


def send_samples(
    cluster: DevCluster, topic: str, partition: int, codec: str
) -> tuple[list[Sample], list[RecordMetadata], int]:
    samples = make_samples(codec)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type=codec) as producer:
        deliveries = [
            producer.send(
                topic,
                sample.value,
                sample.key,
                headers=sample.headers,
                partition=partition,
                timestamp_ms=sample.timestamp_ms,
            )
            for sample in samples
        ]
        producer.flush(60)
        byte_total = producer.metrics()["producer-topic-metrics"][topic]["byte-total"]
    return samples, [delivery.result(0) for delivery in deliveries], byte_total


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def outcome(outcomes: dict[str, Outcome], codec: str) -> Outcome:
    return outcomes[codec]


def test_every_batch_in_the_log_is_valid(outcome: Outcome, codec: str) -> None:
    assert len(outcome.logged) > 10
    assert all(batch.is_valid and batch.magic == 2 for batch in outcome.logged)
    # A batch that does not gain from its codec is compressed all the same; the header says so.
    assert {batch.codec for batch in outcome.logged} == {codec}


def test_the_log_holds_the_batches_that_were_sent_and_no_others(outcome: Outcome) -> None:
    logged = [(int(batch.fields["size"]), int(batch.fields["crc"])) for batch in outcome.logged]
    assert logged == outcome.checksums
    assert sum(size for size, _ in logged) == outcome.byte_total


def test_the_headers_of_batches_agree_with_their_records(outcome: Outcome) -> None:
    records = [record for batch in outcome.logged for record in batch.records]
    assert all(batch.count == len(batch.records) for batch in outcome.logged)
    assert [record.offset for record in records] == list(range(len(outcome.sent)))
    for batch in outcome.logged:
        assert int(batch.fields["CreateTime"]) == max(record.timestamp_ms for record in batch.records)
    sizes = [
        (-1 if sample.key is None else len(sample.key), -1 if sample.value is None else len(sample.value))
        for sample in outcome.sent
    ]
    assert [(record.key_size, record.value_size) for record in records] == sizes


def test_a_consumer_reads_exactly_what_was_sent(outcome: Outcome) -> None:
    read = [Sample(found.key, found.value, found.headers, found.timestamp_ms) for found in outcome.consumed]
    # Compared one by one: the difference of two lists of megabytes would take pytest minutes to draw.
    assert len(read) == len(outcome.sent)
    wrong = [number for number, pair in enumerate(zip(read, outcome.sent, strict=True)) if pair[0] != pair[1]]
    assert wrong == []


def test_the_producer_told_where_each_record_is(outcome: Outcome) -> None:
    assert [found.offset for found in outcome.acknowledged] == list(range(len(outcome.sent)))
    assert [found.timestamp for found in outcome.acknowledged] == [
        sample.timestamp_ms for sample in outcome.sent
    ]


def test_codecs_compress(outcomes: dict[str, Outcome]) -> None:
    plain = outcomes["none"].byte_total
    assert all(outcomes[codec].byte_total < 0.8 * plain for codec in CODECS if codec != "none")
