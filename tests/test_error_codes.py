# SPDX-License-Identifier: Apache-2.0
"""The codes of brokers by name, and what each of them means."""

from __future__ import annotations

import pickle

import kio.schema.errors
import pytest

from penstock import testing
from penstock.error_codes import ErrorCode
from penstock.errors import BROKER_ERRORS, BrokerError, InvalidMetadataError


def test_names_numbers_and_retriability_are_kafkas() -> None:
    theirs = {(row.name.upper(), row.value, row.retriable) for row in kio.schema.errors.ErrorCode}
    assert {(code.name, code.value, code.retriable) for code in ErrorCode} <= theirs


@pytest.mark.parametrize("code", [code for code in ErrorCode if code])
def test_the_class_of_a_code_does_what_its_row_says(code: ErrorCode) -> None:
    row = BROKER_ERRORS[code]
    assert (row.code, row.name, row.description) == (code, code.name, code.description)
    assert row.cls.retriable == code.retriable
    assert issubclass(row.cls, InvalidMetadataError) == code.stale_metadata


def test_every_class_with_a_code_is_the_class_of_that_code() -> None:
    found = [BrokerError]
    for cls in found:
        found += cls.__subclasses__()
    with_code = {cls for cls in found if cls.__module__ == "penstock.errors" and "code" in vars(cls)}
    assert len(with_code) == 19
    assert all(BROKER_ERRORS[cls.code].cls is cls for cls in with_code)


def test_a_table_of_errors_has_no_success() -> None:
    assert set(BROKER_ERRORS) == set(ErrorCode) - {ErrorCode.NONE}
    assert not ErrorCode.NONE


def test_a_code_is_the_number_on_the_wire() -> None:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code == 6
    assert {6: "six"}[code] == "six"
    assert 6 in {code}
    assert f"{code}" == str(code) == "6"
    assert ErrorCode(6) is code
    assert pickle.loads(pickle.dumps(code)) is code


def test_the_numbers_in_errors_are_plain() -> None:
    """They are pickled, and read by programs that have another version of this package."""
    assert {type(row.code) for row in BROKER_ERRORS.values()} == {int}
    assert {type(row.cls(code=row.code).code) for row in BROKER_ERRORS.values()} == {int}


def test_users_of_the_fake_cluster_have_the_same_codes() -> None:
    assert testing.Code is ErrorCode
