# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest

from penstock.transaction_handle import TransactionHandle

VALUES: dict[str, Any] = {
    "transactional_id": "orders-1",
    "producer_id": 4000,
    "producer_epoch": 3,
    "end_txn_version": 5,
    "topic": "orders",
    "partition": 2,
    "offset": 71,
    "record_count": 500,
    "timeout_ms": 60_000,
    "empty": False,
}


def handle(**changed: Any) -> TransactionHandle:
    return TransactionHandle(**(VALUES | changed))


EMPTY = {"topic": None, "partition": -1, "offset": -1, "record_count": 0, "empty": True}
OFFSETS_ONLY = EMPTY | {"empty": False}


@pytest.mark.parametrize("changed", [{}, EMPTY, OFFSETS_ONLY, {"offset": -1}])
def test_survives_pickle_and_json(changed: dict[str, Any]) -> None:
    original = handle(**changed)
    assert pickle.loads(pickle.dumps(original)) == original
    assert TransactionHandle.from_json(original.to_json()) == original
    assert TransactionHandle.from_json(original.to_json().encode()) == original


def test_json_is_one_line_with_a_format() -> None:
    text = handle().to_json()
    assert "\n" not in text
    assert json.loads(text) == {"format": 1} | VALUES


def test_fields_of_a_later_release_are_ignored() -> None:
    text = json.dumps(json.loads(handle().to_json()) | {"checksum": "abc"})
    assert TransactionHandle.from_json(text) == handle()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": None}, "transactional_id"),
        ({"producer_id": -1}, "producer_id"),
        ({"producer_id": "4000"}, "producer_id"),
        ({"producer_id": True}, "producer_id"),
        ({"producer_id": 1.5}, "producer_id"),
        ({"producer_epoch": 40_000}, "producer_epoch"),
        ({"end_txn_version": None}, "end_txn_version"),
        ({"topic": 7}, "topic"),
        ({"topic": None}, "topic"),
        ({"partition": -1}, "partition"),
        ({"offset": -2}, "offset"),
        ({"record_count": -1}, "record_count"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"empty": 1}, "empty"),
        ({"empty": True}, "empty"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"TransactionHandle\.{named}: "):
        handle(**changed)
    with pytest.raises(ValueError, match=rf"TransactionHandle\.{named}: "):
        TransactionHandle.from_json(json.dumps({"format": 1} | VALUES | changed))


@pytest.mark.parametrize("name", ["format", *VALUES])
def test_a_missing_field_is_named(name: str) -> None:
    values = {"format": 1} | VALUES
    del values[name]
    with pytest.raises(ValueError, match=rf"TransactionHandle\.{name}: "):
        TransactionHandle.from_json(json.dumps(values))


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "7", b"\xff\xfe", '{"format": 2}', '{"format": true}']
)
def test_other_input_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="TransactionHandle"):
        TransactionHandle.from_json(text)


def test_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        handle().producer_epoch = 4  # type: ignore[misc]


def test_repr_is_a_status_line() -> None:
    assert repr(handle()) == (
        "<TransactionHandle orders-1: producer 4000 epoch 3, 500 records from orders-2, offset 71, "
        "EndTxn v5, time-out 60000 ms>"
    )
    assert "empty" in repr(handle(**EMPTY))
    assert "0 records, place not known" in repr(handle(**OFFSETS_ONLY))
    assert " 1 record from orders-2" in repr(handle(record_count=1))
    assert "offset not known" in repr(handle(offset=-1))


@pytest.mark.parametrize(("changed", "known"), [({}, True), ({"offset": -1}, False), (OFFSETS_ONLY, False)])
def test_place(changed: dict[str, Any], known: bool) -> None:
    assert handle(**changed).has_place is known


def test_a_wrong_value_is_not_shown_at_length() -> None:
    """It may come from a log that others write to."""
    with pytest.raises(ValueError, match="transactional_id: must be a text") as caught:
        handle(transactional_id=["x" * 1_000_000])
    assert len(str(caught.value)) < 200
