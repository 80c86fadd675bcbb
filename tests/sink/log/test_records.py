# SPDX-License-Identifier: Apache-2.0
"""The records of the log can be read back, fit into batches, and are never misread."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sink.log.support import KEY, decided, handle

from penstock.errors import SinkError, SinkLogLostError
from penstock.sink import DriverIdentity, Execution
from penstock.sink.identity import Jvm
from penstock.sink.log import records
from penstock.sink.log.records import Claim, Decision, Key, Owner
from penstock.sink.messages import SUMMED, Content

EXECUTION = Execution(3, 7)


def parsed(raw: bytes) -> dict[str, object]:
    values: dict[str, object] = json.loads(raw)
    return values


def test_keys_are_json_with_a_format_and_name_their_sink() -> None:
    keys = (Key("owner", KEY), Key("done", KEY, EXECUTION), Key("chunk", KEY, EXECUTION, 4))
    assert [parsed(key.encode()) for key in keys] == [
        {"format": 1, "sink": KEY, "kind": "owner"},
        {"format": 1, "sink": KEY, "kind": "done", "execution": [3, 7]},
        {"format": 1, "sink": KEY, "kind": "chunk", "execution": [3, 7], "chunk": 4},
    ]
    assert {records.sink_key_in(key.encode()) for key in keys} == {KEY}
    for key in keys:
        records.check_format(key.encode())


@pytest.mark.parametrize("raw", [None, b"", b"x", b"[]", b"{}", b'"text"', b'{"format":1}', b"\xff"])
def test_what_others_put_into_the_topic_is_passed_over(raw: bytes | None) -> None:
    assert records.sink_key_in(raw) is None


def test_a_newer_format_is_refused() -> None:
    newer = b'{"format":2,"kind":"owner","sink":"0123456789abcdef"}'
    assert records.sink_key_in(newer) == KEY
    with pytest.raises(SinkLogLostError, match="newer release"):
        records.check_format(newer)
    with pytest.raises(SinkLogLostError, match="newer release"):
        records.parse_owner(b'{"format":2}')


def test_claim_and_owner_can_be_read_back() -> None:
    claim = Claim("s3://check point/\u00e4", "run 1")
    assert records.parse_claim(records.claim_record(KEY, claim).value or b"") == claim
    owner = Owner(4, Jvm("h", 1, "s"), 22, "token", (Jvm("g", 2, "t"),), 7, "here")
    assert records.parse_owner(records.owner_record(KEY, owner).value or b"") == owner


def test_owners_remember_those_before_them() -> None:
    jvms = [Jvm("h", number, "s") for number in range(20)]
    owner = records.first_owner(DriverIdentity(jvms[0], 1, "t0"), 7)
    assert (owner.generation, owner.previous) == (1, ())
    again = owner.successor(DriverIdentity(jvms[0], 2, "t1"), 8)
    assert (again.generation, again.previous) == (2, ())
    for number, jvm in enumerate(jvms[1:], 2):
        again = again.successor(DriverIdentity(jvm, 1, f"t{number}"), 8)
    assert again.previous == tuple(reversed(jvms[3:19]))
    assert again.covers(DriverIdentity(jvms[19], 1, "another process of the same JVM"), 8)
    assert not again.covers(DriverIdentity(jvms[19], 1, "t20"), 9)
    assert not again.covers(DriverIdentity(jvms[18], 1, "t19"), 8)


def test_an_owner_record_of_the_release_before_is_read_and_covers_nobody() -> None:
    """Its planner processes counted executions in their memory, so that nobody may go on in their generation."""
    raw = (
        b'{"format":1,"generation":3,"jvm":["h",1,"s"],"planner_pid":22,"token":"t","previous":[["g",2,"t"]]}'
    )
    owner = records.parse_owner(raw)
    assert owner == Owner(3, Jvm("h", 1, "s"), 22, "t", (Jvm("g", 2, "t"),))
    driver = DriverIdentity(Jvm("h", 1, "s"), 22, "t")
    assert not owner.covers(driver, 7)
    assert owner.successor(driver, 7)[:4] == (4, driver.jvm, 22, "t")


def test_a_decision_can_be_read_back() -> None:
    handles = [handle(number) for number in range(3)]
    planned = records.decide(EXECUTION, ("q", 9), "orders", handles, decided({"p": 1, "q": 8}))
    decision, written = records.decision_records(KEY, planned, Execution(3, 6))
    kinds = [(key, value is None) for key, value in written]
    assert kinds == [
        (Key("chunk", KEY, EXECUTION, 0).encode(), False),
        (Key("done", KEY, Execution(3, 6)).encode(), True),
        (Key("decision", KEY).encode(), False),
    ]
    head = records.parse_decision(written[-1].value or b"")
    assert (head.execution, head.query_id, head.batch_id, head.topic) == (EXECUTION, "q", 9, "orders")
    assert (head.rows, head.chunks, decision.chunks) == (3000, 1, 1)
    assert list(head.last_decided.items()) == [("p", 1), ("q", 9)]
    assert records.parse_chunk(written[0].value or b"") == handles


def test_the_latest_queries_are_kept_and_how_many_are_not() -> None:
    most, queries = records.MAX_QUERIES, records.MAX_QUERIES + 4
    before: Decision | None = None
    for number in range(queries + 10):
        before = records.decide(EXECUTION, (f"q{number % queries}", number), None, [handle(number)], before)
    assert before is not None
    assert list(before.last_decided) == [f"q{n % queries}" for n in range(queries + 10 - most, queries + 10)]
    assert set(before.contents) == set(before.topics) == set(before.last_decided)
    assert before.forgotten == 4 + 10  # the first ten came back, each in the place of another one


def test_what_was_decided_is_kept_for_each_query_and_added_up_over_tasks() -> None:
    handles = [replace(handle(n), method=SUMMED, checksum=2**64 - 1 - n) for n in range(2)]
    before = records.decide(EXECUTION, ("p", 1), "orders", [handle(7)])
    planned = records.decide(EXECUTION, ("q", 9), None, handles, before)
    _, written = records.decision_records(KEY, planned, None)
    head = records.parse_decision(written[-1].value or b"")
    assert head.contents == {"p": Content(1000), "q": Content(2000, 2**64 - 3, SUMMED)}
    assert head.topics == {"p": "orders", "q": None}
    whole = Content(5000, 5, SUMMED)
    repaired = records.decide(EXECUTION, ("q", 9), None, handles, before, whole)
    assert repaired.contents["q"] == whole
    assert repaired.rows == 2000


@pytest.mark.parametrize("wrong", [[], {"q": 1}, {"q": [1, 2]}, {"q": [1, -2, 2]}, {"q": [1, "2", 2]}])
def test_a_head_with_a_content_that_cannot_be_is_damaged(wrong: object) -> None:
    _, written = records.decision_records(KEY, records.decide(EXECUTION, ("q", 1), None, [handle(0)]), None)
    values = parsed(written[-1].value or b"") | {"contents": wrong}
    with pytest.raises(SinkLogLostError, match="cannot be read"):
        records.parse_decision(json.dumps(values).encode())


def test_thousands_of_handles_fit_into_records_that_brokers_take() -> None:
    handles = [handle(number, partitions=3) for number in range(4500)]
    decision = records.decide(EXECUTION, ("q", 1), None, handles)
    _, written = records.decision_records(KEY, decision, None)
    assert all(len(value or b"") <= records.MAX_CHUNK_BYTES for _, value in written)
    read = [each for _, value in written[:-1] for each in records.parse_chunk(value or b"")]
    assert read == handles


def test_handles_with_very_many_partitions_are_spread_over_more_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "MAX_CHUNK_BYTES", 4000)
    handles = [handle(number, partitions=400) for number in range(12)]
    decision, written = records.decision_records(
        KEY, records.decide(EXECUTION, ("q", 1), None, handles), None
    )
    assert decision.chunks > 1
    assert all(len(value or b"") <= records.MAX_CHUNK_BYTES for _, value in written)


def test_one_handle_that_no_record_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_CHUNK_BYTES", 4000)
    monster = handle(0, partitions=4000)
    with pytest.raises(SinkError, match="too many partitions"):
        records.decision_records(KEY, records.decide(EXECUTION, ("q", 1), None, [monster]), None)


def test_done_takes_the_chunks_with_it() -> None:
    decision, _ = records.decision_records(KEY, records.decide(EXECUTION, ("q", 1), None, [handle(0)]), None)
    written = records.done_records(KEY, decision)
    assert [key for key, _ in written] == [
        Key("done", KEY, EXECUTION).encode(),
        Key("chunk", KEY, EXECUTION, 0).encode(),
    ]
    assert [value is None for _, value in written] == [False, True]


@pytest.mark.parametrize("raw", [b"", b"no gzip", b"\x1f\x8b\x08broken"])
def test_a_damaged_chunk_is_told(raw: bytes) -> None:
    with pytest.raises(SinkLogLostError, match="cannot be read"):
        records.parse_chunk(raw)
