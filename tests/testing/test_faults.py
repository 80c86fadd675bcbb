# SPDX-License-Identifier: Apache-2.0
"""A fault that cannot happen as it was meant is refused when it is made: the fake's thread could only break later."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from penstock import errors
from penstock.protocol.messages import METADATA
from penstock.testing import Code, FakeKafka, Fault
from penstock.types import TopicPartition


class Name(StrEnum):
    """A program that keeps the names of its topics in an enum."""

    ORDERS = "orders"


@pytest.mark.parametrize("name", ["produce", "Publish", ""])
def test_an_api_that_does_not_exist(name: str) -> None:
    with pytest.raises(ValueError, match=f"no API '{name}'; known are AddOffsetsToTxn, .* Produce, "):
        Fault(api=name)


@pytest.mark.parametrize(
    ("error", "written"),
    [
        ("INVALID_RECORD", "must be a Code, here Code.INVALID_RECORD, not 'INVALID_RECORD'"),
        ("Code.invalid_record", "here Code.INVALID_RECORD, "),
        (errors.InvalidRecordError, "here Code.INVALID_RECORD, "),
        (errors.InvalidRecordError(), "here Code.INVALID_RECORD, "),
        (errors.KafkaTimeoutError, "such as Code.INVALID_RECORD, "),
        (RuntimeError("no"), "such as Code.INVALID_RECORD, "),
        ("", "such as Code.INVALID_RECORD, "),
        (87.0, "such as Code.INVALID_RECORD, not 87.0"),
        (True, "such as Code.INVALID_RECORD, not True"),
    ],
)
def test_an_error_that_is_no_code(error: Any, written: str) -> None:
    with pytest.raises(TypeError) as caught:
        Fault(api="Produce", error=error)
    assert written in str(caught.value)


@pytest.mark.parametrize(
    ("error", "written"), [(0, "all went well"), (2**15, "16 bits"), (-(2**15) - 1, "16 bits")]
)
def test_a_number_that_is_no_error(error: int, written: str) -> None:
    with pytest.raises(ValueError, match=written):
        Fault(api="Produce", error=error)


def test_numbers_are_codes_and_newer_ones_are_allowed() -> None:
    assert Fault(api="Produce", error=87) == Fault(api="Produce", error=Code.INVALID_RECORD)
    assert Fault(error=31999).error == 31999
    assert Fault(error=-1).error == Code.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"api": 0}, "api must be the name of an API"),
        ({"broker": "1"}, "broker must be an int"),
        ({"broker": True}, "broker must be an int"),
        ({"match": "Produce"}, "match must be callable"),
        ({"partitions": "t"}, "partitions must be a list of TopicPartition, not 't'"),
        ({"partitions": TopicPartition("t", 0)}, "partitions must be a list of TopicPartition"),
        ({"partitions": [("t", "0")]}, "partitions must be a list of TopicPartition"),
        ({"took_effect": "yes"}, "took_effect must be True or False"),
        ({"delay": "1"}, "delay must be a number of seconds"),
        ({"delay": None}, "delay must be a number of seconds"),
        ({"truncate": 1.5}, "truncate must be an int"),
        ({"garbage": 1}, "garbage must be True or False"),
        ({"throttle_ms": "30"}, "throttle_ms must be an int"),
        ({"skip": None}, "skip must be an int"),
        ({"times": "2"}, "times must be an int"),
    ],
)
def test_a_field_of_another_type(fields: dict[str, Any], written: str) -> None:
    with pytest.raises(TypeError, match=written):
        Fault(**{"error": Code.INVALID_RECORD, **fields})


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"cut": "After"}, "cut must be 'before', 'after' or None, not 'After'"),
        ({"cut": "middle"}, "cut must be .* not 'middle'"),
        ({"cut": True}, "cut must be .* not True"),
        ({"cut": []}, "cut must be "),
        ({"delay": -0.1}, "delay must not be negative: -0.1"),
        ({"delay": float("nan")}, "delay must be a number"),
        ({"truncate": -1}, "truncate must not be negative"),
        ({"throttle_ms": -1}, "throttle_ms must not be negative"),
        ({"throttle_ms": 2**31}, "throttle_ms must be at most 2147483647: 2147483648"),
        ({"skip": -1}, "skip must not be negative"),
        ({"times": 0}, "times must be positive, or None for ever: 0"),
        ({"partitions": []}, "partitions must not be empty"),
        (
            {"partitions": [TopicPartition("t", 0)], "api": "Metadata"},
            "partitions belong to .* api='Produce'",
        ),
    ],
)
def test_a_field_with_a_value_that_it_cannot_have(fields: dict[str, Any], written: str) -> None:
    with pytest.raises(ValueError, match=written):
        Fault(**{"error": Code.INVALID_RECORD, **fields})


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, "this fault does nothing: give it error=, cut="),
        ({"api": "Produce", "times": 3, "skip": 1, "broker": 0}, "this fault does nothing"),
        ({"delay": 0, "throttle_ms": 0, "garbage": False}, "this fault does nothing"),
        ({"took_effect": True}, "belong to an error"),
        ({"partitions": [TopicPartition("t", 0)]}, "belong to an error"),
    ],
)
def test_a_fault_that_does_nothing(fields: dict[str, Any], written: str) -> None:
    with pytest.raises(ValueError, match=written):
        Fault(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"cut": "before"},
        {"cut": "after"},
        {"delay": 1},
        {"delay": 0.5, "times": None},
        {"truncate": 0},
        {"garbage": True},
        {"throttle_ms": 1},
        {"match": lambda request: True},
        {"api": METADATA, "error": 5},
        {"error": 10, "partitions": {("t", 0), TopicPartition("t", 1)}},
        {"error": 10, "partitions": [TopicPartition(Name.ORDERS, 0)]},
    ],
)
def test_a_fault_that_does_something(fields: dict[str, Any]) -> None:
    Fault(**fields)


def test_only_faults_are_added() -> None:
    kafka = FakeKafka()
    with pytest.raises(TypeError, match=r"add_fault\(\) takes a penstock\.testing\.Fault, not"):
        kafka.add_fault("Produce")  # type: ignore[arg-type]
    kafka.close()
    assert kafka.cluster.faults.waiting == []
