# SPDX-License-Identifier: Apache-2.0
"""The tree of exceptions and the table of broker codes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import kio.schema.errors
import pytest

from penstock import Producer, errors
from penstock.errors import (
    BROKER_ERRORS,
    BrokerError,
    InvalidMetadataError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    broker_error,
    error_row,
)
from penstock.spark.options import parse_options
from penstock.spark.pipeline_check import load_pipeline

SERVERS = {"kafka.bootstrap.servers": "a:1"}
ALL_CLASSES = [
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, BaseException)
]


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_every_error_has_one_root_and_says_what_it_is(cls: type[BaseException]) -> None:
    assert issubclass(cls, KafkaError)
    assert cls.__doc__
    assert isinstance(cls.retriable, bool)


@pytest.mark.parametrize("code", sorted(BROKER_ERRORS))
def test_every_code_makes_an_error_that_names_it(code: int) -> None:
    error = broker_error(code)
    assert isinstance(error, BROKER_ERRORS[code].cls)
    assert (error.code, error.name) == (code, BROKER_ERRORS[code].name)
    assert str(error) == f"{BROKER_ERRORS[code].description} [{error.name} ({code})]"


def test_names_and_retriability_agree_with_another_table() -> None:
    theirs = {row.value: row for row in kio.schema.errors.ErrorCode}
    for code, ours in BROKER_ERRORS.items():
        assert ours.name.lower() == theirs[code].name
        assert ours.cls.retriable == theirs[code].retriable, ours


def test_the_brokers_own_words_are_kept() -> None:
    assert str(broker_error(44, "no such policy")) == "no such policy [POLICY_VIOLATION (44)]"


def test_an_unknown_code_keeps_its_number() -> None:
    error = broker_error(4711)
    assert type(error) is BrokerError
    assert error.code == 4711
    assert "4711" in str(error)
    assert error_row(4711).name == "UNKNOWN_4711"


@pytest.mark.parametrize("code", [3, 5, 6, 9, 13, 56, 72, 74, 100, 103])
def test_codes_that_ask_for_new_metadata(code: int) -> None:
    error = broker_error(code)
    assert isinstance(error, InvalidMetadataError)
    assert error.retriable


@pytest.mark.parametrize("code", [2, 7, 14, 15, 16, 19, 20, 51, 75, 89])
def test_codes_that_are_retried_with_the_metadata_as_it_is(code: int) -> None:
    error = broker_error(code)
    assert error.retriable
    assert not isinstance(error, InvalidMetadataError)


@pytest.mark.parametrize(
    "code", [10, 17, 18, 21, 29, 31, 32, 35, 43, 44, 45, 46, 47, 48, 49, 53, 76, 87, 90, 120, -1]
)
def test_codes_that_are_not_simply_retried(code: int) -> None:
    assert not broker_error(code).retriable


@pytest.mark.parametrize(
    ("cls", "bases"),
    [
        (errors.BufferExhaustedError, (KafkaTimeoutError, TimeoutError)),
        (errors.DeliveryTimeoutError, (KafkaTimeoutError, TimeoutError)),
        (errors.RequestTimedOutError, (BrokerError, KafkaTimeoutError)),
        (errors.MessageTooLargeError, (BrokerError, errors.RecordTooLargeError)),
        (errors.UnknownProducerIdError, (errors.OutOfOrderSequenceError,)),
        (errors.ProducerClosedError, (errors.IllegalStateError, RuntimeError)),
        (errors.BootstrapError, (errors.ConfigError,)),
    ],
)
def test_places_in_the_tree(cls: type[KafkaError], bases: tuple[type[BaseException], ...]) -> None:
    for base in bases:
        assert issubclass(cls, base)


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ({"bootstrap.servers": "a:1", "lingre.ms": 5}, "lingre.ms"),
        ({"bootstrap.servers": "a:1", "linger_ms": "soon"}, "linger.ms"),
        ({"bootstrap.servers": "a:1", "acks": "some"}, "acks"),
        ({"bootstrap.servers": "a:1", "linger.ms": 5, "linger_ms": 6}, "linger.ms"),
        ({"bootstrap.servers": "a:1", "delivery.timeout.ms": 1}, "delivery.timeout.ms"),
        ({"bootstrap.servers": "a:1", "ssl.key.password": "x"}, "ssl.key.password"),
        ({"bootstrap.servers": "a:1", "key.serializer": "nowhere:x"}, "key.serializer"),
        (
            {"bootstrap.servers": "a:1", "compression.type": "gzip", "compression.gzip.level": 99},
            "compression.gzip.level",
        ),
        ({"bootstrap.servers": "a:1", "metadata.fetch.timeout.ms": "x"}, "metadata.fetch.timeout.ms"),
        ({"bootstrap.servers": "a"}, "bootstrap.servers"),
        ({"bootstrap.servers": "nosuch.invalid:1"}, "bootstrap.servers"),
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "a:1", "enable.idempotence": True, "acks": "1"}, None),
        ({"bootstrap.servers": "a:1", "max.in.flight.requests.per.connection": 9}, None),
    ],
)
def test_a_wrong_option_is_named_for_programs(config: dict[str, object], option: str | None) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Producer(config)
    assert caught.value.option == option
    assert caught.value.twin().option == option
    assert pickle.loads(pickle.dumps(caught.value)).option == option


def test_a_wrong_option_of_a_properties_file_is_named_too(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("bootstrap.servers=a:1\nlinger.ms=soon\n", encoding="utf-8")
    with pytest.raises(errors.ConfigError, match="line 2") as caught:
        Producer(str(file))
    assert caught.value.option == "linger.ms"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"topic": "a b"}, "topic"),
        ({"recoveryTime": "soon"}, "recoveryTime"),
        ({"tpoic": "a"}, "tpoic"),
        ({"kafka.lingre.ms": "5"}, "kafka.lingre.ms"),
        ({"kafka.linger.ms": "soon"}, "kafka.linger.ms"),
        ({"kafka.acks": "1"}, None),
    ],
)
def test_a_wrong_option_of_a_spark_sink_is_named_as_the_sink_calls_it(
    given: dict[str, str], option: str | None
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        parse_options({**SERVERS, **given}, streaming=False)
    assert caught.value.option == option


def test_a_wrong_key_of_a_pipeline_is_named() -> None:
    with pytest.raises(errors.PipelineDefinitionError) as caught:
        load_pipeline({"source": {"sql": "SELECT 1"}, "sink": {"topic": 5, "options": SERVERS}})
    assert caught.value.option == "[sink] topic"


@pytest.mark.parametrize(
    "error", [broker_error(6), broker_error(87, "row 3"), broker_error(999), KafkaTimeoutError("t")]
)
def test_errors_survive_pickling_and_copying(error: KafkaError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert getattr(twin, "code", None) == getattr(error, "code", None)


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_every_error_has_a_twin(cls: type[KafkaError]) -> None:
    error = cls("what went wrong")
    error.__cause__ = ValueError("why")
    error.bulk_delivery = object()
    error.add_note("a note")
    try:
        raise error
    except KafkaError:
        twin = error.twin()
    assert type(twin) is cls
    assert twin is not error
    assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))
    assert twin.__cause__ is error.__cause__
    assert twin.__suppress_context__
    assert twin.__traceback__ is None
    twin.add_note("another")
    assert error.__notes__ == ["a note"]
    assert cls("of no cause").twin().__suppress_context__ is False


def test_a_twin_has_the_code_of_the_broker() -> None:
    assert repr(broker_error(999).twin()) == repr(broker_error(999))
    assert str(InvalidRecordError("a record", code=3).twin()) == str(InvalidRecordError("a record", code=3))
