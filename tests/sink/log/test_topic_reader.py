# SPDX-License-Identifier: Apache-2.0
"""The log is read to its end, the second time only what is new, and from the beginning when it is not the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.control import ControlClient
from penstock.control.partition_log import KeyValue, write_batch
from penstock.errors import SinkError
from penstock.protocol.messages import FETCH, LIST_OFFSETS
from penstock.sink.log.records import Claim, claim_record
from penstock.sink.log.topic import LogReader
from penstock.testing import Code, FakeKafka, Fault
from penstock.types import TopicPartition

KEY = "0123456789abcdef"
LOG = TopicPartition("log", 0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=3, topics={"log": 1}) as kafka:
        yield kafka


@pytest.fixture
def client(kafka: FakeKafka) -> Iterator[ControlClient]:
    with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        yield client


def claim(client: ControlClient, name: str) -> None:
    write_batch(client, LOG, [claim_record(KEY, Claim(name, None))], 1)


def name_in(reader: LogReader, client: ControlClient) -> str | None:
    found = reader.view(client, KEY).claim
    return None if found is None else found.sink_id


def fetched_from(kafka: FakeKafka) -> list[int]:
    with kafka.locked() as cluster:
        offsets = [
            request.body["topics"][0]["partitions"][0]["fetch_offset"]
            for request in cluster.received
            if request.api is FETCH
        ]
        cluster.received.clear()
    return offsets


def test_an_empty_log(client: ControlClient) -> None:
    reader = LogReader(*LOG)
    assert name_in(reader, client) is None
    claim(client, "a")
    assert name_in(reader, client) == "a"


def test_only_what_is_new_is_read_again(kafka: FakeKafka, client: ControlClient) -> None:
    reader = LogReader(*LOG)
    for number in range(5):
        claim(client, str(number))
    assert name_in(reader, client) == "4"
    assert fetched_from(kafka) == [0]
    assert name_in(reader, client) == "4"
    assert fetched_from(kafka) == [4]  # the last batch, to see that it is the same
    claim(client, "5")
    assert name_in(reader, client) == "5"
    assert fetched_from(kafka) == [4]


def test_a_log_of_many_pages(client: ControlClient) -> None:
    for _ in range(4):
        write_batch(client, LOG, [KeyValue(b"x", bytes(700_000))], 1)
    claim(client, "behind them")
    assert name_in(LogReader(*LOG), client) == "behind them"


def test_a_log_that_was_made_anew_is_read_from_the_beginning(kafka: FakeKafka, client: ControlClient) -> None:
    reader = LogReader(*LOG)
    claim(client, "old")
    claim(client, "old")
    assert name_in(reader, client) == "old"
    with kafka.locked() as cluster:
        cluster.partition(*LOG).log.__init__()  # type: ignore[misc]
    for _ in range(3):
        write_batch(client, LOG, [KeyValue(b"x", b"y")], 1)
    assert name_in(reader, client) is None


def test_a_log_that_is_shorter_is_read_from_the_beginning(kafka: FakeKafka, client: ControlClient) -> None:
    reader = LogReader(*LOG)
    claim(client, "old")
    claim(client, "newer")
    assert name_in(reader, client) == "newer"
    with kafka.locked() as cluster:
        cluster.partition(*LOG).log.__init__()  # type: ignore[misc]
    claim(client, "first")
    assert name_in(reader, client) == "first"


def test_another_leader_means_that_everything_is_read_again(kafka: FakeKafka, client: ControlClient) -> None:
    reader = LogReader(*LOG)
    claim(client, "a")
    claim(client, "b")
    assert name_in(reader, client) == "b"
    fetched_from(kafka)
    with kafka.locked() as cluster:
        leader = cluster.partition(*LOG).leader
        cluster.move_leader(*LOG, to=(leader + 1) % 3)
    assert name_in(reader, client) == "b"
    assert 0 in fetched_from(kafka)


def test_a_log_whose_beginning_is_gone(kafka: FakeKafka, client: ControlClient) -> None:
    reader = LogReader(*LOG)
    for name in ("a", "b", "c"):
        claim(client, name)
    with kafka.locked() as cluster:
        cluster.delete_records(*LOG, before=2)
    assert name_in(reader, client) == "c"
    claim(client, "d")
    with kafka.locked() as cluster:
        cluster.delete_records(*LOG, before=3)
    assert name_in(reader, client) == "d"


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_SERVER_ERROR])
def test_trouble_on_the_way(kafka: FakeKafka, client: ControlClient, code: Code) -> None:
    claim(client, "a")
    reader = LogReader(*LOG)
    kafka.add_fault(Fault(api=LIST_OFFSETS, error=Code.NOT_LEADER_OR_FOLLOWER))
    kafka.add_fault(Fault(api=FETCH, cut="after"))
    assert name_in(reader, client) == "a"
    kafka.add_fault(Fault(api=FETCH, error=code))
    if code is Code.NOT_LEADER_OR_FOLLOWER:
        assert name_in(reader, client) == "a"
        return
    with pytest.raises(Exception, match="unexpected"):
        name_in(reader, client)
    assert name_in(reader, client) == "a"  # and nothing is taken in twice


def test_a_log_that_changes_under_every_attempt_is_told_in_words(
    kafka: FakeKafka, client: ControlClient
) -> None:
    claim(client, "a")
    reader = LogReader(*LOG)
    assert name_in(reader, client) == "a"
    kafka.add_fault(Fault(api=FETCH, error=Code.OFFSET_OUT_OF_RANGE, times=100))
    with pytest.raises(
        SinkError, match=r"log-0 changed under every one of 5 attempts to read it.*run it again"
    ):
        name_in(reader, client)
    with kafka.locked() as cluster:
        cluster.faults.clear()
    assert name_in(reader, client) == "a"
