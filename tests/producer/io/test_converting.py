# SPDX-License-Identifier: Apache-2.0
"""Batches for leaders that store older message formats: what these get, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from network.fakes import api_versions_body
from producer.fakes_sender import QUIET, Rig, produce_body

from penstock.errors import InvalidRecordError, KafkaError, MessageTooLargeError, UnsupportedVersionError
from penstock.producer.io import converting
from penstock.protocol.messages import API_VERSIONS, PRODUCE
from penstock.protocol.releases import ranges_of
from penstock.records.legacy.reader import LegacyRecord, read_set
from penstock.records.reader import read_batches

MAGIC_AT = 16
HIGHEST = {"0.9.0": 1, "0.10.2": 2}  # version of Produce
MAGIC = {"0.9.0": 0, "0.10.2": 1}


def is_of(rig: Rig, release: str, broker: int = 0) -> None:
    """Let a broker offer the versions of a release."""
    rows = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in ranges_of(release).items()
    ]
    rig.brokers[broker].rules[API_VERSIONS.key] = lambda _: {"error_code": 0, "api_keys": rows}


def old_rig(release: str = "0.10.2", brokers: int = 1, **options: Any) -> Rig:
    rig = Rig(brokers, **(QUIET | options))
    for broker in range(brokers):
        is_of(rig, release, broker)
    return rig


def raw_set(request: Any) -> bytes:
    (topic,) = request.body["topic_data"]
    (row,) = topic["partition_data"]
    return bytes(row["records"])


def sent(request: Any) -> list[LegacyRecord]:
    return list(read_set(raw_set(request)))


def values(request: Any) -> list[bytes | None]:
    return [record.value for record in sent(request)]


def conversions(rig: Rig) -> int:
    return int(rig.metrics()["record-conversion-total"])


@pytest.fixture(params=HIGHEST)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_a_batch_is_sent_as_a_message_set(release: str, codec: str) -> None:
    rig = old_rig(release, compression_type=codec, linger_ms=10)
    rig.know("t")
    free = rig.available_memory
    deliveries = [
        rig.send("t", b"a" * 500, key=b"k", timestamp_ms=77),
        rig.send("t", None, timestamp_ms=78),
        rig.send("t", b"", key=b"", timestamp_ms=79),
    ]
    request = rig.await_request()
    assert request.version == HIGHEST[release]
    magic = MAGIC[release]
    assert raw_set(request)[MAGIC_AT] == magic
    assert [(record.key, record.value) for record in sent(request)] == [
        (b"k", b"a" * 500),
        (None, None),
        (b"", b""),
    ]
    times = [77, 78, 79] if magic else [None, None, None]
    assert [record.timestamp for record in sent(request)] == times
    assert (len(raw_set(request)) < 500) == (codec != "none")
    rig.answer(base_offset=40)
    assert [delivery.result(0).offset for delivery in deliveries] == [40, 41, 42]
    assert deliveries[0].result(0).timestamp == 77
    assert rig.available_memory == free
    assert conversions(rig) == 3


def test_a_new_leader_costs_no_conversion() -> None:
    rig = Rig()
    rig.know("t")
    delivery = rig.send("t", b"a", headers=[("h", b"1")])
    request = rig.await_request()
    assert raw_set(request)[MAGIC_AT] == 2
    rig.answer()
    delivery.result(0)
    assert conversions(rig) == 0
    assert rig.metrics()["conversion-time-ns-total"] == 0


def test_a_batch_for_an_old_leader_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = old_rig(compression_type="gzip")
    rig.know("t")
    compressed: list[int] = []
    sealer = rig.parts.accumulator.sealer
    original = sealer.codec.compress

    def count(self: Any, raw: Any) -> Any:
        compressed.append(len(raw))
        return original(raw)

    monkeypatch.setattr(type(sealer.codec), "compress", count)
    rig.send("t", b"a" * 1000)
    assert values(rig.await_request()) == [b"a" * 1000]
    assert len(compressed) == 1


def test_a_retry_uses_the_same_bytes(release: str) -> None:
    rig = old_rig(release)
    rig.know("t")
    delivery = rig.send("t", b"a")
    first = raw_set(rig.await_request())
    rig.answer(error_code=6)
    rig.run_until(rig.waiting)
    assert raw_set(rig.waiting()[0]) == first
    assert conversions(rig) == 1
    rig.answer(base_offset=3)
    assert delivery.result(0).offset == 3


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("releases", [("0.10.2", "4.3"), ("4.3", "0.10.2"), ("0.9.0", "0.10.2")])
def test_a_retry_at_a_leader_of_another_release_has_its_format(codec: str, releases: tuple[str, str]) -> None:
    rig = Rig(2, compression_type=codec, **QUIET)
    for broker, name in enumerate(releases):
        if name in HIGHEST:
            is_of(rig, name, broker)
    rig.know("t", leaders=[0])
    delivery = rig.send("t", b"a" * 100, timestamp_ms=5)
    assert raw_set(rig.await_request(0))[MAGIC_AT] == MAGIC.get(releases[0], 2)
    rig.cluster.move("t", 0, 1)
    rig.answer(error_code=6)
    raw = raw_set(rig.await_request(1))
    assert raw[MAGIC_AT] == MAGIC.get(releases[1], 2)
    if releases[1] in MAGIC:
        (record,) = read_set(raw)
    else:
        (batch,) = read_batches(raw)
        (record,) = batch.records()
    assert (record.value, record.timestamp) == (b"a" * 100, 5)
    rig.answer(broker=1, base_offset=9)
    assert delivery.result(0).offset == 9


@pytest.mark.parametrize("acks", ["0", "1"])
def test_acknowledgements(release: str, acks: str) -> None:
    rig = old_rig(release, acks=acks)
    rig.know("t")
    delivery = rig.send("t", b"a")
    request = rig.await_request()
    assert request.body["acks"] == int(acks)
    if acks == "1":
        rig.answer(base_offset=2)
    rig.run_until(delivery.done)
    assert delivery.result(0).offset == (2 if acks == "1" else -1)


def test_a_set_that_is_too_large_is_split() -> None:
    rig = old_rig(linger_ms=10, compression_type="gzip")
    rig.know("t")
    deliveries = [rig.send("t", bytes([number]) * 10) for number in range(4)]
    rig.await_request()
    rig.answer(error_code=10)
    offset = 0
    for _ in range(20):
        if all(delivery.done() for delivery in deliveries):
            break
        request = rig.await_request()
        many = len(sent(request))
        if many > 1 or values(request) == [b"\2" * 10]:
            rig.answer(error_code=10)
        else:
            rig.answer(base_offset=offset)
            offset += 1
    found = [delivery.exception(0) for delivery in deliveries]
    assert [type(error) for error in found] == [type(None), type(None), MessageTooLargeError, type(None)]
    assert [delivery.result(0).offset for delivery in deliveries if delivery.exception(0) is None] == [
        0,
        1,
        2,
    ]


# ------------------------------------------------------------------------------------------------ what is refused


def test_records_with_headers_fail_alone(release: str) -> None:
    rig = old_rig(release, linger_ms=10)
    rig.know("t")
    order: list[int] = []
    told: list[Callable[..., None]] = [lambda *_, number=number: order.append(number) for number in range(5)]
    headers = {1: [("trace", b"1")], 3: [("a", b""), ("b", None), ("c", b""), ("d", b"")]}
    deliveries = [
        rig.send("t", b"%d" % number, headers=headers.get(number), on_delivery=told[number])
        for number in range(5)
    ]
    for expected in ([b"0"], [b"2"], [b"4"]):
        request = rig.await_request()
        assert values(request) == expected
        rig.answer(base_offset=int(expected[0]))
    rig.run_until(lambda: all(delivery.done() for delivery in deliveries))
    for number in (0, 2, 4):
        assert deliveries[number].result(0).offset == number
    for number, names in ((1, "'trace'"), (3, "'a', 'b', 'c', ...")):
        error = deliveries[number].exception(0)
        assert isinstance(error, InvalidRecordError)
        assert error.names_record
        assert not error.fatal
        text = str(error)
        for part in (f"t-0 has headers ({names})", "broker 0 at b0:9092", f"Kafka {release}", "Kafka 0.11"):
            assert part in text, text
    assert order == [0, 1, 2, 3, 4]
    assert rig.metrics()["record-error-total"] == 2


def test_a_batch_of_records_with_headers_alone_fails() -> None:
    rig = old_rig(linger_ms=10)
    rig.know("t")
    free = rig.available_memory
    deliveries = [rig.send("t", b"v", headers=[("h", b"1")]) for _ in range(3)]
    rig.run_until(lambda: all(delivery.done() for delivery in deliveries))
    assert {type(delivery.exception(0)) for delivery in deliveries} == {InvalidRecordError}
    assert all("has headers ('h')" in str(delivery.exception(0)) for delivery in deliveries)
    assert not rig.seen(PRODUCE)
    assert rig.available_memory == free
    assert not rig.parts.accumulator.has_incomplete()


def test_other_partitions_of_the_request_are_sent() -> None:
    rig = old_rig(linger_ms=10, max_in_flight_requests_per_connection=1)
    rig.know("t", 2)
    refused = rig.send("t", b"a", partition=0, headers=[("h", b"1")])
    written = rig.send("t", b"b", partition=1)
    request = rig.await_request()
    assert values(request) == [b"b"]
    rig.answer()
    assert isinstance(refused.exception(0), InvalidRecordError)
    written.result(0)
    after = rig.send("t", b"c", partition=0)  # its partition is not muted
    assert values(rig.await_request()) == [b"c"]
    rig.answer()
    after.result(0)


def test_zstd_is_refused_with_the_release() -> None:
    rig = old_rig(compression_type="zstd")
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.run_until(delivery.done)
    error = delivery.exception(0)
    assert isinstance(error, UnsupportedVersionError)
    for part in ("compression.type=zstd", "Kafka 2.1", "broker 0 at b0:9092 (Kafka 0.10.2", "gzip"):
        assert part in str(error)
    assert not rig.seen(PRODUCE)


def test_zstd_is_refused_by_brokers_that_know_batches_but_not_the_codec() -> None:
    rig = Rig(compression_type="zstd")
    rig.brokers[0].rules[API_VERSIONS.key] = lambda _: api_versions_body(Produce=(0, 6))
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.run_until(delivery.done)
    assert isinstance(delivery.exception(0), UnsupportedVersionError)
    assert "compression.type=zstd needs Kafka 2.1" in str(delivery.exception(0))


def test_a_leader_that_takes_batches_is_asked_once_for_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(**QUIET)
    rig.know("t")
    sender = rig.parts.sender
    asked: list[int] = []
    is_old = converting.Conversions.is_old

    def watched(known: Any, node_id: int, *args: Any) -> bool:
        asked.append(node_id)
        return is_old(known, node_id, *args)

    monkeypatch.setattr(converting.Conversions, "is_old", watched)

    def send() -> None:
        delivery = rig.send("t", b"a")
        rig.await_request()
        rig.answer()
        delivery.result(0)

    send()
    send()
    assert asked == [0]
    sender.keep_nodes((0,))
    send()
    assert asked == [0]
    sender.keep_nodes(())
    send()
    assert asked == [0, 0]
    is_of(rig, "0.10.2")
    rig.brokers[0].peers[-1].reset()
    delivery = rig.send("t", b"b")
    assert values(rig.await_request()) == [b"b"]  # in the old format
    rig.answer()
    delivery.result(0)
    assert len(asked) == 3


def test_lost_timestamps_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = old_rig("0.9.0", brokers=2)
    rig.know("t", 2)
    with caplog.at_level(logging.WARNING, logger="penstock.producer"):
        for partition in (0, 1, 0):
            delivery = rig.send("t", b"a", partition=partition)
            broker = rig.cluster.topics["t"].leaders[partition]
            rig.await_request(broker)
            rig.answer(broker=broker)
            delivery.result(0)
    told = [record.getMessage() for record in caplog.records if "timestamps" in record.getMessage()]
    assert len(told) == 1
    assert "(Kafka 0.9.0) cannot store timestamps, which need Kafka 0.10" in told[0]


def test_a_conversion_that_breaks_fails_its_batch_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = old_rig(linger_ms=10)
    rig.know("t", 2)
    original = converting.convert

    def break_one(batch: Any, magic: int, codec: Any) -> Any:
        if b"bad" in bytes(batch):
            raise RuntimeError("it broke")
        return original(batch, magic, codec)

    monkeypatch.setattr(converting, "convert", break_one)
    free = rig.available_memory
    failed = rig.send("t", b"bad", partition=0)
    written = rig.send("t", b"good", partition=1)
    assert values(rig.await_request()) == [b"good"]
    rig.answer()
    written.result(0)
    error = failed.exception(0)
    assert type(error) is KafkaError
    assert "could not be converted for broker 0 at b0:9092" in str(error)
    assert rig.available_memory == free
    caplog.clear()  # of what is logged for people


# ------------------------------------------------------------------------------------------------ memory


def test_no_further_request_while_too_much_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "MOST_HELD", 1000)
    rig = old_rig(batch_size=600)
    rig.know("t")
    deliveries = [rig.send("t", b"%d" % number + b"x" * 500) for number in range(4)]
    rig.settle()
    assert len(rig.waiting()) == 2
    rig.answer(base_offset=0)
    rig.settle()
    assert len(rig.waiting()) == 2
    for offset in (1, 2, 3):
        rig.answer(base_offset=offset)
        rig.settle()
    assert [delivery.result(0).offset for delivery in deliveries] == [0, 1, 2, 3]


def test_in_one_turn_no_more_old_leaders_get_a_request_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All leaders have something ready in the same turn: what is kept for them must not grow with their number."""
    brokers = range(8)
    rig = old_rig(brokers=8, linger_ms=50, max_request_size=5000)
    rig.know("t", leaders=list(brokers))
    monkeypatch.setattr(converting, "MOST_HELD", 8 * 5 * 5000)
    for _ in range(2):  # when all are connected, they need not wait for each other
        first = [rig.send("t", b"x" * 500, partition=partition) for partition in brokers]
        rig.run_until(lambda: all(rig.waiting(broker) for broker in brokers))
        for broker in brokers:
            rig.answer(broker=broker)
        assert all(delivery.done() for delivery in first)
    monkeypatch.setattr(converting, "MOST_HELD", 1500)
    deliveries = [rig.send("t", b"x" * 500, partition=partition) for partition in brokers]
    rig.run_until(lambda: any(rig.waiting(broker) for broker in brokers))
    asked = []
    while not all(delivery.done() for delivery in deliveries):
        rig.settle()
        now = [broker for broker in brokers if rig.waiting(broker)]
        assert len(now) == min(3, 8 - len(asked))
        asked.append(now[0])
        rig.answer(broker=now[0], base_offset=7)
    assert sorted(asked) == list(brokers)
    assert [delivery.result(0).offset for delivery in deliveries] == [7] * 8


def test_a_full_producer_goes_on_when_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be sent again keeps its message set, but does not keep others from being sent."""
    monkeypatch.setattr(converting, "MOST_HELD", 100)
    rig = old_rig()
    rig.know("t")
    delivery = rig.send("t", b"x" * 500)
    rig.await_request()
    rig.answer(error_code=6)
    rig.run_until(rig.waiting)
    rig.answer(base_offset=1)
    assert delivery.result(0).offset == 1


def test_batches_that_wait_to_be_sent_again_keep_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many partitions whose leader is not known for a while: each has a batch that was converted."""
    monkeypatch.setattr(converting, "MOST_HELD", 1500)
    rig = old_rig(retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    rig.know("t", leaders=[0] * 8)
    known = []
    for partition in range(8):
        known.append(rig.send("t", b"x" * 500, partition=partition))
        rig.await_request()
        rig.answer(error_code=6)
        rig.settle()
    sets = [batch.legacy for queue in rig.parts.accumulator.active_queues() for batch in queue.batches]
    assert len(sets) == 8
    assert 500 < sum(len(found[1]) for found in sets if found is not None) <= 1500 + 600
    while not all(delivery.done() for delivery in known):
        rig.run_until(rig.waiting)
        rig.answer(base_offset=3)
    assert [delivery.exception(0) for delivery in known] == [None] * 8


def test_the_answer_of_an_old_broker_is_understood(release: str) -> None:
    rig = old_rig(release)
    rig.know("t")
    delivery = rig.send("t", b"a")
    request = rig.await_request()
    body = produce_body(request, base_offset=7)
    if release == "0.10.2":
        body["responses"][0]["partition_responses"][0]["log_append_time_ms"] = 1234
    rig.brokers[0].answer(request, body)
    rig.settle(2)
    result = delivery.result(0)
    assert result.offset == 7
    assert release == "0.9.0" or result.timestamp == 1234
