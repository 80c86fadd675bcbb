# SPDX-License-Identifier: Apache-2.0
"""A log that release 0.1.0 has written stays readable: its records are kept as bytes in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.control.producing import KeyValue
from penstock.records.compression import GZIP, codec, decompress
from penstock.sink import Content, DriverIdentity, Execution, TaskHandle
from penstock.sink import log_records as records
from penstock.sink.content import IN_ORDER
from penstock.sink.driver_identity import Jvm
from penstock.sink.log_records import Claim, Decision, Key
from penstock.transaction_handle import TransactionHandle

GOLDEN = Path(__file__).parents[1] / "golden"
KEY = "0123456789abcdef"

# What release 0.1.0 wrote; later releases add fields, and take none away.
FIELDS = {
    "decision": ("format", "execution", "query", "batch", "topic", "rows", "chunks", "last_decided"),
    "owner": ("format", "generation", "jvm", "planner_pid", "token", "previous"),
    "sink": ("format", "sink_id", "run_id", "one_off"),
    "done": ("format", "batch", "lost"),
    "chunk": ("format", "handles"),
}
HANDLE_FIELDS = ("transaction", "task", "rows", "checksum", "counts")


def cases(name: str) -> dict[str, dict[str, Any]]:
    lines = (GOLDEN / name).read_text().splitlines()
    return {case["name"]: case for case in map(json.loads, lines)}


LOG = cases("sink_log.jsonl")
HANDLES = cases("transaction_handle.jsonl")


def value_of(name: str) -> bytes:
    return bytes.fromhex(LOG[name]["value"])


def unpacked(chunk: bytes) -> bytes:
    return bytes(decompress(GZIP, memoryview(chunk), 1 << 26))


def as_first_release(record: KeyValue) -> KeyValue:
    """The record as release 0.1.0 would have written it: without the fields that came later."""
    if record.value is None:
        return record
    kind = json.loads(record.key)["kind"]
    is_chunk = kind == "chunk"
    raw = unpacked(record.value) if is_chunk else record.value
    values = json.loads(raw)
    kept = {name: values[name] for name in FIELDS[kind]}
    for name in ("handles", "lost"):
        if name in kept:
            kept[name] = [{field: handle[field] for field in HANDLE_FIELDS} for handle in kept[name]]
    plain = json.dumps(kept, separators=(",", ":")).encode()
    return KeyValue(record.key, bytes(codec("gzip").compress(plain)) if is_chunk else plain)


def task_handles(name: str, field: str) -> list[TaskHandle]:
    return [TaskHandle.from_dict(values) for values in LOG[name]["fields"][field]]


@pytest.mark.parametrize("name", ["sink-of-a-query", "sink-of-a-run", "sink-of-a-one-off-run"])
def test_the_name_of_a_sink_is_read(name: str) -> None:
    assert records.parse_claim(value_of(name)) == Claim(**LOG[name]["fields"])


@pytest.mark.parametrize("name", ["owner-first", "owner-second"])
def test_an_owner_is_read(name: str) -> None:
    owner, fields = records.parse_owner(value_of(name)), LOG[name]["fields"]
    assert (owner.generation, owner.planner_pid, owner.token) == (
        fields["generation"],
        fields["planner_pid"],
        fields["token"],
    )
    assert owner.jvm == Jvm(*fields["jvm"])
    assert owner.previous == tuple(Jvm(*jvm) for jvm in fields["previous"])


@pytest.mark.parametrize("name", ["decision", "decision-of-a-run"])
def test_a_decision_is_read_and_knows_the_rows_of_its_own_batch_only(name: str) -> None:
    fields = LOG[name]["fields"]
    assert records.parse_decision(value_of(name)) == Decision(
        Execution(*fields["execution"]),
        fields["query"],
        fields["batch"],
        fields["topic"],
        fields["rows"],
        fields["chunks"],
        fields["last_decided"],
        contents={fields["query"]: Content(fields["rows"])},
        forgotten=0,
    )


def test_handles_are_read_and_have_the_checksum_of_then() -> None:
    read = records.parse_chunk(value_of("chunk"))
    assert read == task_handles("chunk", "handles")
    assert [handle.content for handle in read] == [
        Content(10, 0xFEDCBA9876543210, IN_ORDER),
        Content(11, 123456789, IN_ORDER),
    ]


def test_keys_keep_their_form() -> None:
    execution = Execution(3, 7)
    expected = {
        "sink-of-a-query": Key("sink", KEY),
        "owner-first": Key("owner", KEY),
        "decision": Key("decision", KEY),
        "chunk": Key("chunk", KEY, execution, 0),
        "chunk-no-longer-needed": Key("chunk", KEY, execution, 0),
        "done": Key("done", KEY, execution),
        "done-of-the-decision-before": Key("done", KEY, Execution(3, 6)),
    }
    for name, key in expected.items():
        assert key.encode() == bytes.fromhex(LOG[name]["key"]), name
        assert records.sink_key_in(key.encode()) == KEY


def test_what_this_release_writes_differs_in_added_fields_alone() -> None:
    handles = task_handles("chunk", "handles")
    before = Decision(Execution(3, 6), "0b4d-query", 8, None, 0, 0, {"other-query": 4, "0b4d-query": 8})
    planned = records.decide(Execution(3, 7), ("0b4d-query", 9), "orders", handles, before)
    decision, written = records.decision_records(KEY, planned, Execution(3, 6))
    first = records.first_owner(DriverIdentity(Jvm("host-1", 100, "1731000000.5"), 101, "token-1"), 7)
    second = first.successor(DriverIdentity(Jvm("host-2", 200, "1731000009.5"), 201, "token-2"), 7)
    ours = {
        "chunk": written[0],
        "done-of-the-decision-before": written[1],
        "decision": written[2],
        "done": records.done_records(KEY, decision)[0],
        "chunk-no-longer-needed": records.done_records(KEY, decision)[1],
        "done-with-a-loss": records.done_records(KEY, decision, handles[1:])[0],
        "owner-first": records.owner_record(KEY, first),
        "owner-second": records.owner_record(KEY, second),
        "sink-of-a-run": records.claim_record(KEY, Claim("batch", "2026-11-14")),
    }
    for name, record in ours.items():
        key, value = as_first_release(record)
        assert key.hex() == LOG[name]["key"], name
        if name == "chunk":  # libraries may compress in different ways
            assert unpacked(value or b"") == unpacked(value_of(name))
        else:
            assert (None if value is None else value.hex()) == LOG[name]["value"], name


@pytest.mark.parametrize("name", list(HANDLES))
def test_the_json_of_a_transaction_is_read_and_written_as_before(name: str) -> None:
    text = bytes.fromhex(HANDLES[name]["hex"]).decode()
    handle = TransactionHandle(**HANDLES[name]["fields"])
    assert TransactionHandle.from_json(text) == handle
    ours = json.loads(handle.to_json())
    assert {field: ours[field] for field in json.loads(text)} == json.loads(text)
