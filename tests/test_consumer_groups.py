# SPDX-License-Identifier: Apache-2.0
"""What consumers of other libraries give for their group and their positions, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import aiokafka
import confluent_kafka
import pytest
from fix_other_clients import kafka_python
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from penstock.consumer_groups import as_group, as_positions

WRITTEN = b"CGMDv2:\x07\0\0\0billing\0member-1\0\1"
STATIC = b"CGMDv2:\x07\0\0\0billing\0member-1\0\0lasting name\0"

# ------------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("billing", ConsumerGroupMetadata("billing")),
        (ConsumerGroupMetadata("billing", 0), ConsumerGroupMetadata("billing", 0)),
        (ConsumerGroupMetadata("billing", 7, "m"), ConsumerGroupMetadata("billing", 7, "m")),
        (WRITTEN, ConsumerGroupMetadata("billing", 7, "member-1")),
        (memoryview(WRITTEN), ConsumerGroupMetadata("billing", 7, "member-1")),
        (STATIC, ConsumerGroupMetadata("billing", 7, "member-1", "lasting name")),
        (
            kafka_python.ConsumerGroupMetadata("billing", 7, "member-1", "lasting name"),
            ConsumerGroupMetadata("billing", 7, "member-1", "lasting name"),
        ),
    ],
)
def test_groups_of_all_libraries(given, expected):
    group = as_group(given)
    assert group == expected
    assert type(group) is ConsumerGroupMetadata


def test_a_consumer_of_confluent_kafka_that_has_not_joined():
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    for instance in (None, "lasting"):
        more = {} if instance is None else {"group.instance.id": instance}
        consumer = confluent_kafka.Consumer(config | more)
        try:
            assert as_group(consumer.consumer_group_metadata()) == ConsumerGroupMetadata(
                "g", -1, "", instance
            )
        finally:
            consumer.close()


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"billing",
        b"CGMDv1:billing\0",
        b"CGMDv3:" + WRITTEN[7:],
        *(WRITTEN[:end] for end in range(len(WRITTEN))),
        *(STATIC[:end] for end in range(len(STATIC))),
        WRITTEN + b"x",
        STATIC + b"x",
        STATIC + b"\0",
        WRITTEN[:-1] + b"\2",
        WRITTEN.replace(b"billing", b"\xff\xff"),
    ],
)
def test_bytes_of_an_unknown_form_are_refused_with_the_way_out(written):
    with pytest.raises(
        ValueError, match=r"bytes of an unknown form.*Give the group's id as a str, or a penstock\."
    ):
        as_group(written)


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"CGMDv2:" + tail))
def test_any_bytes_are_a_group_or_refused(written):
    try:
        group = as_group(written)
    except ValueError:
        return
    assert group.group_id
    assert "\0" not in group.group_id


@pytest.mark.parametrize(
    ("group", "error", "problem"),
    [
        (None, TypeError, "not NoneType"),
        (5, TypeError, "not int"),
        (kafka_python.ConsumerGroupMetadata(None), ValueError, "the consumer has no group"),
        (ConsumerGroupMetadata(""), ValueError, "must not be empty"),
        (ConsumerGroupMetadata("g", 3), ValueError, "without a member id"),
        (ConsumerGroupMetadata("g", "3", "m"), TypeError, "'3' is out of place"),
        (ConsumerGroupMetadata("g", True, "m"), TypeError, "True is out of place"),
        (ConsumerGroupMetadata("g", 3, b"m"), TypeError, "b'm' is out of place"),
        (ConsumerGroupMetadata("g", 2**31, "m"), ValueError, "must be -1 or more"),
        (ConsumerGroupMetadata("g", -2, "m"), ValueError, "must be -1 or more"),
    ],
)
def test_what_is_no_group_is_refused(group, error, problem):
    with pytest.raises(error, match=problem):
        as_group(group)


# ------------------------------------------------------------------------------------------------ positions

EXPECTED = {
    TopicPartition("t", 0): OffsetAndMetadata(5),
    TopicPartition("t", 1): OffsetAndMetadata(7, "noted"),
}


@pytest.mark.parametrize(
    "offsets",
    [
        EXPECTED,
        {("t", 0): 5, ("t", 1): OffsetAndMetadata(7, "noted")},
        {
            kafka_python.TopicPartition("t", 0): 5,
            kafka_python.TopicPartition("t", 1): kafka_python.OffsetAndMetadata(7, "noted", -1),
        },
        {
            aiokafka.TopicPartition("t", 0): aiokafka.structs.OffsetAndMetadata(5, ""),
            aiokafka.TopicPartition("t", 1): aiokafka.structs.OffsetAndMetadata(7, "noted"),
        },
        [
            confluent_kafka.TopicPartition("t", 0, 5, metadata=""),
            confluent_kafka.TopicPartition("t", 1, 7, metadata="noted"),
            confluent_kafka.TopicPartition("t", 2, confluent_kafka.OFFSET_INVALID),
        ],
    ],
    ids=["ours", "tuples", "kafka-python", "aiokafka", "confluent-kafka"],
)
def test_positions_of_all_libraries(offsets):
    assert as_positions(offsets) == EXPECTED


def test_a_leader_epoch_and_no_metadata_are_kept():
    (position,) = as_positions([confluent_kafka.TopicPartition("t", 0, 5, leader_epoch=3)]).values()
    assert position == OffsetAndMetadata(5, None, 3)


@pytest.mark.parametrize(
    ("offsets", "error", "problem"),
    [
        (None, TypeError, "not NoneType"),
        ("t-0", TypeError, "not str"),
        ([("t", 0, 5)], TypeError, "has no topic, partition and offset"),
        (
            [1],
            TypeError,
            r"must be a dict of TopicPartition .*\{TopicPartition\('orders', 0\): 42\}.*; 1 has no topic",
        ),
        ({"t": 5}, TypeError, "'t' is no partition"),
        ({("t", 0): "5"}, TypeError, "'5' is out of place"),
        ({("t", 0): True}, TypeError, "True is out of place"),
        ({("t", "0"): 5}, TypeError, "'0' is out of place"),
        ({("t", 0): -1}, ValueError, "from 0 on"),
        ({("t", 0): 2**63}, ValueError, "from 0 on"),
        ({("t", -1): 5}, ValueError, "partition"),
        ([confluent_kafka.TopicPartition("t", 0, confluent_kafka.OFFSET_END)], ValueError, "from 0 on"),
        (
            [SimpleNamespace(topic="t", partition=0, offset=-1001, error="UNKNOWN_PARTITION")],
            ValueError,
            "an error: UNKNOWN_PARTITION",
        ),
    ],
)
def test_what_is_no_position_is_refused(offsets, error, problem):
    with pytest.raises(error, match=problem):
        as_positions(offsets)


@pytest.mark.parametrize(
    ("group", "error"),
    [
        (None, TypeError),
        (7, TypeError),
        ("", ValueError),
        (ConsumerGroupMetadata("g", 1, ""), ValueError),
        (ConsumerGroupMetadata("", 1, "m"), ValueError),
    ],
)
def test_a_group_is_an_id_or_says_who_asks(group, error):
    with pytest.raises(error):
        as_group(group)


def test_a_group_may_be_given_in_two_ways():
    assert as_group("g") == ConsumerGroupMetadata("g")
    assert as_group(ConsumerGroupMetadata("g", 3, "m")).generation_id == 3
