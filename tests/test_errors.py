# SPDX-License-Identifier: Apache-2.0
"""The tree of exceptions and the table of broker codes."""

from __future__ import annotations

import copy
import pickle

import kio.schema.errors
import pytest

from penstock import errors
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
