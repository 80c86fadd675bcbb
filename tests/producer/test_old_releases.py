# SPDX-License-Identifier: Apache-2.0
"""A whole producer and the fake cluster as Kafka 0.9 to 2.8: what works by itself, and what is said of the rest."""

from __future__ import annotations

import random
from typing import Any

import pytest
from producer.fakes_txn import ClusterRig

from penstock.error_codes import ErrorCode
from penstock.errors import InvalidRecordError, TransactionAbortableError, UnsupportedVersionError
from penstock.protocol.messages import INIT_PRODUCER_ID, PRODUCE
from penstock.testing.faults import Fault
from penstock.testing.releases import RELEASES

BEFORE_IDEMPOTENCE = ["0.9.0", "0.10.0", "0.10.1", "0.10.2"]
BEFORE_ZSTD = [*BEFORE_IDEMPOTENCE, "0.11.0", "1.0", "1.1", "2.0"]
LEGACY_CODECS = ["none", "gzip", "snappy", "lz4"]


def rig_for(release: str, brokers: int = 1, topics: Any = None, **options: Any) -> ClusterRig:
    if release == "0.9.0":
        options = {"broker_version_fallback": "0.9.0"} | options
    return ClusterRig(brokers, topics, release=release, **options)


def deliver(rig: ClusterRig, value: bytes | None, topic: str = "t", partition: int = 0, **more: Any) -> Any:
    delivery = rig.send(topic, value, partition=partition, **more)
    rig.run_until(delivery.done)
    return delivery.result(0)


def most_in_flight(rig: ClusterRig) -> int:
    """How many of eight batches of a partition are in flight at a time."""
    rig.kafka.faults.add(Fault(api=PRODUCE, delay=0.5, times=8))
    sent = [rig.send("t", b"%d" % number * 60, partition=0) for number in range(8)]
    rig.run_for(0.2)
    found = rig.parts.client.in_flight_count()
    rig.run_until(lambda: all(delivery.done() for delivery in sent), turns=2000)
    return int(found)


def formats(rig: ClusterRig, topic: str = "t", partition: int = 0) -> set[int]:
    return set(rig.kafka.partition(topic, partition).log.formats.values())


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "is switched off" in each.getMessage()]


# ------------------------------------------------------------------------------------------------ what works


@pytest.mark.parametrize("codec", LEGACY_CODECS)
@pytest.mark.parametrize("release", [name for name in RELEASES if name < "2.4"])
def test_records_are_written_with_default_settings(release: str, codec: str) -> None:
    rig = rig_for(release, compression_type=codec, linger_ms=5)
    stored = RELEASES[release].message_format
    sent = [
        rig.send("t", b"v%d" % number * 50, key=b"k", partition=0, timestamp_ms=1000 + number)
        for number in range(20)
    ]
    sent += [rig.send("t", None, key=b"k", partition=0, timestamp_ms=1020)]
    sent += [rig.send("t", b"", partition=0, timestamp_ms=1021)]
    rig.run_until(lambda: all(delivery.done() for delivery in sent))
    assert [delivery.result(0).offset for delivery in sent] == list(range(22))
    found = rig.kafka.records("t", 0)
    expected = [(b"k", b"v%d" % number * 50) for number in range(20)] + [(b"k", None), (None, b"")]
    assert [(record.key, record.value) for record in found] == expected
    times = [1000 + number if stored else -1 for number in range(22)]
    assert [record.timestamp for record in found] == times
    assert formats(rig) == {stored}
    highest = RELEASES[release].ranges[PRODUCE.key][1]
    assert {request.version for request in rig.asked(PRODUCE)} == {highest}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_every_kind_of_acknowledgement(release: str, acks: str) -> None:
    rig = rig_for(release, acks=acks)
    for number in range(3):
        deliver(rig, b"%d" % number)
    rig.settle()
    assert rig.values() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(api=PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2),
        Fault(api=PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(api=PRODUCE, cut="before"),
    ],
    ids=["moved", "few", "cut"],
)
def test_retries(release: str, fault: Fault) -> None:
    rig = rig_for(
        release, retry_backoff_ms=10, retry_backoff_max_ms=10, max_in_flight_requests_per_connection=1
    )
    deliver(rig, b"before")
    rig.kafka.faults.add(fault)
    sent = [rig.send("t", b"%d" % number, partition=0) for number in range(5)]
    rig.run_until(lambda: all(delivery.done() for delivery in sent), turns=1000)
    assert rig.values() == [b"before", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_large_records_and_splits(release: str) -> None:
    rig = rig_for(release, compression_type="gzip", linger_ms=5, batch_size=200_000)
    rig.kafka.create_topic("small", 1, configs={"max.message.bytes": "3000"})
    noise = random.Random(5)
    values = [noise.randbytes(900) for _ in range(12)]
    sent = [rig.send("small", value, partition=0) for value in values]
    rig.run_until(lambda: all(delivery.done() for delivery in sent), turns=1000)
    assert [record.value for record in rig.kafka.records("small", 0)] == values
    large = noise.randbytes(900_000)
    assert deliver(rig, large).offset == 0
    assert rig.values() == [large]


# ------------------------------------------------------------------------------------------------ idempotence


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_idempotence_by_default_is_switched_off_with_one_warning(
    release: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_for(release, 2, {"t": 2})
    assert rig.metrics()["idempotence-enabled"] == 1
    for number in range(4):
        deliver(rig, b"%d" % number, partition=number % 2)
    assert rig.metrics()["idempotence-enabled"] == 0
    (text,) = told(caplog)
    for part in ("idempotence is switched off for all records", f"Kafka {release}", "since 0.11", "twice"):
        assert part in text


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_idempotence_that_was_asked_for_is_an_error(release: str) -> None:
    rig = rig_for(release, enable_idempotence=True)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_until(delivery.done)
    error = delivery.exception(0)
    assert isinstance(error, UnsupportedVersionError)
    for part in (
        "enable.idempotence=true",
        "broker",
        f"Kafka {release}",
        "since 0.11",
        "Leave the option out",
    ):
        assert part in str(error), error
    assert rig.values() == []
    assert rig.metrics()["idempotence-enabled"] == 1


def test_idempotence_that_was_declined_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_for("0.10.2", enable_idempotence=False)
    deliver(rig, b"a")
    assert told(caplog) == []
    assert rig.metrics()["idempotence-enabled"] == 0


@pytest.mark.parametrize("release", ["0.11.0", "1.1", "2.1", "2.8", "4.3"])
def test_newer_brokers_number_batches(release: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_for(release)
    deliver(rig, b"a", headers=[("h", b"1")])
    deliver(rig, b"b")
    (first, second) = rig.kafka.partition("t", 0).log.batches
    assert (first.base_sequence, second.base_sequence) == (0, 1)
    assert rig.metrics()["idempotence-enabled"] == 1
    assert rig.metrics()["record-conversion-total"] == 0
    assert told(caplog) == []


@pytest.mark.parametrize("mode", [{"enable_idempotence": True}, {}, {"transactional_id": "x"}])
@pytest.mark.parametrize(("release", "most"), [("0.11.0", 1), ("1.0", 5), ("2.8", 5)])
def test_no_more_is_in_flight_than_the_broker_remembers(
    release: str, most: int, mode: dict[str, Any]
) -> None:
    """Kafka 0.11 knows only the last batch of a producer again; what was before it would be written twice."""
    rig = rig_for(release, retry_backoff_ms=10, retry_backoff_max_ms=10, batch_size=100, **mode)
    if "transactional_id" in mode:
        rig.init()
        rig.begin()
    deliver(rig, b"first")
    rig.kafka.faults.add(Fault(api=PRODUCE, delay=0.5, times=most))
    sent = [rig.send("t", b"%d" % number * 60, partition=0) for number in range(8)]
    rig.run_for(0.2)
    assert rig.parts.client.in_flight_count() == most
    rig.kafka.drop_connections()
    rig.run_until(lambda: all(delivery.done() for delivery in sent), turns=2000)
    if "transactional_id" in mode:
        rig.commit()
    assert rig.values() == [b"first", *(b"%d" % number * 60 for number in range(8))]


def test_after_an_upgrade_more_is_in_flight_again() -> None:
    rig = rig_for("0.11.0", retry_backoff_ms=10, retry_backoff_max_ms=10, batch_size=100)
    deliver(rig, b"first")
    rig.kafka.set_release(0, "2.8")
    rig.kafka.drop_connections()
    deliver(rig, b"second")
    assert most_in_flight(rig) == 5


def test_after_the_old_broker_has_left_more_is_in_flight_again() -> None:
    """While it is there, also the others get one batch at a time: any of them may lose its partitions to it."""
    rig = rig_for("2.8", 2, {"t": 2}, retry_backoff_ms=10, retry_backoff_max_ms=10, batch_size=100)
    for partition in range(2):
        rig.kafka.move_leader("t", partition, partition)
    rig.kafka.set_release(1, "0.11.0")
    deliver(rig, b"first")
    assert most_in_flight(rig) == 5
    deliver(rig, b"second", partition=1)
    assert most_in_flight(rig) == 1
    rig.kafka.move_leader("t", 1, 0)
    rig.kafka.stop_broker(1)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_for(1)
    assert list(rig.parts.metadata.snapshot.nodes) == [0]
    deliver(rig, b"third")
    assert most_in_flight(rig) == 5


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_transactions_are_refused_with_the_release(release: str) -> None:
    rig = rig_for(release, transactional_id="x")
    with pytest.raises(UnsupportedVersionError) as caught:
        rig.init()
    assert "transactional.id needs Kafka 0.11" in str(caught.value)
    assert str(caught.value).count("UNSUPPORTED_VERSION") == 1


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_idempotence_that_was_asked_for_is_refused_in_one_sentence(release: str) -> None:
    rig = rig_for(release, enable_idempotence=True)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_until(delivery.done)
    error = delivery.exception(0)
    assert isinstance(error, UnsupportedVersionError)
    assert str(error).count("UNSUPPORTED_VERSION") == 1


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("release", BEFORE_IDEMPOTENCE)
def test_headers_are_refused_and_the_others_written(release: str) -> None:
    rig = rig_for(release, linger_ms=5)
    deliver(rig, b"before")
    sent = [
        rig.send("t", b"%d" % number, partition=0, headers=[("h", b"1")] if number == 1 else None)
        for number in range(3)
    ]
    rig.run_until(lambda: all(delivery.done() for delivery in sent))
    assert isinstance(sent[1].exception(0), InvalidRecordError)
    assert f"Kafka {release}" in str(sent[1].exception(0))
    assert rig.values() == [b"before", b"0", b"2"]
    assert [delivery.result(0).offset for delivery in (sent[0], sent[2])] == [1, 2]


@pytest.mark.parametrize("release", BEFORE_ZSTD)
def test_zstd_is_refused_before_2_1(release: str) -> None:
    rig = rig_for(release, compression_type="zstd", enable_idempotence=False)
    delivery = rig.send("t", b"a", partition=0)
    rig.run_until(delivery.done)
    error = delivery.exception(0)
    assert isinstance(error, UnsupportedVersionError)
    assert "zstd needs Kafka 2.1" in str(error)
    assert release.removesuffix(".0") in str(error)


def test_zstd_works_from_2_1_on() -> None:
    rig = rig_for("2.1", compression_type="zstd")
    deliver(rig, b"a")
    assert rig.values() == [b"a"]


# ------------------------------------------------------------------------------------------------ mixed clusters


@pytest.mark.parametrize("releases", [("0.10.2", "2.8"), ("2.8", "0.10.2"), ("0.10.0", "0.11.0")])
def test_each_leader_gets_the_format_of_its_own(
    releases: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_for(releases[0], 2)
    rig.kafka.assign_topic("u", [[0], [1]])
    rig.kafka.set_release(1, releases[1])
    for number in range(6):
        deliver(rig, b"%d" % number, "u", number % 2)
    for partition, name in enumerate(releases):
        assert rig.values("u", partition) == [b"%d" % number for number in range(partition, 6, 2)]
        assert formats(rig, "u", partition) == {RELEASES[name].message_format}
    assert len(told(caplog)) == 1
    assert rig.metrics()["idempotence-enabled"] == 0
    assert rig.metrics()["record-conversion-total"] == 3


def test_an_old_leader_is_an_error_where_idempotence_was_asked_for() -> None:
    rig = ClusterRig(2, release="2.8", enable_idempotence=True)
    rig.kafka.assign_topic("u", [[0], [1]])
    deliver(rig, b"a", "u", 0)
    rig.kafka.set_release(1, "0.10.2")
    delivery = rig.send("u", b"b", partition=1)
    rig.run_until(delivery.done)
    error = delivery.exception(0)
    assert isinstance(error, UnsupportedVersionError)
    for part in ("enable.idempotence=true needs Kafka 0.11", "broker 1", "Kafka 0.10.2"):
        assert part in str(error)
    assert rig.values("u", 1) == []


def test_an_old_leader_is_an_error_in_a_transaction() -> None:
    rig = ClusterRig(2, release="2.8", transactional_id="x")
    rig.kafka.assign_topic("u", [[1]])
    rig.kafka.move_transaction_coordinator("x", 0)
    rig.init()
    rig.begin()
    rig.kafka.set_release(1, "0.10.2")
    delivery = rig.send("u", b"a", partition=0)
    rig.run_until(delivery.done)
    error = delivery.exception(0)
    assert isinstance(error, UnsupportedVersionError)
    for part in ("transactional.id needs Kafka 0.11", "broker 1", "Kafka 0.10.2"):
        assert part in str(error)
    with pytest.raises(TransactionAbortableError, match=r"0\.11"):
        rig.commit()
    rig.abort()
    assert rig.values("u", 0, "read_uncommitted") == []


def test_a_broker_is_upgraded_under_a_running_producer() -> None:
    rig = rig_for("0.10.2", 1, {"t": 1}, retry_backoff_ms=10, retry_backoff_max_ms=10)
    sent = []
    for number, release in enumerate(["0.10.2", "0.11.0", "2.8", "4.3", "0.10.0", "3.9"]):
        rig.kafka.set_release(0, release)
        sent.append(rig.send("t", b"%d" % number, partition=0))
        rig.run_until(sent[-1].done, turns=1000)
    assert [delivery.result(0).offset for delivery in sent] == list(range(6))
    assert rig.values() == [b"%d" % number for number in range(6)]


def test_a_downgraded_leader_gets_what_was_numbered_without_numbers(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_for("2.8", 1, {"t": 2}, retry_backoff_ms=10, retry_backoff_max_ms=10)
    deliver(rig, b"a")
    rig.kafka.faults.add(Fault(api=PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    waiting = rig.send("t", b"b", partition=0)
    rig.run_until(lambda: len(rig.asked(PRODUCE)) == 2)
    rig.settle()
    rig.kafka.set_release(0, "0.10.2")
    rig.run_until(waiting.done, turns=1000)
    assert waiting.result(0).offset == 1
    rig.kafka.set_release(0, "2.8")
    deliver(rig, b"c")  # without numbers, since the broker has not seen those of the record before
    deliver(rig, b"d", partition=1)
    assert rig.values() == [b"a", b"b", b"c"]
    sequences = [batch.base_sequence for batch in rig.kafka.partition("t", 0).log.batches]
    assert sequences == [0, -1, -1]
    assert [batch.base_sequence for batch in rig.kafka.partition("t", 1).log.batches] == [0]
    assert len(told(caplog)) == 1
    assert rig.metrics()["idempotence-enabled"] == 0


@pytest.mark.parametrize("numbered", [1, 9])
def test_a_partition_that_lost_its_numbers_begins_anew_when_its_topic_was_forgotten(numbered: int) -> None:
    """Under the same epoch the broker would take its first batch for the one that it has: it would be lost."""
    rig = rig_for(
        "2.8",
        2,
        {"t": 1, "other": 1},
        retry_backoff_ms=10,
        retry_backoff_max_ms=10,
        metadata_max_idle_ms=5000,
        metadata_max_age_ms=1000,
    )
    rig.kafka.assign_topic("u", [[0, 1]])
    expected = [b"%d" % number for number in range(numbered)]
    for value in expected:
        deliver(rig, value, "u")
    rig.kafka.set_release(1, "0.10.2")
    rig.kafka.move_leader("u", 0, 1)
    deliver(rig, b"without numbers", "u")
    rig.kafka.move_leader("u", 0, 0)
    for _ in range(12):
        rig.run_for(1)
    assert "u" not in rig.parts.accumulator.topics
    deliver(rig, b"again", "u")
    assert rig.values("u") == [*expected, b"without numbers", b"again"]
    batches = rig.kafka.partition("u", 0).log.batches
    assert [(batch.producer_epoch, batch.base_sequence) for batch in batches[-2:]] == [(-1, -1), (1, 0)]
    assert len(rig.asked(INIT_PRODUCER_ID)) == 1


def test_what_was_compressed_for_an_old_leader_is_compressed_for_a_newer_one() -> None:
    rig = rig_for(
        "0.10.2",
        compression_type="gzip",
        retry_backoff_ms=10,
        retry_backoff_max_ms=10,
        max_request_size=8 << 20,
    )
    rig.kafka.faults.add(Fault(api=PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    delivery = rig.send("t", b"a" * 2_000_000, partition=0)  # more than the broker takes without the codec
    rig.run_until(lambda: len(rig.asked(PRODUCE)) == 1)
    rig.settle()
    rig.kafka.set_release(0, "2.8")
    rig.run_until(delivery.done, turns=1000)
    assert delivery.exception(0) is None
    (batch,) = rig.kafka.partition("t", 0).log.batches
    assert batch.codec == "gzip"
    assert rig.values() == [b"a" * 2_000_000]


def test_a_refusal_does_not_deny_what_an_earlier_attempt_may_have_written() -> None:
    rig = rig_for("2.8", 2, linger_ms=5, retry_backoff_ms=10, retry_backoff_max_ms=10)
    rig.kafka.assign_topic("u", [[0, 1]])
    deliver(rig, b"before", "u")
    rig.kafka.set_release(1, "0.10.2")
    rig.kafka.faults.add(Fault(api=PRODUCE, cut="after"))
    sent = [
        rig.send("u", b"%d" % number, partition=0, headers=[("h", b"1")] if number == 1 else None)
        for number in range(3)
    ]
    rig.run_until(lambda: len(rig.values("u")) == 4)
    rig.kafka.move_leader("u", 0, 1)
    rig.run_until(lambda: all(delivery.done() for delivery in sent), turns=1000)
    for delivery in sent:
        error = delivery.exception(0)
        assert isinstance(error, InvalidRecordError)
        assert "not written" not in str(error)
        assert "An earlier attempt to send it may have written it" in str(error)
    assert rig.values("u") == [b"before", b"0", b"1", b"2"]


# ------------------------------------------------------------------------------------------------ topic formats


@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1), ("0.10.0-IV1", 1)])
@pytest.mark.parametrize("release", ["0.11.0", "1.1", "2.8"])
def test_a_topic_in_an_older_format_goes_without_numbers(
    release: str, version: str, magic: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_for(release, linger_ms=5)
    rig.kafka.create_topic("old", 1, configs={"message.format.version": version})
    sent = [rig.send("old", b"%d" % number, partition=0) for number in range(3)]
    rig.run_until(lambda: all(delivery.done() for delivery in sent))
    deliver(rig, b"3", "old")
    deliver(rig, b"new")
    assert rig.values("old") == [b"0", b"1", b"2", b"3"]
    assert formats(rig, "old") == {magic}
    (text,) = told(caplog)
    assert "old-0" in text
    assert "message.format.version" in text
    assert [batch.base_sequence for batch in rig.kafka.partition("t", 0).log.batches] == [0]
    assert rig.metrics()["idempotence-enabled"] == 0
    assert len(rig.asked(INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("release", ["0.11.0", "2.8"])
def test_headers_for_a_topic_in_an_older_format_are_refused(release: str, codec: str) -> None:
    """The broker would drop them and say nothing. Which format a topic has shows when it refuses numbers."""
    rig = rig_for(release, linger_ms=5, compression_type=codec)
    rig.kafka.create_topic("old", 1, configs={"message.format.version": "0.10.2"})
    sent = []
    for _ in range(2):  # before it is known, and then
        part = [
            rig.send("old", b"%d" % number, partition=0, headers=[("h", b"1")] if number == 1 else None)
            for number in range(3)
        ]
        rig.run_until(lambda part=part: all(delivery.done() for delivery in part), turns=1000)
        sent += part
    for refused in (sent[1], sent[4]):
        assert isinstance(refused.exception(0), InvalidRecordError)
        assert "message.format.version" in str(refused.exception(0))
    assert rig.values("old") == [b"0", b"2", b"0", b"2"]
    deliver(rig, b"new", headers=[("h", b"1")])
    assert [record.headers for record in rig.kafka.records("t", 0)] == [(("h", b"1"),)]


def test_a_topic_in_an_older_format_is_an_error_where_idempotence_was_asked_for() -> None:
    rig = rig_for("2.8", enable_idempotence=True)
    rig.kafka.create_topic("old", 1, configs={"message.format.version": "0.10.2"})
    delivery = rig.send("old", b"a", partition=0)
    rig.run_until(delivery.done)
    assert delivery.exception(0).code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert rig.values("old") == []
