# SPDX-License-Identifier: Apache-2.0
"""A log that release 0.1.0 has written stays readable: its records are kept as bytes in tests/golden."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sink.support import QUERY, Crash, Driver, World, abort_from_elsewhere, content_in_order

from penstock.control import complete_transaction
from penstock.control.partition_log import KeyValue
from penstock.errors import RestoredCheckpointError
from penstock.records.compression import GZIP, codec, decompress
from penstock.sink import Content, DriverIdentity, Execution, Message, TaskHandle, Written, inspect_sinks
from penstock.sink.effects import AppendInTransaction, EndTransaction
from penstock.sink.identity import Jvm
from penstock.sink.log import records
from penstock.sink.log.records import Claim, Decision, Key
from penstock.sink.messages import IN_ORDER
from penstock.transaction_handle import TransactionHandle

GOLDEN = Path(__file__).parents[2] / "golden"
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
        topics={fields["query"]: fields["topic"]},
    )


@pytest.mark.parametrize(("queries", "forgotten"), [(15, 0), (16, 1)])
def test_a_full_head_of_then_may_have_forgotten_queries(queries: int, forgotten: int) -> None:
    values = json.loads(value_of("decision")) | {"last_decided": {f"q{n}": n for n in range(queries)}}
    assert records.parse_decision(json.dumps(values).encode()).forgotten == forgotten


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


# ---- an upgrade between decision and commit

ROWS = {0: ["a", "b"], 1: ["c"]}
ALL = ["a", "b", "c"]


class FirstRelease(Driver):
    """A driver whose decisions are those of release 0.1.0, record for record."""

    def run(self, steps: Any, *args: Any, **stop: Any) -> Any:
        return super().run(_in_first_release(steps), *args, **stop)

    def task(self, *args: Any, **options: Any) -> Message:
        message = super().task(*args, **options)
        if not isinstance(message, Written):
            return message
        content = content_in_order(args[3])
        handle = replace(message.handle, checksum=content.checksum, method=content.method)
        return replace(message, handle=handle)


def _in_first_release(steps: Any) -> Any:
    outcome = None
    while True:
        try:
            effect = steps.send(outcome)
        except StopIteration as stop:
            return stop.value
        if isinstance(effect, AppendInTransaction):
            effect = effect._replace(records=tuple(map(_decided_in_first_release, effect.records)))
        outcome = yield effect


def _decided_in_first_release(record: KeyValue) -> KeyValue:
    """The records of a decision as they were then; that of the owner must be one that this driver knows again."""
    return as_first_release(record) if json.loads(record.key)["kind"] in ("decision", "chunk") else record


def decide_with_first_release(world: World, query_id: str = QUERY) -> list[Message]:
    """Batch 7 is decided, and the driver dies before the transactions are committed."""
    driver = FirstRelease(world, world.settings())
    plan = driver.prepare()
    messages = [driver.task(plan, 7, number, values, query_id) for number, values in ROWS.items()]
    with pytest.raises(Crash):
        driver.commit(messages, 7, after=EndTransaction)
    return messages


def test_a_decision_of_the_first_release_is_finished_and_its_replay_skipped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    decide_with_first_release(world)
    assert world.visible() == []
    driver = world.driver()
    assert driver.batch(7, {0: ALL}).skipped
    assert world.visible() == ALL
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    (state,) = inspect_sinks(world.config)
    assert not state.needs_roll_forward
    driver.batch(8, {0: ["d"]})
    assert world.visible() == [*ALL, "d"]


@pytest.mark.parametrize("rewrites", [False, True])
def test_its_replay_is_compared_by_the_number_of_rows(world: World, rewrites: bool) -> None:
    decide_with_first_release(world)
    driver = world.driver(on_restored_checkpoint="rewrite" if rewrites else "fail")
    if rewrites:
        assert driver.batch(
            7, {0: ["a", "b", "C"]}
        ).skipped  # as many: there is nothing else to tell them apart
        assert driver.batch(7, {0: [*ALL, "d"]}).decided
        assert world.visible() == sorted([*ALL, *ALL, "d"])
        return
    with pytest.raises(RestoredCheckpointError, match="with 3 rows, and comes again with 4 rows"):
        driver.batch(7, {0: [*ALL, "d"]})
    assert world.visible() == ALL


@pytest.mark.parametrize("restored", ["fail", "rewrite"])
def test_where_it_does_not_tell_the_rows_the_replay_is_skipped_with_one_warning(
    world: World, caplog: pytest.LogCaptureFixture, restored: str
) -> None:
    decide_with_first_release(world)
    first = FirstRelease(world, world.settings())
    first.batch(0, {0: ["x"]}, "another query")
    driver = world.driver(on_restored_checkpoint=restored)
    assert driver.batch(7, {0: [*ALL, "d"]}).skipped
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "made by an earlier release and does not tell its rows" in warnings[0]
    assert world.visible() == [*ALL, "x"]


@pytest.mark.parametrize("lost", [(0,), (0, 1)])
def test_what_is_lost_of_it_is_repaired_by_the_checksum_of_then(world: World, lost: tuple[int, ...]) -> None:
    messages = decide_with_first_release(world)
    for number in lost:
        abort_from_elsewhere(world, messages[number])
    driver = world.driver(on_lost="repair")
    assert driver.batch(7, ROWS).decided
    assert world.visible() == ALL
    assert driver.batch(7, ROWS).skipped
    with pytest.raises(RestoredCheckpointError, match="with 3 rows, and comes again with 2 rows"):
        driver.batch(7, {0: ["a", "b"]})


def test_the_replay_of_what_the_first_release_has_repaired_is_skipped_with_one_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a repair it wrote down the rows that were written again, and not those of the batch."""
    messages = decide_with_first_release(world)
    abort_from_elsewhere(world, messages[0])
    assert FirstRelease(world, world.settings(on_lost="repair")).batch(7, ROWS).decided
    assert world.visible() == ALL
    caplog.clear()
    driver = world.driver()
    assert driver.batch(7, ROWS).skipped
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "does not tell its rows" in warnings[0]
    driver.batch(8, {0: ["d"]})
    assert world.visible() == [*ALL, "d"]


def test_decisions_of_both_releases_may_follow_each_other(world: World) -> None:
    world.driver().batch(7, ROWS)
    (state,) = inspect_sinks(world.config)
    assert state.decision is not None
    first = FirstRelease(world, world.settings())
    first.batch(8, {0: ["d"]})
    assert world.driver().batch(8, {0: ["d"]}).skipped
    assert world.visible() == [*ALL, "d"]


def test_a_transaction_that_the_first_release_wrote_down_is_ended(world: World) -> None:
    (message, _) = decide_with_first_release(world)
    assert isinstance(message, Written)
    known = json.loads(bytes.fromhex(HANDLES["task-0"]["hex"]))
    values = json.loads(message.handle.transaction.to_json())
    text = json.dumps({name: values[name] for name in known}, separators=(",", ":"))
    complete_transaction(TransactionHandle.from_json(text), config=world.config)
    assert world.visible() == ["a", "b"]


def test_the_tasks_that_lost_nothing_of_it_are_compared_by_the_number_of_rows(world: World) -> None:
    """Spark has planned the batch anew, with one row more for a task whose transaction is committed."""
    messages = decide_with_first_release(world)
    abort_from_elsewhere(world, messages[0])
    again = {number: list(values) for number, values in ROWS.items()}
    again[1].append("d")
    with pytest.raises(RestoredCheckpointError, match="with 3 rows, and comes again with 4 rows"):
        world.driver(on_lost="repair").batch(7, again)
